"""Places on the command line. Both functions raise ArgumentTypeError, which argparse shows with the option's name.

An empty one is mostly a shell's variable that is not set, and would be the folder in which the command runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["folder", "place"]


def place(text: str) -> str:
    """A folder or a URL."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; name a place, or `.` for the folder that you are in")
    return text


def folder(text: str) -> Path:
    """A folder."""
    return Path(place(text))
