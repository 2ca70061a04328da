"""Repair of records that the disk damaged: they are fetched from another copy and written in place (promise D2,
decision 78).

A reader that meets damage calls `repair`, waits, and reads again. Readers are those of a leader's store and of a
follower's view, the replay of a follower, and reads for followers. The file is scanned from its begin. Each damaged
part below the committed end is requested from one copy after the other, until bytes come that are whole and fit between
their neighbours: same epoch and offset are the same bytes on all copies (I4). `given` is the other side.

Bounds: one file is scanned at a time, and `WAITING_MAX` wait. A part has `PART_BYTES_MAX`. A file is scanned once in
`REST_MS`, unless a part of it was repaired. Each copy is queried once for a part. Belongs to one loop; its own thread
reads files, the folder's owner writes them. Nothing is written that `log_damage.fault_of` rejects. Parts at or behind
the committed end are requested and written only by a start (decision 87) and before a cut (decision 94). They are given
only by a leader, or below a record that both logs have (decision 95).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from evenq.errors import BadRequest, Error, HaNotAvailable, NotFound, StoreCorrupted, StorePoisoned
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net, frames_within
from evenq.runtime.tasks import done_within, spawn
from evenq.store.copies import epoch_file
from evenq.store.copies.copy_repair import end_of_file, rewrite_unopened
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import log_damage
from evenq.store.log.last_record import crc_of_record_at
from evenq.store.log.log_damage import DamagedPart, LogScan
from evenq.store.log.record import HEADER_BYTES
from evenq.store.log.segment import path_of, segment_of
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.loops.wire.records import WantedRecords, ask_records, data_of
from evenq_broker.loops.wire.replication import RECORDS_BYTES_MAX, LinkOpening

log = logging.getLogger(__name__)

WAIT_MS = 5_000
"""Longest wait of a read that met damage, ms; the repair continues."""
REST_MS = 10_000
"""Between two scans of a file with a part that could not be repaired."""
CLEAN_MS = 1_000
"""Between two scans of a whole file: the reader reported damage wrongly."""
START_MS = 15_000
"""How long a start queries copies that cannot report yet what is committed."""
START_PAUSE_MS = 1_000
WAITING_MAX = 16
PART_BYTES_MAX = RECORDS_BYTES_MAX
PARTS_MAX = 1_000
"""Of one scan of a file."""
FAILURES_NAMED = 3
BROKEN = "the bytes written there were read back differently: the disk is broken"

Ask = Callable[[int, WantedRecords], Awaitable[bytes]]
"""Returns a part of the log of a copy, by its broker id, unchecked. Raises Error."""


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """Present knowledge of the log."""

    end: int
    """All below is committed."""
    table: EpochTable
    led_end: int = 0
    """While this copy leads: the end of its log, which is the log of its epoch; otherwise 0."""
    matched_end: int = 0
    """Place of a running cut to the leader's log, which has the same records below (R4); otherwise 0."""

    @property
    def repaired_end(self) -> int:
        """Damage below is repaired while this copy runs."""
        return max(self.end, self.matched_end)


@dataclass(slots=True)
class _FileLook:
    """Result of one scan of a file."""

    ended_ms: int = 0
    repaired: int = 0
    failures: list[tuple[DamagedPart, str]] = field(default_factory=list)

    @property
    def rest_ms(self) -> int:
        """How long the result stays valid."""
        return REST_MS if self.failures else CLEAN_MS

    def failure_at(self, log_offset: int) -> str:
        """Returns why damage there, or elsewhere in the file, was not repaired; empty: all of it was."""
        here = [reason for part, reason in self.failures if part.start <= log_offset < part.end]
        return "; ".join((here or [reason for _, reason in self.failures])[:FAILURES_NAMED])


