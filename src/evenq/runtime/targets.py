"""Targets that backups and tables are written to: a folder, or a URL of fsspec."""

from __future__ import annotations

import errno
from typing import Final

from evenq.errors import StoreError, StoreFull

SCHEME: Final = "://"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_remote(text: str) -> bool:
    """Returns whether a target is a URL and not a folder of this machine."""
    return SCHEME in text


def failed(place: str, error: OSError) -> StoreError:
    """Returns the error for a failed access to a target."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return StoreFull(
            f"{place} cannot be written: {reason}; free space and run it again, it continues where it stopped"
        )
    return StoreError(f"{place} cannot be used: {reason}")
