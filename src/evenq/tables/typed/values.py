"""Single values of bodies as values of Arrow: exact, or a `Misfit`.

A value is never rounded to fit: a number with more digits than its column does not fit. The two exceptions are those of
Python itself: digits of a time below a microsecond are cut, and float columns have the nearest float.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

from evenq.tables.typed.columns import DECIMAL, TypedColumn

INT_MAX: Final = {"int32": (1 << 31) - 1, "int64": (1 << 63) - 1}
EXACT_MAX: Final = (1 << 53) - 1
"""Largest float that stands for one integer alone: 2**53 + 1 has the float of 2**53."""
FLOAT32_MAX: Final = 3.4028235677973366e38
"""Numbers from here on would be infinite."""
NUMBER: Final = re.compile(r"-?\d{1,80}(\.\d{1,80})?([eE][+-]?\d{1,3})?", re.ASCII)
MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
PER_UNIT: Final = {"epoch-s": 1_000_000, "epoch-ms": 1_000, "epoch-us": 1}
EPOCH, EPOCH_DAY = datetime(1970, 1, 1), date(1970, 1, 1).toordinal()  # noqa: DTZ001  UTC, as all moments here
EPOCH_MAX: Final = Decimal(10**20)
"""More than any moment in any unit."""
MICROSECOND: Final = timedelta(microseconds=1)
MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Of the years 1 to 9999."""
EXACTLY: Final = Context(prec=100, Emax=999_999, Emin=-999_999, traps=[Inexact, InvalidOperation])
ROUNDED: Final = Context(prec=100, Emax=999_999, Emin=-999_999, traps=[])


class Misfit(Exception):
    """A body that does not fit: a word, and the column if it is one of a value."""

    def __init__(self, word: str, place: str = "") -> None:
        super().__init__(f"{word}:{place}" if place else word)
        self.reason = f"{word}:{place}" if place else word


Convert = Callable[[Any], Any]


def converter(column: TypedColumn, place: str) -> Convert:
    """Returns the function that converts values of a JSON body for a column, except null. `place`: named by misfits."""
    if found := DECIMAL.fullmatch(column.type):
        return _decimal(int(found[1]), int(found[2]), place)
    match column.type:
        case "string":
            return _text(place)
        case "binary":
            return _base64(place)
        case "bool":
            return _bool(place)
        case "date":
            return _date(place)
        case "timestamp":
            return _moment(place) if column.reads == "iso" else _epoch(column.reads, place)
        case "int32" | "int64":
            return _integer(INT_MAX[column.type], place)
    return _float(FLOAT32_MAX if column.type == "float32" else None, place)


def _text(place: str) -> Convert:
    def convert(value: Any) -> str:
        if type(value) is not str:
            raise Misfit("type", place)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:  # a half of a surrogate pair, which JSON can escape
                raise Misfit("utf8", place) from None
        return value

    return convert


def _base64(place: str) -> Convert:
    def convert(value: Any) -> bytes:
        if type(value) is not str:
            raise Misfit("type", place)
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise Misfit("type", place) from None

    return convert


def _bool(place: str) -> Convert:
    def convert(value: Any) -> bool:
        if type(value) is not bool:
            raise Misfit("type", place)
        return value

    return convert


def _integer(greatest: int, place: str) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int:
            made = value
        elif type(value) in {float, Decimal}:  # 1.0 and 1e3 are integers in JSON Schema
            near = float(value)
            if not near.is_integer():
                raise Misfit("range" if abs(near) > EXACT_MAX else "type", place)
            if abs(near) > EXACT_MAX:
                raise Misfit("range", place)
            made = int(near)
        else:
            raise Misfit("type", place)
        if not -greatest - 1 <= made <= greatest:
            raise Misfit("range", place)
        return made

    return convert


def _float(greatest: float | None, place: str) -> Convert:
    def convert(value: Any) -> float:
        if type(value) not in {float, int, Decimal}:
            raise Misfit("type", place)
        try:
            made = float(value)
        except OverflowError:
            raise Misfit("range", place) from None
        if made - made != 0 or (greatest is not None and abs(made) >= greatest):  # infinite, as 1e999 is
            raise Misfit("range", place)
        return made

    return convert


def _decimal(digits: int, scale: int, place: str) -> Convert:
    step = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) is str:
            if not NUMBER.fullmatch(value):
                raise Misfit("type", place)
            value = Decimal(value)
        elif type(value) is int:
            if value.bit_length() > 200:
                raise Misfit("range", place)
            value = Decimal(value)
        elif type(value) is not Decimal:
            raise Misfit("range" if type(value) is float else "type", place)  # a float here is an endless integer
        try:
            made = EXACTLY.quantize(value, step)
        except (Inexact, InvalidOperation):
            raise Misfit("range", place) from None
        if made and made.adjusted() >= digits - scale:
            raise Misfit("range", place)
        return made

    return convert


def _date(place: str) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not str or not DATE.fullmatch(value):
            raise Misfit("type", place)
        try:
            return date.fromisoformat(value).toordinal() - EPOCH_DAY
        except ValueError:
            raise Misfit("range", place) from None

    return convert


def _moment(place: str) -> Convert:
    """Returns the converter of RFC 3339, also without a zone, which is UTC then."""

    def convert(value: Any) -> int:
        found = MOMENT.fullmatch(value) if type(value) is str else None
        if found is None:
            raise Misfit("type", place)
        zone = found[4] or "Z"
        try:
            micros = (datetime.fromisoformat(f"{found[1]}T{found[2]}") - EPOCH) // MICROSECOND
            if zone not in {"Z", "z"}:
                hours, minutes = int(zone[1:3]), int(zone[4:])
                if hours > 23 or minutes > 59:
                    raise Misfit("range", place)
                micros -= (hours * 60 + minutes) * 60_000_000 * (-1 if zone[0] == "-" else 1)
        except ValueError:
            raise Misfit("range", place) from None
        return must_be_a_year(micros + int((found[3] or "0").ljust(6, "0")[:6]), place)

    return convert


def _epoch(unit: str, place: str) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int:
            made = value // 1_000 if unit == "epoch-ns" else value * PER_UNIT[unit]
        elif type(value) in {float, Decimal}:
            exact = Decimal(value)
            if not exact.copy_abs() < EPOCH_MAX:  # abs() overflows for a large exponent
                raise Misfit("range", place)
            made = int(
                ROUNDED.divide(exact, Decimal(1_000)).__floor__()
                if unit == "epoch-ns"
                else ROUNDED.multiply(exact, Decimal(PER_UNIT[unit])).__round__()
            )
        else:
            raise Misfit("type", place)
        return must_be_a_year(made, place)

    return convert


def must_be_a_year(micros: int, place: str) -> int:
    """Returns a moment in microseconds. Raises Misfit unless it is in the years 1 to 9999, which all readers have."""
    if not MICROS[0] <= micros <= MICROS[1]:
        raise Misfit("range", place)
    return micros
