"""`offsets.json`: how far every group is, and what an engine knows of its files (LQ-50, LQ-51).

Written whole, beside, synced and renamed, so that a crash leaves the old one or the new one. A checksum of the state
stands in front of it: progress is never read from a damaged file.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.disk import Disk, read_whole, write_whole

__all__ = ["PATH", "load", "save"]

PATH: Final = "offsets.json"
FORMAT: Final = 1


def save(disk: Disk, state: dict[str, Any]) -> None:
    """Replace the file."""
    text = _text({"format": FORMAT, **state})
    write_whole(disk, PATH, f'{{"crc32": {zlib.crc32(text)}, "state": '.encode() + text + b"}\n")


def load(disk: Disk) -> dict[str, Any] | None:
    """The newest state; None if there is none. Raises StoreCorrupted for damage, StoreError for another format."""
    data = read_whole(disk, PATH)
    if data is None:
        return None
    try:
        whole = json.loads(data)
        state = whole["state"]
        fits = whole["crc32"] == zlib.crc32(_text(state))
        version = state["format"]
    except (ValueError, KeyError, TypeError, UnicodeError, RecursionError):
        fits, state, version = False, {}, FORMAT
    if not fits:
        raise StoreCorrupted(
            f"{disk.describe(PATH)} at byte 0: its checksum does not fit; restore it from a copy, or remove it: every "
            "group then starts at the first message"
        )
    if version != FORMAT:
        raise StoreError(
            f"{disk.describe(PATH)} has format {version}; this program reads format {FORMAT}: start a newer program"
        )
    assert isinstance(state, dict)
    return state


def _text(state: Any) -> bytes:
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
