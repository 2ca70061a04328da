"""`offsets.json`: progress of every group, and the engine's state of its files (LQ-50, LQ-51).

It is written to a new file, synced and renamed, so a crash leaves the old or the new one. A checksum of the state comes
first: progress is never read from a damaged file.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.disk import Disk, read_whole, write_whole

PATH: Final = "offsets.json"
FORMAT: Final = 1


def save(disk: Disk, state: dict[str, Any]) -> None:
    text = _text({"format": FORMAT, **state})
    write_whole(disk, PATH, f'{{"crc32": {zlib.crc32(text)}, "state": '.encode() + text + b"}\n")


def load(disk: Disk) -> dict[str, Any] | None:
    """Returns the newest state; None if there is none. Raises StoreCorrupted, StoreError (another format)."""
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
            f"{disk.describe(PATH)} at byte 0: its checksum is wrong; restore it from a copy, or remove it: every "
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
