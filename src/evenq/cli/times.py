"""Durations as options write them: 500ms, 10s, 5m, 2h, 1d."""

from __future__ import annotations

import argparse

__all__ = ["duration_ms", "duration_text"]

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """An option's value in ms. Raises ArgumentTypeError."""
    unit = next((unit for unit in _UNIT_MS if text.endswith(unit) and text[: -len(unit)].isdecimal()), None)
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 500ms, 10s, 5m, 2h or 1d")
    return int(text[: -len(unit)]) * _UNIT_MS[unit]


def duration_text(ms: int) -> str:
    """The same back, in the largest unit that is exact."""
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"
