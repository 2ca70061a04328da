"""Phrases that the writing guide replaces are found where people read them, and nowhere else."""

from collections import Counter

import pytest

from tests.unit.tools.conftest import load_tool

prose = load_tool("prose")


def found(source, path="src/evenq/model/thing.py"):
    return [(one.line, one.pattern) for one in prose.phrases(path, source)]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("What a reader got.", "opens with What, Who or Whose"),
        ("A table. Who waits stands in it.", "opens with What, Who or Whose"),
        ("A follower may hear of it.", "parts that tell, hear or ask"),
        ("An address that is none.", "is no X, that is none"),
        ("It is taken by who writes.", "of who, by who"),
        ("The other copy goes on.", "goes on, at once, let go"),
        ("As so many as fit.", "so many, so much, had rather"),
        ("Its number; else 0.", "; else"),
        ("The messages in hand.", "farewell, goodbye, in hand"),
    ],
)
def test_each_phrase_is_found_in_docstrings_comments_texts_and_protocols(text, pattern):
    assert pattern in prose.PATTERNS
    assert found(f'"""A module."""\n\ndef f():\n    """{text}"""\n') == [(4, pattern)]
    assert found(f"x = 1  # {text}\n") == [(1, pattern)]
    assert found(f'print("{text}")\n') == [(1, pattern)]
    assert found(f"message A {{  // {text}\n}}\n", "protos/evenq/v1/thing.proto") == [(1, pattern)]


def test_a_phrase_may_span_two_lines_of_a_comment():
    assert found("# The other copy goes\n# on.\nx = 1\n") == [(1, "goes on, at once, let go")]


@pytest.mark.parametrize(
    "source",
    [
        "at_once = tell(who)\n",
        '"""Which of them? What is it good for?"""\n',
        '"""There is no leader, and it is no longer known."""\n',
        'KEY = "told"\n',
    ],
)
def test_names_questions_and_plain_english_are_left_alone(source):
    assert found(source) == []


def test_a_count_above_its_ceiling_is_an_error(monkeypatch):
    monkeypatch.setattr(prose, "CEILINGS", {"; else": 2})
    assert prose.above_ceilings(Counter({"; else": 2})) == []
    [text] = prose.above_ceilings(Counter({"; else": 3}))
    assert "3 texts" in text
    [text] = prose.above_ceilings(Counter({"of who, by who": 1}))
    assert "the ceiling is 0" in text
