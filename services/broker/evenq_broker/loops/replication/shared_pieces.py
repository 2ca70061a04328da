"""Pieces of a leader's log for its followers, read from the files beside the store that writes them.

Called by `ReplicaLog` for records that a follower lacks and that are not in memory any more. Files stay open between
reads and show the log only while it is not cut: `renew` is called before each term.
"""

from __future__ import annotations

import asyncio

from evenq.runtime.tasks import outlasting, spawn
from evenq.store.io.jobs import Jobs
from evenq.store.log.log_pieces import LogPieces


class SharedPieces:
    """Reads the log's files on a thread of its own; one read serves followers that need the same piece."""

    def __init__(self, pieces: LogPieces) -> None:
        self._pieces = pieces
        self._jobs = Jobs(threads=1, name="evenq-replication-read", threaded=True)
        self._under_way: dict[tuple[int, int, int], asyncio.Task[bytes]] = {}

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """See Pieces."""
        wanted = (start, end, bytes_max)
        reading = self._under_way.get(wanted)
        if reading is None:
            job = self._jobs.run(lambda: self._pieces.read(start, end, bytes_max))
            reading = self._under_way[wanted] = spawn(job, name=f"records from {start} on")
            reading.add_done_callback(lambda done: self._forget(wanted, done))
        return await outlasting(reading)

    async def record_before(self, end: int) -> tuple[int, int] | None:
        """See Pieces."""
        return await self._jobs.run(lambda: self._pieces.record_before(end))

    def renew(self) -> None:
        """Reads from files opened anew from now on: the log may have changed."""
        self._under_way.clear()
        self._pieces.renew()

    def _forget(self, wanted: tuple[int, int, int], done: asyncio.Task[bytes]) -> None:
        if self._under_way.get(wanted) is done:
            del self._under_way[wanted]

    def close(self) -> None:
        """Closes the files."""
        self._jobs.close()
        self._pieces.close()
