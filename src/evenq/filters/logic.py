"""Semantics of SQL filters: functions from the properties of a message to true, false or null (SQL92).

A comparison is null with a missing property, and of values that do not compare (a word with a number). NOT null is
null. AND is false if one side is false, OR is true if one side is true; otherwise both are null if one side is null.
Properties are strings. Compared with a number they are read as a number, with TRUE or FALSE as a boolean in any case.
Two properties compare as numbers if both are numbers, otherwise as strings. Strings are ordered by code points.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Truth = bool | None
Properties = Mapping[str, str]
Predicate = Callable[[Properties], Truth]
Literal = str | int | float | bool

_Holds = Callable[[Any, Any], bool]
_COMPARISONS: dict[str, _Holds] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_TESTS: dict[str, _Holds] = {"CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+|(?P<FLOAT>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))")
_NUMBER_MAX = 64  # characters; longer texts do not count as numbers
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Value:
    """One side of a comparison: the property `name`, or the `literal` if there is no name."""

    name: str | None = None
    literal: Literal = ""


def number(text: str) -> int | float | None:
    """Returns the number in a text; None if it is not a number. Integers are exact."""
    if len(text) > _NUMBER_MAX:
        return None
    if text.isdigit() and text.isascii():
        return int(text)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    return int(text) if match["FLOAT"] is None else float(text)


def constant(truth: Truth) -> Predicate:
    return lambda _: truth


def compare(left: Value, sign: str, right: Value) -> Predicate:
    """Returns one of the six comparisons. Raises ValueError for an order of TRUE and FALSE."""
    if left.name is None and right.name is not None:
        left, sign, right = right, _MIRRORED[sign], left
    if sign not in {"=", "<>"} and (isinstance(left.literal, bool) or isinstance(right.literal, bool)):
        raise ValueError(f"TRUE and FALSE have no order; {sign} cannot compare them, = and <> can")
    holds = _COMPARISONS[sign]
    if left.name is None:
        return constant(_literals(left.literal, holds, right.literal))
    if right.name is not None:
        return _two_properties(left.name, holds, right.name)
    if isinstance(right.literal, str):
        return _with_text(left.name, holds, right.literal)
    return _converted(left.name, _boolean if isinstance(right.literal, bool) else number, holds, right.literal)


def one_of(value: Value, literals: Iterable[Literal]) -> Predicate:
    options = list(literals)
    name = value.name
    if name is None or not all(isinstance(one, str) for one in options):
        return any_of([compare(value, "=", Value(literal=one)) for one in options])
    texts = frozenset(options)

    def test(properties: Properties) -> Truth:
        text = properties.get(name)
        return None if text is None else text in texts

    return test


def is_null(name: str) -> Predicate:
    """True without the property; never null."""
    return lambda properties: name not in properties


def text_test(value: Value, word: str, text: str) -> Predicate:
    """CONTAINS, STARTSWITH or ENDSWITH."""
    holds = _TEXT_TESTS[word]
    if value.name is None:
        return constant(holds(value.literal, text) if isinstance(value.literal, str) else None)
    return _with_text(value.name, holds, text)


def negate(test: Predicate) -> Predicate:
    def negated(properties: Properties) -> Truth:
        truth = test(properties)
        return None if truth is None else not truth

    return negated


def all_of(tests: list[Predicate]) -> Predicate:
    """AND; stops at the first false."""
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests

        def both(properties: Properties) -> Truth:
            one = first(properties)
            if one is False:
                return False
            other = second(properties)
            return other if one else False if other is False else None

        return both

    def every(properties: Properties) -> Truth:
        result: Truth = True
        for test in tests:
            truth = test(properties)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return every


def any_of(tests: list[Predicate]) -> Predicate:
    """OR; stops at the first true."""
    if len(tests) == 1:
        return tests[0]

    def some(properties: Properties) -> Truth:
        result: Truth = False
        for test in tests:
            truth = test(properties)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return some


def _literals(left: Literal, holds: _Holds, right: Literal) -> Truth:
    kinds = {str if isinstance(one, str) else bool if isinstance(one, bool) else float for one in (left, right)}
    return holds(left, right) if len(kinds) == 1 else None


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.lower())


def _with_text(name: str, holds: _Holds, text: str) -> Predicate:
    def test(properties: Properties) -> Truth:
        value = properties.get(name)
        return None if value is None else holds(value, text)

    return test


def _converted(name: str, convert: Callable[[str], object | None], holds: _Holds, literal: Literal) -> Predicate:
    def test(properties: Properties) -> Truth:
        text = properties.get(name)
        if text is None:
            return None
        value = convert(text)
        return None if value is None else holds(value, literal)

    return test


def _two_properties(left: str, holds: _Holds, right: str) -> Predicate:
    def test(properties: Properties) -> Truth:
        one, other = properties.get(left), properties.get(right)
        if one is None or other is None:
            return None
        first, second = number(one), number(other)
        return holds(one, other) if first is None or second is None else holds(first, second)

    return test
