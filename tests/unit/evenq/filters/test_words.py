"""The words of an SQL filter and where they stand."""

from evenq.filters.words import scan


def test_every_word_has_its_kind_and_its_place() -> None:
    words = scan("a.b >= -2.5 AND\n\tnot c IN ('x''y', tRue)")
    assert [(word.type, str(word), word.start_pos) for word in words] == [
        ("NAME", "a.b", 0),
        ("COMPARE", ">=", 4),
        ("NUMBER", "-2.5", 7),
        ("_AND", "AND", 12),
        ("_NOT", "not", 17),
        ("NAME", "c", 21),
        ("_IN", "IN", 23),
        ("_LPAR", "(", 26),
        ("STRING", "'x''y'", 27),
        ("_COMMA", ",", 33),
        ("TRUE", "tRue", 35),
        ("_RPAR", ")", 39),
    ]


def test_words_need_no_space_where_they_are_clear() -> None:
    assert [str(word) for word in scan("a<>'x'AND(b=-1)")] == ["a", "<>", "'x'", "AND", "(", "b", "=", "-1", ")"]
