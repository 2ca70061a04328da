"""The demo: a year of flights passes through a real cluster, and every figure is compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["part_command", "part_environment"]


def part_command(*arguments: str) -> list[str]:
    """Returns the command of a process that runs one part of the demo."""
    return [sys.executable, "-m", "flight_demo", *arguments]


def part_environment() -> dict[str, str]:
    """Returns the environment of such a process, with this package in its import path."""
    folders = (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
