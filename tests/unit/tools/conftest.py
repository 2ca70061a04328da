"""The programs of tools/, which is not a package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from evenq_proofs.programs_by_path import load_program

ROOT = Path(__file__).resolve().parents[3]


def load_tool(name: str) -> ModuleType:
    """The module `tools/NAME.py`; other tools may import it by its name from then on."""
    return load_program(ROOT / "tools" / f"{name}.py")
