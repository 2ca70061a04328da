"""Types of option values. All but `moment_ms` raise ArgumentTypeError; argparse prints it with the option's name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from evenq.errors import BadRequest

WHOLE_MAX = (1 << 31) - 1
"""Maximum of whole numbers on the wire."""
OFFSET_MAX = (1 << 63) - 1
"""Maximum of offsets and times on the wire."""
DURATION_MS_MAX = 1_000_000_000 * 86_400_000
"""A duration fits on the wire, also when it is added to the time of a message."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DIGITS_MAX = 1_000
"""More than any valid number has; `int` raises ValueError for 4,300 and more."""
_AGE = re.compile(r"(\d+)\s*(s|m|h|d)(?:\s+ago)?")


def natural(text: str) -> int:
    """Returns a whole number of 0 or more."""
    return _whole(text, 0, WHOLE_MAX)


def positive(text: str) -> int:
    """Returns a whole number of 1 or more."""
    return _whole(text, 1, WHOLE_MAX)


def between(least: int, most: int) -> Callable[[str], int]:
    """Returns the parser of a whole number in this range."""
    return lambda text: _whole(text, least, most)


def _whole(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is below {least}")
    if value > most:
        raise argparse.ArgumentTypeError(f"{value} is above {most}")
    return value


def duration_ms(text: str) -> int:
    """Returns ms for `500ms`, `10s`, `5m`, `2h`, `1d`."""
    unit = next((unit for unit in _UNIT_MS if text.endswith(unit) and text[: -len(unit)].isdecimal()), None)
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 500ms, 10s, 5m, 2h or 1d")
    number = text[: -len(unit)]
    if len(number) > DIGITS_MAX or int(number) * _UNIT_MS[unit] > DURATION_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text:.80} is above {duration_text(DURATION_MS_MAX)}")
    return int(number) * _UNIT_MS[unit]


def duration_text(ms: int) -> str:
    """Returns the text of a duration in the largest unit that is exact."""
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"


def moment_ms(text: str, *, now_ms: int) -> int:
    """Returns ms since the epoch of `now`, an age (`90m`), ISO 8601 (local by default) or ms. Raises BadRequest."""
    stripped = text.strip()
    if stripped == "now":
        return now_ms
    age = _AGE.fullmatch(stripped)
    try:
        if age is not None:
            return max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]])
        if not stripped.isdecimal():
            return max(0, int(datetime.fromisoformat(stripped).astimezone().timestamp() * 1000))
        moment = int(stripped)
    except (ValueError, OverflowError) as error:  # also of a number with thousands of digits
        raise BadRequest(
            f"{text!r:.80} is not a time: write an age (30s, 90m, 2h, 7d), ISO 8601 (2026-01-31T08:00) or ms since the "
            "epoch"
        ) from error
    if moment > OFFSET_MAX:
        raise BadRequest(f"the time {text!r:.80} is above {OFFSET_MAX} ms since the epoch; write a date or an age")
    return moment


def future_ms(text: str, *, now_ms: int) -> int:
    """Returns ms since the epoch of a time that is not over: ISO 8601 (local by default) or ms. Raises BadRequest."""
    stripped = text.strip()
    if _AGE.fullmatch(stripped):
        raise BadRequest(f"{text!r} is a duration, not a time; give it to --delay")
    moment = moment_ms(stripped, now_ms=now_ms)
    if moment < now_ms:
        when = datetime.fromtimestamp(moment / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
        raise BadRequest(f"{text!r} is in the past ({when}); give a later time, or leave it out to deliver immediately")
    return moment


def place(text: str) -> str:
    """Returns a folder or URL. Rejects an empty one (often an unset shell variable): it would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; give a folder or a URL, or `.` for the current folder")
    return text


def folder(text: str) -> Path:
    return Path(place(text))
