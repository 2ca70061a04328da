"""Option values as text, read as what they mean, with errors that name the option, its value and what would be right.

Called by `options` and `sink_options`. Spark hands over strings, under names of any case. Pure.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from evenq.errors import SettingsError

__all__ = ["NEAR", "choice", "flag", "named", "number", "whole"]

NEAR = 0.8
"""Names that are less alike (`difflib`'s ratio) are no misspelling of each other."""
Chosen = TypeVar("Chosen", bound=StrEnum)


def named(
    given: Mapping[str, str],
    canonical: Mapping[str, str],
    *,
    of: str,
    problem_of: Callable[[str], str | None] = lambda _: None,
) -> dict[str, str]:
    """The options under their canonical names. `canonical`: by name in lower case. `of`: whose options they are, in
    words. `problem_of`: a better word for some names that are unknown. Raises SettingsError for a name that is unknown
    or given twice, because a misspelt limit would otherwise read everything in silence.
    """
    values: dict[str, str] = {}
    for name, value in given.items():
        known = canonical.get(name.lower())
        if known is None:
            if problem := problem_of(name):
                raise SettingsError(problem)
            near = difflib.get_close_matches(name.lower(), canonical, n=1, cutoff=NEAR)
            hint = f"did you mean {canonical[near[0]]}?" if near else "docs/guides/spark.md lists all of them"
            raise SettingsError(f"unknown option {name!r} of {of}; {hint}")
        if known in values:
            raise SettingsError(f"option {known} is given twice, once as {name!r}; leave one out")
        values[known] = value
    return values


def choice(values: Mapping[str, str], name: str, default: Chosen) -> Chosen:
    """One of an enumeration's values, in any case. Raises SettingsError."""
    text = values.get(name, default).strip()
    kind = type(default)
    for one in kind:
        if one.lower() == text.lower():
            return one
    raise SettingsError(f"option {name} is {text!r}; give one of: {', '.join(kind)}")


def whole(values: Mapping[str, str], name: str, *, default: int, low: int = 0, high: int = 1 << 62) -> int:
    """A whole number in low..high. Raises SettingsError."""
    text = values.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise SettingsError(f"option {name} is {text!r}; give a whole number in {low}..{high}") from None
    if not low <= number <= high:
        raise SettingsError(f"option {name} is {number}; give a whole number in {low}..{high}")
    return number


def number(values: Mapping[str, str], name: str, *, default: float, high: float) -> float:
    """Above 0, up to `high`. Raises SettingsError."""
    text = values.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= high:
        raise SettingsError(f"option {name} is {text!r}; give a number above 0 and up to {high:g}")
    return value


def flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false, in any case. Raises SettingsError."""
    text = values.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"option {name} is {values[name]!r}; give true or false")
    return text == "true"
