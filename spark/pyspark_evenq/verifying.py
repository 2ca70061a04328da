"""Who compares the checksums of stored records: a worker that can, else the broker.

Called by `scanning`, which knows it without numpy and pyarrow, and by `records`.
"""

from __future__ import annotations

from importlib.util import find_spec

from evenq.errors import InternalError

__all__ = ["RecordChecksumMismatch", "can_verify"]


class RecordChecksumMismatch(InternalError):
    """A record does not fit its checksum. Asked to check it itself, the broker names the file."""


def can_verify() -> bool:
    """Whether this process can (the package crc32c is there)."""
    return find_spec("crc32c") is not None
