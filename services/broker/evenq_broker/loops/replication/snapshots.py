"""The leader's newest snapshot, as it leaves one folder and enters another one.

It is one file: the owner's state and the queues' ranges, without timers (`evenq.store.copies.snapshot_copy` has the
reason). Worker threads read and write files.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from evenq.errors import NotFound, StoreCorrupted
from evenq.store.copies import snapshot_copy
from evenq.store.io.disk import Disk
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing

BYTES_MAX = 256 << 20


class FolderSnapshots:
    """A SnapshotSource: the snapshots that peers may fetch."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._name, self._data = "", b""
        """The file that was read last, because it is sent in pieces."""

    async def newest(self) -> SnapshotListing | None:
        """See SnapshotSource."""
        newest = await asyncio.to_thread(snapshot_copy.newest, self._disk)
        if newest is None:
            return None
        return SnapshotListing(newest.log_offset, newest.log_start, (SnapshotFile(newest.path, newest.size),))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """See SnapshotSource."""
        if name != self._name or offset == 0:
            try:
                self._name, self._data = name, await asyncio.to_thread(snapshot_copy.read, self._disk, name)
            except StoreCorrupted as error:
                raise NotFound(error.message) from error
        data = self._data[offset : offset + size]
        if offset + size >= len(self._data):
            self._name, self._data = "", b""
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSnapshot:
    """Snapshot of a peer."""

    log_offset: int
    """It holds all before."""
    log_start: int
    """Start of the peer's log."""
    origin: str
    """Address of the peer."""
    data: bytes = b""
    """The file; empty: it was not requested."""


class IncomingSnapshot:
    """A SnapshotSink in memory, for a snapshot that lies behind the log offset `after`, and not behind `until`."""

    def __init__(self, *, origin: str, after: int, until: int) -> None:
        self._origin, self._after, self._until = origin, after, until
        self._parts: list[bytes] = []
        self._listing: SnapshotListing | None = None

    @property
    def known(self) -> FetchedSnapshot | None:
        """The received snapshot, whole or without data; None: nothing was received."""
        listing = self._listing
        if listing is None:
            return None
        data = b"".join(self._parts)
        whole = len(data) == sum(file.size for file in listing.files)
        return FetchedSnapshot(
            log_offset=listing.log_offset,
            log_start=listing.log_start,
            origin=self._origin,
            data=data if whole else b"",
        )

    async def begin(self, listing: SnapshotListing) -> None:
        """See SnapshotSink. Raises StoreCorrupted, and NotFound if it is not wanted."""
        size = sum(file.size for file in listing.files)
        if len(listing.files) != 1 or size > BYTES_MAX:
            raise StoreCorrupted(
                f"{self._origin} has a snapshot of {len(listing.files)} files with {size} bytes; one of at most "
                f"{BYTES_MAX} bytes can be copied"
            )
        self._listing = listing
        if not self._after < listing.log_offset <= self._until:
            raise NotFound(f"the snapshot of {self._origin} at {listing.log_offset} is not wanted")

    async def write(self, name: str, offset: int, data: bytes) -> None:
        """See SnapshotSink."""
        del name, offset
        self._parts.append(data)

    async def done(self) -> None:
        """See SnapshotSink."""
