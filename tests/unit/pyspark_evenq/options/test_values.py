"""Option values."""

from __future__ import annotations

from enum import StrEnum

import pytest
from pyspark_evenq.options.values import choice, flag, named, whole

from evenq.errors import SettingsError


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "darkBlue"


NAMES = {"limit": "limit", "rowlimit": "limit", "colour": "colour"}


def test_names_of_any_case_and_aliases_become_the_canonical_ones() -> None:
    assert named({"LIMIT": "1", "Colour": "red"}, NAMES, of="x") == {"limit": "1", "colour": "red"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limt": "1"}, "unknown option 'limt' of the sink; did you mean limit?"),
        ({"weather": "1"}, "unknown option 'weather' of the sink; docs/guides/spark.md lists all of them"),
        ({"limit": "1", "rowLimit": "2"}, "option limit is given twice, once as 'rowLimit'"),
        ({"kafka.acks": "all"}, "means nothing here"),
    ],
)
def test_names_that_cannot_be_meant_are_errors(given: dict[str, str], says: str) -> None:
    def problem(name: str) -> str | None:
        return "means nothing here" if name.startswith("kafka.") else None

    with pytest.raises(SettingsError, match=says.replace("?", r"\?")):
        named(given, NAMES, of="the sink", problem_of=problem)


def test_a_choice_is_taken_in_any_case() -> None:
    assert choice({}, "colour", Colour.RED) is Colour.RED
    assert choice({"colour": " DARKBLUE "}, "colour", Colour.RED) is Colour.DARK_BLUE
    with pytest.raises(SettingsError, match="option colour is 'green'; give one of: red, darkBlue"):
        choice({"colour": "green"}, "colour", Colour.RED)


@pytest.mark.parametrize("text", ["0", "11", "ten", "1.5", ""])
def test_whole_numbers_are_kept_in_their_range(text: str) -> None:
    assert whole({"limit": "10"}, "limit", default=3, low=1, high=10) == 10
    assert whole({}, "limit", default=3, low=1, high=10) == 3
    with pytest.raises(SettingsError, match=rf"option limit is .*{text}.*; give a whole number in 1\.\.10"):
        whole({"limit": text}, "limit", default=3, low=1, high=10)


def test_flags_are_true_or_false() -> None:
    assert flag({"on": "TRUE"}, "on", default=False)
    assert not flag({}, "on", default=False)
    with pytest.raises(SettingsError, match="option on is 'yes'; give true or false"):
        flag({"on": "yes"}, "on", default=False)
