"""Files of the pictures in the docs.

`EVENQ_TEST_PICTURES=docs` writes them to `docs/pictures`; otherwise the same scenes are only shown, so that they stay
possible.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.console.conftest import BUILD

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs" / "pictures"
FOR_DOCS = os.environ.get("EVENQ_TEST_PICTURES") == "docs"
WIDTH = 1_280


def picture(name: str) -> Path:
    """Returns the path of a new picture."""
    folder = COMMITTED if FOR_DOCS else BUILD / "console-pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png"


def width_of(file: Path) -> int:
    """Returns the width of a PNG in pixels. Raises AssertionError if it is not a PNG."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n", file.name
    width: int = struct.unpack(">I", head[16:20])[0]
    return width
