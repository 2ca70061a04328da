"""JSON bodies: bounded parsing, and builders that read its values.

A body is UTF-8 text with one JSON object. Of two values with one name the last one counts, as in Python and JavaScript.
NaN and Infinity are not JSON. The result of a body never depends on its neighbours, on Python's recursion limit, or on
its limit of digits: another exporter must find the same. `_must_be_simple` counts what the parser would have to hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

import numpy as np

from evenq.tables.typed.builders import Budget, Builder, LeafBuilder, ListBuilder, StructBuilder
from evenq.tables.typed.columns import TypedColumn, TypedSchema
from evenq.tables.typed.values import Misfit, converter

DEPTH_MAX: Final = 200
"""Objects and arrays within each other."""
VALUES_MAX: Final = 250_000
"""Commas, objects and arrays in one body, each of which may cost 80 bytes while it is parsed."""
DIGITS_MAX: Final = 4_000


class JsonBodies:
    """The parser of one schema."""

    def __init__(self, schema: TypedSchema) -> None:
        exact = {"parse_float": _exact} if any(_has_decimals(column) for column in schema.columns) else {}
        self._decode = json.JSONDecoder(parse_constant=_constant, **exact).decode  # type: ignore[arg-type]
        self._decode_long = json.JSONDecoder(
            parse_constant=_constant,
            parse_int=_bounded,
            **exact,  # type: ignore[arg-type]
        ).decode
        self._paths = [(column.path[:-1], column.path[-1], column.name) for column in schema.columns]

    def builders(self, schema: TypedSchema, budget: Budget) -> list[Builder]:
        return [_builder(column, column.name, budget) for column in schema.columns]

    def values(self, body: memoryview) -> list[Any]:
        """Returns the value of each column. Raises Misfit."""
        parsed = self._parsed(body)
        if type(parsed) is not dict:
            raise Misfit("type")
        return [
            parsed.get(key) if not path else _within(parsed, path, name).get(key) for path, key, name in self._paths
        ]

    def _parsed(self, body: memoryview) -> Any:
        if not body:
            raise Misfit("empty")
        try:
            text = str(body, "utf-8")
        except UnicodeDecodeError:
            raise Misfit("utf8") from None
        if len(text) > 2 * VALUES_MAX or text.count("{") + text.count("[") > DEPTH_MAX:
            _must_be_simple(text)
        try:
            return self._decode(text)
        except (json.JSONDecodeError, RecursionError):
            raise Misfit("syntax") from None
        except ValueError:  # an integer with more digits than Python converts
            pass
        try:
            return self._decode_long(text)
        except (ValueError, RecursionError):
            raise Misfit("syntax") from None


def _must_be_simple(text: str) -> None:
    """Raises Misfit for a text with more values or levels than are parsed."""
    plain = text.replace("\\\\", "").replace('\\"', "")  # each quote that is left begins or ends a string
    whole = np.frombuffer(plain.encode("ascii", "replace"), np.uint8)
    rest = whole[np.cumsum(whole == ord('"'), dtype=np.uint8) & 1 == 0]
    bits = rest | 0x20  # [ and { differ in this bit alone, and so do ] and }
    opens = bits == ord("{")
    if int(opens.sum()) + int((rest == ord(",")).sum()) > VALUES_MAX:
        raise Misfit("size")
    marks = opens | (bits == ord("}"))
    levels = np.where(opens[marks], 1, -1).cumsum()
    if int(levels.max(initial=0)) > DEPTH_MAX:
        raise Misfit("depth")


def _constant(_name: str) -> None:
    raise Misfit("syntax")


def _bounded(digits: str) -> int | float:
    """Returns an integer, or infinity for one that fits in no column."""
    return int(digits) if len(digits) <= DIGITS_MAX else float("inf")


def _exact(digits: str) -> Decimal | float:
    """Returns a number as it is written; a float for one with an exponent that no decimal has."""
    try:
        return Decimal(digits)
    except ArithmeticError:
        return float(digits)


def _has_decimals(column: TypedColumn) -> bool:
    return column.type.startswith("decimal") or any(map(_has_decimals, column.parts))


def _within(value: dict[str, Any], path: Iterable[str], place: str) -> dict[str, Any]:
    """Returns the object at a path; an empty one if a field on the way is absent or null."""
    for key in path:
        inner = value.get(key)
        if inner is None:
            return {}
        if type(inner) is not dict:
            raise Misfit("type", place)
        value = inner
    return value


def _builder(column: TypedColumn, place: str, budget: Budget) -> Builder:
    match column.type:
        case "struct":
            parts = [_builder(part, f"{place}.{part.name}", budget) for part in column.parts]
            return StructBuilder(column, parts, _fields([part.path[0] for part in column.parts], place))
        case "list":
            return ListBuilder(column, [_builder(column.parts[0], place, budget)], _elements(place), budget, place)
        case "map":
            parts = [_builder(part, place, budget) for part in column.parts]
            return ListBuilder(column, parts, _pairs(place), budget, place)
    return LeafBuilder(column, converter(column, place))


def _fields(keys: list[str], place: str) -> Callable[[Any], list[Any]]:
    def take(value: Any) -> list[Any]:
        if type(value) is not dict:
            raise Misfit("type", place)
        return [value.get(key) for key in keys]

    return take


def _elements(place: str) -> Callable[[Any], list[Any]]:
    def take(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Misfit("type", place)
        return value

    return take


def _pairs(place: str) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit("type", place)
        return value.items()

    return take
