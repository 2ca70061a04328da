"""Ledgers of long runs: a table in Markdown, a line per run."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def say(text: str) -> None:
    """What happens now."""
    sys.stderr.write(f"{dt.datetime.now(tz=dt.UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()


def today() -> str:
    return dt.datetime.now(tz=dt.UTC).date().isoformat()


def commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def append_row(path: Path, head: str, cells: Sequence[str]) -> None:
    """Adds one line to the ledger, which is begun with `head` if it is not there."""
    if not path.exists():
        path.write_text(head, encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"| {' | '.join(cells)} |\n")
