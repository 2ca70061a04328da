"""The leader's newest snapshot, as it leaves a folder and as it comes into another one.

It is one file: the owner's state and the queues' ranges. Timers stay at home (`evenq.store.snapshot_copy` says why).
Files are read and written by worker threads.
"""

from __future__ import annotations

import asyncio

from evenq.errors import NotFound, StoreCorrupted
from evenq.store import snapshot_copy
from evenq.store.disk import Disk
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing

__all__ = ["FolderSnapshots", "IncomingSnapshot"]

BYTES_MAX = 256 << 20


class FolderSnapshots:
    """A SnapshotSource: what peers may fetch."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._name, self._data = "", b""
        """The file that was read last: it is sent piece by piece."""

    async def newest(self) -> SnapshotListing | None:
        """See SnapshotSource."""
        found = await asyncio.to_thread(snapshot_copy.newest, self._disk)
        if found is None:
            return None
        return SnapshotListing(found.log_offset, found.log_start, (SnapshotFile(found.path, found.size),))

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


class IncomingSnapshot:
    """A SnapshotSink in memory; `install` keeps what came."""

    def __init__(self, disk: Disk, *, origin: str) -> None:
        self._disk, self._origin = disk, origin
        self._parts: list[bytes] = []

    async def begin(self, listing: SnapshotListing) -> None:
        """See SnapshotSink. Raises StoreCorrupted."""
        size = sum(file.size for file in listing.files)
        if len(listing.files) != 1 or size > BYTES_MAX:
            raise StoreCorrupted(
                f"{self._origin} has a snapshot of {len(listing.files)} files with {size} bytes; one of at most "
                f"{BYTES_MAX} bytes can be copied"
            )

    async def write(self, name: str, offset: int, data: bytes) -> None:
        """See SnapshotSink."""
        del name, offset
        self._parts.append(data)

    async def done(self) -> None:
        """See SnapshotSink."""

    async def install(self) -> None:
        """Put it into the folder, whole or not at all. Raises StoreCorrupted, OSError."""
        data = b"".join(self._parts)
        await asyncio.to_thread(snapshot_copy.install, self._disk, data, origin=self._origin)
