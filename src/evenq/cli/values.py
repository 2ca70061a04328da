"""Values of options: whole numbers, durations, points in time, folders and URLs.

All but `moment_ms` raise ArgumentTypeError, which argparse shows with the option's name.
"""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from pathlib import Path

from evenq.errors import BadRequest

__all__ = ["WHOLE_MAX", "duration_ms", "duration_text", "folder", "moment_ms", "natural", "place", "positive"]

WHOLE_MAX = (1 << 31) - 1
"""Maximum of counts and numbers on the wire."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"(\d+)\s*(s|m|h|d)(?:\s+ago)?")


def natural(text: str) -> int:
    """A whole number of 0 or more."""
    return _whole(text, least=0)


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    return _whole(text, least=1)


def _whole(text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is below {least}")
    if value > WHOLE_MAX:
        raise argparse.ArgumentTypeError(f"{value} is above {WHOLE_MAX}")
    return value


def duration_ms(text: str) -> int:
    """A duration in ms: `500ms`, `10s`, `5m`, `2h`, `1d`."""
    unit = next((unit for unit in _UNIT_MS if text.endswith(unit) and text[: -len(unit)].isdecimal()), None)
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 500ms, 10s, 5m, 2h or 1d")
    return int(text[: -len(unit)]) * _UNIT_MS[unit]


def duration_text(ms: int) -> str:
    """The same back, in the largest unit that is exact."""
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"


def moment_ms(text: str, *, now_ms: int) -> int:
    """Ms since the epoch of an age (`90m`: 90 minutes ago), of ISO 8601 (local time without an offset), or of such a
    number. Raises BadRequest.
    """
    stripped = text.strip()
    if stripped == "now":
        return now_ms
    age = _AGE.fullmatch(stripped)
    if age is not None:
        return max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]])
    if stripped.isdecimal():
        return int(stripped)
    try:
        return max(0, int(datetime.fromisoformat(stripped).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"{text!r} is not a time: write an age (30s, 90m, 2h, 7d), ISO 8601 (2026-01-31T08:00) or ms since the "
            "epoch"
        ) from error


def place(text: str) -> str:
    """A folder or a URL. An empty one is mostly a shell variable that is not set, and would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; name a folder or a URL, or `.` for the folder that you are in")
    return text


def folder(text: str) -> Path:
    """A folder."""
    return Path(place(text))
