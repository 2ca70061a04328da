"""Whole numbers of the command line. Both functions raise ArgumentTypeError, which argparse shows with the option's
name.
"""

from __future__ import annotations

import argparse

__all__ = ["WHOLE_MAX", "natural", "positive"]

WHOLE_MAX = (1 << 31) - 1
"""What the wire carries of counts and numbers."""


def natural(text: str) -> int:
    """0 or more."""
    return _whole(text, least=0)


def positive(text: str) -> int:
    """1 or more."""
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
