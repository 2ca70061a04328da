"""`evenq.v1.Backup`: a new snapshot, and the log up to it, for `evenq backup create`.

A thread reads the log piece by piece, at the rate of the request and no faster than the caller receives. Parts that are
not read yet are protected from retention (`evenq.store.log.log_holds`). The bytes are sent unchanged: the receiver
checks every record. The leader serves a broker group.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Final

from crc32c import crc32c

from evenq.errors import BadRequest, NotFound, PreconditionFailed
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.store.copies.backup_side import LogBytes
from evenq.store.io.jobs import Jobs
from evenq.store.log.log_holds import LogHold
from evenq.wire.stubs.evenq.v1 import backup_pb2 as pb
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

PIECE_BYTES: Final = 1 << 20
PIECE_BYTES_MIN: Final = 16 << 10
TURNS_PER_SECOND: Final = 8
"""Fewest pieces a second with a rate, so that the stream is even."""


def rpcs(kernel: Kernel) -> list[Rpc]:
    return [rpc("/evenq.v1.Backup/Fetch", _Backups(kernel).fetch)]


class _Backups:
    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._ledger = kernel.runtime, kernel.ledger

    async def fetch(self, data: bytes, _context: RpcContext) -> AsyncGenerator[bytes, None]:
        request = parsed(pb.FetchBackupRequest, data)
        self._check(request)
        store, hold_ms = self._ledger.store, self._runtime.settings.backup_hold_ms
        reading = _Reading(store.log_bytes(), Jobs(threads=1, name="evenq-backup", threaded=store.blocks))
        hold: LogHold | None = None
        try:
            snapshot = b""
            if request.end:
                hold = await store.hold_log(hold_ms=hold_ms)
                head = self._head(hold.log_offset, request.end)
                if not hold.log_offset <= request.start < request.end <= store.stats.log_synced:
                    raise PreconditionFailed(
                        f"broker {head.broker_name} has its log from {hold.log_offset} to {store.stats.log_synced} on "
                        f"disk, but {request.start} to {request.end} is requested"
                    )
            else:
                backup = await store.begin_backup(hold_ms=hold_ms)
                hold, snapshot = backup.hold, backup.snapshot
                head = self._head(backup.log_start, backup.end)
                head.snapshot_offset, head.snapshot_bytes = backup.snapshot_offset, len(snapshot)
                del backup
            head.start = max(request.start, head.log_start)
            head.compared = await self._compared(request, head, reading)
            hold.log_offset = head.start
            pace = _Pace(self._runtime, request.bytes_per_second)
            yield pb.BackupPiece(head=head).SerializeToString()
            for at in range(0, len(snapshot), PIECE_BYTES):
                piece = snapshot[at : at + PIECE_BYTES]
                await pace.spend(len(piece))
                yield pb.BackupPiece(snapshot=piece).SerializeToString()
            del snapshot
            async for piece in reading.pieces(head.start, head.end, pace.piece_bytes):
                await pace.spend(len(piece))
                yield pb.BackupPiece(log=piece).SerializeToString()
                hold.log_offset += len(piece)
        finally:
            if hold is not None:
                store.release_log(hold)
            reading.close()

    def _check(self, request: pb.FetchBackupRequest) -> None:
        settings = self._runtime.settings
        if request.broker_name != settings.broker_name:
            raise NotFound(
                f"this is broker {settings.broker_name}, but a backup of {request.broker_name!r:.120} is requested"
            )
        if request.cluster and request.cluster != settings.cluster:
            raise PreconditionFailed(
                f"the backup is of cluster {request.cluster!r:.120}, but broker {settings.broker_name} belongs to "
                f"cluster {settings.cluster!r}: give each cluster its own target"
            )
        if not 0 <= request.compare_from <= request.start or min(request.bytes_per_second, request.end) < 0:
            raise BadRequest(
                f"compare_from {request.compare_from}, start {request.start}, end {request.end}, bytes_per_second "
                f"{request.bytes_per_second}: none may be negative, and compare_from must not be above start"
            )

    def _head(self, log_start: int, end: int) -> pb.BackupHead:
        runtime, identity = self._runtime, self._ledger.store.identity
        settings = runtime.settings
        return pb.BackupHead(
            cluster=settings.cluster,
            broker_name=settings.broker_name,
            store_id=identity.store_id,
            segment_bytes=identity.segment_bytes,
            epoch=runtime.leadership.epoch,
            log_start=log_start,
            end=end,
            now_ms=runtime.clock.now_ms(),
        )

    async def _compared(self, request: pb.FetchBackupRequest, head: pb.BackupHead, reading: _Reading) -> bool:
        """Returns True if the backup's newest bytes are in this log; False: not compared. Raises PreconditionFailed."""
        if request.start > head.end:
            raise self._another(request, f"its log ends at {head.end}")
        if request.compare_from == request.start or request.compare_from < head.log_start:
            return False
        crc = 0
        async for piece in reading.pieces(request.compare_from, request.start, PIECE_BYTES):
            crc = crc32c(piece, crc)
        if crc != request.compare_crc32c:
            raise self._another(request, f"its log holds other bytes from {request.compare_from} on")
        return True

    def _another(self, request: pb.FetchBackupRequest, why: str) -> PreconditionFailed:
        name = self._runtime.settings.broker_name
        return PreconditionFailed(
            f"the backup holds the log of broker {name} up to {request.start}, but this broker's log is another one "
            f"({why}): its folder was replaced, repaired or restored since. Use a new target"
        )


class _Reading:
    def __init__(self, log: LogBytes, jobs: Jobs) -> None:
        self._log, self._jobs = log, jobs

    async def pieces(self, position: int, end: int, bytes_max: int) -> AsyncIterator[bytes]:
        """Yields the log from `position` to `end`. Raises StoreError, StoreCorrupted."""
        while position < end:
            piece = await self._jobs.run(partial(self._log.read, position, end, bytes_max))
            position += len(piece)
            yield piece

    def close(self) -> None:
        self._jobs.close()
        self._log.close()


class _Pace:
    def __init__(self, runtime: Runtime, bytes_per_second: int) -> None:
        self._clock, self._rate = runtime.clock, bytes_per_second
        self._begun_ms, self._spent = self._clock.monotonic_ms(), 0
        wanted = bytes_per_second // TURNS_PER_SECOND if bytes_per_second else PIECE_BYTES
        self.piece_bytes = min(PIECE_BYTES, max(PIECE_BYTES_MIN, wanted))

    async def spend(self, size: int) -> None:
        """Waits until `size` more bytes may be sent."""
        if self._rate:
            due_ms = self._begun_ms + self._spent * 1000 // self._rate
            await self._clock.sleep_ms(max(0, due_ms - self._clock.monotonic_ms()))
            self._spent += size
