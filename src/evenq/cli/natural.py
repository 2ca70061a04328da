"""Whole numbers of the command line."""

from __future__ import annotations

import argparse

__all__ = ["natural"]


def natural(text: str) -> int:
    """0 or more. Raises ArgumentTypeError, which argparse shows with the option's name."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value
