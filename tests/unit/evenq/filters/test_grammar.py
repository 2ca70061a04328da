"""What is a sentence and what the error says of something that is none: the column, what was expected, and a fix."""

import time

import pytest

from evenq.errors import IllegalFilterExpression
from evenq.filters import DEPTH_MAX, EXPRESSION_BYTES_MAX, TERMS_MAX, sql_filter


def refusal(expression: str) -> str:
    with pytest.raises(IllegalFilterExpression) as caught:
        sql_filter(expression)
    assert caught.value.code == 40010
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "column", "words"),
    [
        ("a", 2, ["found the end", "expected = <> < <= > >= or IN", "region = 'eu'"]),
        ("a =", 4, ["found the end", "expected a property or a value"]),
        ("a = 1 b", 7, ["found 'b'", "AND or OR or the end"]),
        ("a = NULL", 5, ["found 'NULL'", "region IS NULL"]),
        ("a LIKE 'x%'", 3, ["LIKE is not known", "STARTSWITH 'ab'"]),
        ("a not like 'x%'", 7, ["LIKE is not known"]),
        ("a = 'x", 5, ["never ends", "''"]),
        ('a = "x"', 5, ["single quotes"]),
        ("(a = 1", 7, ["expected ')'", "still open"]),
        ("a = 1)", 6, ["found ')'", "too many"]),
        ("a != 1", 3, ["<>"]),
        ("a == 1", 3, ["written ="]),
        ("a = 1 && b = 2", 7, ["AND"]),
        ("a || b", 3, ["TAG expression"]),
        ("a = 1 + 1", 7, ["no arithmetic"]),
        ("order-id = 1", 6, ["names hold letters"]),
        ("a IN ()", 7, ["found ')'", "a string in single quotes"]),
        ("a IN (1 2)", 9, ["expected ',' or ')'", "IN ('eu', 'us')"]),
        ("a IN (b)", 7, ["found 'b'"]),
        ("a BETWEEN 1", 12, ["expected AND"]),
        ("a > TRUE", 9, ["no order", "= and <> can"]),
        ("1x > 2", 1, ["not a number"]),
        ("a > 1" + "0" * 64, 5, ["65 characters", "limit is 64"]),
        ("\n\n a = ;", 8, ["';' is not known"]),
        ("*", 1, ["TAG expression '*'"]),
        ("", None, ["empty", "region = 'eu'"]),
        ("  ", None, ["empty"]),
    ],
)
def test_an_error_names_the_column_and_a_fix(expression: str, column: int | None, words: list[str]) -> None:
    message = refusal(expression)
    assert column is None or f"at column {column}:" in message
    assert all(word in message for word in words), message


def test_keywords_are_known_in_any_case_and_names_keep_theirs() -> None:
    parsed = sql_filter("nOt (A In ('x') oR a Is nOt nUlL) aNd Ab staRTSwith 'q' And android = 1")
    assert parsed.names == {"A", "a", "Ab", "android"}


def test_the_limits_are_reached_but_not_passed() -> None:
    fitting = " OR ".join(f"a={n}" for n in range(TERMS_MAX // 2))
    assert sql_filter(fitting).evaluate({"a": "511"}) is True
    assert f"more than {TERMS_MAX}" in refusal(fitting + " OR TRUE")
    assert sql_filter("(" * (DEPTH_MAX - 1) + "a=1" + ")" * (DEPTH_MAX - 1)).evaluate({"a": "1"}) is True
    assert f"more than {DEPTH_MAX}" in refusal("(" * DEPTH_MAX + "a=1" + ")" * DEPTH_MAX)
    assert sql_filter("NOT " * (DEPTH_MAX - 2) + "a=1").evaluate({"a": "1"}) is True
    assert f"more than {DEPTH_MAX}" in refusal("NOT " * DEPTH_MAX + "a=1")
    assert sql_filter("a = '" + "x" * (EXPRESSION_BYTES_MAX - 6) + "'").evaluate({}) is None
    assert f"the limit is {EXPRESSION_BYTES_MAX}" in refusal("a = '" + "ö" * (EXPRESSION_BYTES_MAX // 2) + "'")


@pytest.mark.parametrize(
    "unit", ["(", "NOT ", "a=1 OR ", "'", "''", "a", "<", "1", " ", "-", "a IN (1,", "1,", "a.", "\ud800"]
)
def test_hostile_text_is_refused_in_bounded_time(unit: str) -> None:
    begun = time.process_time()
    refusal(unit * (EXPRESSION_BYTES_MAX // len(unit.encode(errors="replace"))))
    assert time.process_time() - begun < 1


def test_nothing_of_the_text_is_ever_run() -> None:
    assert sql_filter("__import__ = 'os'").evaluate({"__import__": "os"}) is True
    assert "not known" in refusal("__import__`")
