"""Targets of the project's makefiles."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAKEFILES = (ROOT / "Makefile", ROOT / "tools" / "campaigns.mk")


def make_targets() -> set[str]:
    return {name for path in MAKEFILES for name in re.findall(r"^([a-z-]+):", path.read_text(), re.MULTILINE)}
