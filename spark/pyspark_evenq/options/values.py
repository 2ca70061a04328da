"""Parsers of option values, with errors that name the option, its value and what is allowed.

Spark passes strings, under names of any case. Pure.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from evenq.errors import SettingsError

NEAR = 0.8
"""Minimum similarity (`difflib`'s ratio) of a misspelt name."""
Chosen = TypeVar("Chosen", bound=StrEnum)


def named(
    given: Mapping[str, str],
    canonical: Mapping[str, str],
    *,
    of: str,
    problem_of: Callable[[str], str | None] = lambda _: None,
) -> dict[str, str]:
    """Returns the options under their canonical names. `canonical`: lower-case name -> name. `of`: their owner, for
    errors. `problem_of`: a better error text for some unknown names. Raises SettingsError for a name that is unknown or
    given twice: otherwise a misspelt limit would silently read everything.
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
    text = values.get(name, default).strip()
    kind = type(default)
    for one in kind:
        if one.lower() == text.lower():
            return one
    raise SettingsError(f"option {name} is {text!r}; give one of: {', '.join(kind)}")


def whole(values: Mapping[str, str], name: str, *, default: int, low: int = 0, high: int = 1 << 62) -> int:
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
    """Parses a number above 0, up to `high`. Raises SettingsError."""
    text = values.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= high:
        raise SettingsError(f"option {name} is {text!r}; give a number above 0 and up to {high:g}")
    return value


def flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"option {name} is {values[name]!r}; give true or false")
    return text == "true"
