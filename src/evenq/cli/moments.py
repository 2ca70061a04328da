"""Times as people write them on the command line."""

from __future__ import annotations

import re
from datetime import datetime

from evenq.errors import BadRequest

__all__ = ["moment_ms"]

_AGE = re.compile(r"(\d+)\s*(s|m|h|d)(?:\s+ago)?")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment_ms(text: str, *, now_ms: int) -> int:
    """Ms since the epoch of an age (`90m`: 90 minutes ago), of ISO 8601 (local unless it says), or of such a number.

    Raises BadRequest.
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
            f"{text!r} is no time: write an age (30s, 90m, 2h, 7d), ISO 8601 (2026-01-31T08:00) or ms since the epoch"
        ) from error