class RecordRepair:
    """Repair of one log. It is a `Repairs` of the store and a `RecordSource` of the calls."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        *,
        known: Callable[[], CommittedLog],
        copies: Callable[[], list[int]],
        ask: Ask,
        write: Callable[[int, bytes], Awaitable[None]],
        clock: Clock,
        group: str,
    ) -> None:
        """`copies`: the other copies, in the order of queries. `write` puts records in place by the folder's owner."""
        self._disk, self._segment_bytes = disk, segment_bytes
        self._known, self._copies, self._ask, self._write = known, copies, ask, write
        self._clock, self._group = clock, group
        self.records_repaired = 0
        self.parts_failed = 0
        """Damaged parts that no copy could replace; each scan that meets one counts."""
        self.version = 0
        self._jobs = Jobs(threads=1, name="evenq-repair", threaded=disk.blocks)
        self._one = asyncio.Lock()
        self._under_way: dict[int, asyncio.Task[_FileLook]] = {}
        self._walks: dict[int, _FileLook] = {}
        """Recent scans, by the start of the file."""
        self._closed = False

    # -- calls of readers ---------------------------------------------------------------------------------------------

    async def repair(self, error: StoreCorrupted, seen: int) -> bool:
        """See Repairs."""
        # Repaired since the read began, perhaps at this very place: another read is cheaper than a scan.
        if self.version != seen:
            return True
        log_offset = error.log_offset
        if self._closed or not 0 <= log_offset < self._known().repaired_end:
            return False
        walk = await self._walked(error)
        failure = walk.failure_at(log_offset)
        if self.version != seen and not failure:
            return True
        if not failure:
            return False
        raise StoreCorrupted(f"{error.message}; it could not be repaired: {failure}", log_offset=log_offset)

    async def _walked(self, error: StoreCorrupted) -> _FileLook:
        """Returns the scan of the damaged file. Raises StoreCorrupted: it takes long, or too many files wait."""
        start, _ = segment_of(error.log_offset, self._segment_bytes)
        now_ms = self._clock.monotonic_ms()
        self._walks = {one: walk for one, walk in self._walks.items() if now_ms - walk.ended_ms < walk.rest_ms}
        walk = self._walks.get(start)
        # A scan that repaired a part is not reused: a later reader met other damage.
        if walk is not None and not walk.repaired:
            return walk
        task = self._under_way.get(start)
        if task is None:
            if len(self._under_way) >= WAITING_MAX:
                raise StoreCorrupted(
                    f"{error.message}; {WAITING_MAX} files wait for their repair, read again",
                    log_offset=error.log_offset,
                )
            task = self._begin(start)
        if not await done_within(asyncio.shield(task), WAIT_MS, clock=self._clock):
            raise StoreCorrupted(
                f"{error.message}; its repair from another copy continues, read again", log_offset=error.log_offset
            )
        return task.result()

    def _begin(self, start: int) -> asyncio.Task[_FileLook]:
        task = self._under_way[start] = spawn(self._walk(start), name=f"repair of the log file at {start}")
        task.add_done_callback(lambda _: self._under_way.pop(start, None))
        return task

    # -- one file -----------------------------------------------------------------------------------------------------

    async def _walk(self, start: int) -> _FileLook:
        walk = _FileLook()
        async with self._one:
            try:
                scan = LogScan(self._disk, self._segment_bytes, start, self._known().repaired_end)
                await self._walk_through(scan, walk)
            except FileNotFoundError:
                pass  # retention removed it
            except StorePoisoned:
                raise
            except (Error, OSError) as error:
                log.warning(
                    "replica %s: the log file at %d is not repaired: %s",
                    self._group,
                    start,
                    error,
                    extra={"broker": self._group, "log_offset": start},
                )
            finally:
                walk.ended_ms = self._clock.monotonic_ms()
                self._walks[start] = walk
        return walk

    async def _walk_through(self, scan: LogScan, walk: _FileLook) -> None:
        written = -1
        while not scan.done:
            part = await self._jobs.run(scan.step)
            if part is None:
                continue
            if part.start == written:
                failure = BROKEN
            else:
                failure = await self._mended(part, self._known().table, self._write)
            if failure:
                self._log_failure(part, failure)
                walk.failures.append((part, failure))
                scan.pass_over(part)
            else:
                walk.repaired, written = walk.repaired + 1, part.start
                scan.again(part)
            if len(walk.failures) >= PARTS_MAX:
                return

    async def _mended(
        self, part: DamagedPart, table: EpochTable, write: Callable[[int, bytes], Awaitable[None]]
    ) -> str:
        """Replaces a part; returns why that failed, or an empty text."""
        if part.size > PART_BYTES_MAX:
            return f"{part.size} bytes in a row are damaged, {PART_BYTES_MAX} can be fetched"
        reasons: list[str] = []
        best: tuple[int, bytes] | None = None
        # The rest of a file that no header fits in belongs to the epoch before or after it: tables differ in that.
        holds_record = -part.start % self._segment_bytes >= HEADER_BYTES or part.start % self._segment_bytes == 0
        epoch = table.epoch_at(part.start) if holds_record else 0
        crc_of_next = await self._jobs.run(lambda: crc_of_record_at(self._disk, self._segment_bytes, part.end))
        wanted = WantedRecords(part.start, part.end, epoch, crc_of_next)
        for copy in self._copies():
            try:
                data = await self._ask(copy, wanted)
            except Error as error:
                reasons.append(f"copy {copy}: {error.message}")
                continue
            fault = log_damage.fault_of(
                data, part, segment_bytes=self._segment_bytes, epoch_at=table.epoch_at, epochs=table.entries
            )
            if fault:
                reasons.append(f"copy {copy} sent other bytes than the log has there: {fault}")
                continue
            if best is None or len(data) > len(best[1]):
                best = copy, data
            # A copy that is damaged in the part, too, gives its begin. The next one may have all of it, and a block
            # that the disk lost can be written as a whole only.
            if len(data) == part.size:
                break
        if best is None:
            return "; ".join(reasons) or "there is no other copy to fetch them from"
        copy, data = best
        try:
            await write(part.start, data)
        except StorePoisoned:
            raise
        except Error as error:
            return error.message
        count = log_damage.count_records(data, part.start, segment_bytes=self._segment_bytes)
        # With each part and not at the scan's end: a reader of this part need not wait for the file.
        self.version += 1
        self.records_repaired += count
        self._log_repair(part, copy, count, len(data))
        return ""

    def _log_repair(self, part: DamagedPart, copy: int, count: int, size: int) -> None:
        log.warning(
            "replica %s: %s was damaged from byte %d on (log offset %d, %d bytes: %s); repaired from copy %d. A disk "
            "that returns wrong data will do so again: check it",
            self._group,
            *self._place(part),
            part.start,
            size,
            part.reason,
            copy,
            extra={"broker": self._group, "log_offset": part.start, "bytes": size, "records": count, "copy": copy},
        )

    def _log_failure(self, part: DamagedPart, failure: str) -> None:
        self.parts_failed += 1
        log.error(
            "replica %s: %s is damaged from byte %d on (log offset %d, %d bytes: %s), and no other copy could replace "
            "it: %s",
            self._group,
            *self._place(part),
            part.start,
            part.size,
            part.reason,
            failure,
            extra={"broker": self._group, "log_offset": part.start, "bytes": part.size},
        )

    def _place(self, part: DamagedPart) -> tuple[str, int]:
        start, position = segment_of(part.start, self._segment_bytes)
        return self._disk.describe(path_of(start)), position

    # -- a start ------------------------------------------------------------------------------------------------------

    async def repair_unopened(self, error: StoreCorrupted) -> None:
        """Repairs damage that prevents the opening of the folder, and damage before it in its file. The table of epochs
        identifies the log. Returns if the folder may be opened again; raises StoreCorrupted.
        """
        if self._closed:
            raise error
        until_ms = self._clock.monotonic_ms() + START_MS
        while (failure := await self._repaired_unopened(error.log_offset)) and self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep_ms(START_PAUSE_MS)
        if failure:
            raise StoreCorrupted(
                f"{error.message}; it could not be repaired: {failure}", log_offset=error.log_offset
            ) from error

    async def _repaired_unopened(self, log_offset: int) -> str:
        """Returns why the damage at `log_offset` stays; empty: it is repaired."""
        disk, segment_bytes = self._disk, self._segment_bytes
        filed = await self._jobs.run(lambda: epoch_file.load(disk))
        if filed is None:
            return "the table of epochs is missing"
        table = EpochTable(0, tuple(EpochStart(epoch, start) for epoch, start in filed.entries))

        async def write(start: int, data: bytes) -> None:
            await self._jobs.run(lambda: rewrite_unopened(disk, segment_bytes, start, data))

        try:
            end = await self._jobs.run(lambda: end_of_file(disk, segment_bytes, log_offset))
            scan, written = LogScan(disk, segment_bytes, log_offset, end), -1
            while not scan.done:
                part = await self._jobs.run(scan.step)
                if part is None:
                    continue
                if part.start > log_offset:
                    break
                failure = await self._mended(part, table, write)
                if not failure and part.start != written:
                    written = part.start
                    scan.again(part)
                    continue
                failure = failure or BROKEN
                self._log_failure(part, failure)
                if part.end > log_offset:
                    return failure
                scan.pass_over(part)
            # Otherwise the folder would be opened and scanned again and again, and would look repaired.
            if written < 0:
                return "its file shows no damaged record up to this place, so no other copy was queried"
        except FileNotFoundError:
            return "the file is missing"
        except OSError as error:
            return f"the disk failed: {error}"
        except Error as error:
            return error.message
        return ""

    # -- the other side -----------------------------------------------------------------------------------------------

    async def given(self, wanted: WantedRecords) -> bytes:
        """See RecordSource. Damage found here is repaired, too; the call does not wait for it."""
        known, start, end = self._known(), wanted.start, wanted.end
        file_start = segment_of(start, self._segment_bytes)[0] if start >= 0 else 0
        if not 0 <= start < end <= file_start + self._segment_bytes or end - start > PART_BYTES_MAX:
            raise BadRequest(
                f"{start} to {end} is not a part of one log file, which has {self._segment_bytes} bytes, or exceeds "
                f"{PART_BYTES_MAX} bytes"
            )
        if start < known.table.start:
            raise NotFound(f"the log here begins at {known.table.start}")
        # A leader knows nothing committed until its copies have its first record, which a start awaits (decision 87).
        if end > max(known.end, known.led_end) and not await self._is_followed_by(end, wanted.next_crc):
            raise HaNotAvailable(f"nothing behind {known.end} is known to be committed here")
        epoch = known.table.epoch_at(start)
        if wanted.epoch and epoch and wanted.epoch != epoch:
            raise BadRequest(f"epoch {epoch} wrote the log here at {start}, not epoch {wanted.epoch}")
        read = log_damage.read_whole_records
        try:
            data = await self._jobs.run(lambda: read(self._disk, self._segment_bytes, start, end))
        except FileNotFoundError as error:
            raise NotFound(f"the log here does not reach back to {start} any more") from error
        except StoreCorrupted as error:
            self._repair_too(file_start)
            raise NotFound(f"it is damaged here, too: {error.message}") from error
        if len(data) < end - start:
            self._repair_too(file_start)
        return data

    async def _is_followed_by(self, end: int, crc: int | None) -> bool:
        """True if the record at `end` has this checksum: then both logs are the same below it (decision 95)."""
        if crc is None:
            return False
        return await self._jobs.run(lambda: crc_of_record_at(self._disk, self._segment_bytes, end)) == crc

    def _repair_too(self, file_start: int) -> None:
        if not self._closed and file_start not in self._walks and not self._under_way:
            self._begin(file_start)

    async def close(self) -> None:
        """Ends running scans between two writes. Idempotent."""
        self._closed = True
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.close()


METHOD = "/evenq.v1.Replication/FetchRecords"
STALL_MS = 1_500
"""The longest time without a piece: a reader waits, and there is another copy to query."""


async def fetch_records(net: Net, address: str, who: LinkOpening, wanted: WantedRecords, *, clock: Clock) -> bytes:
    """Fetches records of the log from another copy, in place of those that the disk has damaged.

    Returns the records of the broker `who.receiver` there, unchecked, and no more than requested. Raises BadRequest
    (another log, or a wrong answer), NotFound (not there, or damaged there, too), HaNotAvailable (not known there to be
    committed), TooManyRequests, ConnectionFailed, RequestTimeout.
    """
    size, parts, came = wanted.end - wanted.start, [], 0
    silence = f"{address} sent nothing of the records"
    frames = net.stream(address, METHOD, ask_records(who, wanted), timeout_ms=None)
    async with aclosing(frames_within(frames, stall_ms=STALL_MS, silence=silence, clock=clock)) as messages:
        async for message in messages:
            data = data_of(message)
            came += len(data)
            if came > size:
                raise BadRequest(f"{address} sends more than the {size} bytes of records that were requested")
            parts.append(data)
    return b"".join(parts)
