"""Checksums of stored records: a worker compares them if it can, otherwise the broker does.

Called by `records`, and by `scanning` before numpy and pyarrow are imported.
"""

from __future__ import annotations

from importlib.util import find_spec

from evenq.errors import InternalError


class RecordChecksumMismatch(InternalError):
    """A record does not match its checksum. A scan that the broker checks itself returns the damaged file."""


def can_verify() -> bool:
    """Returns whether this process can compare checksums (the package crc32c is installed)."""
    return find_spec("crc32c") is not None
