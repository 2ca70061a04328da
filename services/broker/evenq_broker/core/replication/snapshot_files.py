"""Files of a snapshot on their way between the brokers of a group: which may be sent, and which are accepted.

A follower that is new, or whose log can no longer be matched, begins with the leader's newest snapshot. The names of
its files come from another process and become paths below the data folder, so they are checked first. Each is one of
the two known folders and one plain name. Pure; `rpc.replication` sends, `loops.replication.snapshot_fetch` receives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

# Not the queues' files: they hold 20 bytes a message and are rebuilt from the log (decision 60).
SNAPSHOT_FOLDERS = ("snapshot", "timers")
FILES_MAX = 10_000
FILE_BYTES_MAX = 1 << 44
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}(\.[0-9A-Za-z_-]{1,20})?")
"""One name without a slash, with at most one dot inside: neither `.`, `..` nor a hidden file."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    name: str  # relative to the data folder: `snapshot/FILE` or `timers/FILE`
    size: int  # Bytes


@dataclass(frozen=True, slots=True)
class SnapshotListing:
    """A snapshot and the files that belong to it."""

    log_offset: int  # log offset up to which it has the state
    log_start: int  # start of the log
    files: tuple[SnapshotFile, ...]  # in the order in which they are sent


class SnapshotSource(Protocol):
    """Source of the files: the store of a leader. Neither call may block the loop."""

    async def newest(self) -> SnapshotListing | None:
        """Returns the newest complete snapshot; None: there is none yet."""
        ...

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes of a listed file. Raises NotFound if a newer snapshot has replaced it."""
        ...


class SnapshotSink(Protocol):
    """Destination of the files: a folder of a follower that is not its data folder yet. Its content is of use only
    after `done`; after an error before that its owner empties it.
    """

    async def begin(self, listing: SnapshotListing) -> None:
        """Begins with a listing whose names are checked. The first call, once."""
        ...

    async def write(self, name: str, offset: int, data: bytes) -> None:
        """Writes bytes of one file after the other, each from 0 up without a gap; an empty file gets one call."""
        ...

    async def done(self) -> None:
        """Ends: every file is complete, and its checksum fits. The last call."""
        ...


def name_fault(name: str) -> str:
    """Returns why a name must not become a path, as a sentence; empty: it may."""
    folder, slash, file = name.partition("/")
    if folder in SNAPSHOT_FOLDERS and slash and _FILE.fullmatch(file):
        return ""
    known = " or ".join(f"{folder}/FILE" for folder in SNAPSHOT_FOLDERS)
    return (
        f"{name[:120]!r} is not a file of a snapshot: its name is {known}, FILE of letters, digits, '_', '-' and a dot"
    )


def listing_fault(listing: SnapshotListing) -> str:
    """Returns why a listing cannot be sent or accepted, as a sentence; empty: it can."""
    if not 0 <= listing.log_start <= listing.log_offset:
        return f"a snapshot at {listing.log_offset} of a log that begins at {listing.log_start}"
    if not 1 <= len(listing.files) <= FILES_MAX:
        return f"a snapshot of {len(listing.files)} files; it has 1 to {FILES_MAX}"
    if len({file.name for file in listing.files}) != len(listing.files):
        return "a snapshot that names a file twice"
    for file in listing.files:
        fault = name_fault(file.name)
        if fault:
            return fault
        if not 0 <= file.size <= FILE_BYTES_MAX:
            return f"{file.name} with {file.size} bytes; a file has 0 to {FILE_BYTES_MAX}"
    return ""
