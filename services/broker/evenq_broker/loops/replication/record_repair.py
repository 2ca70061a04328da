"""Records that the disk has damaged are fetched from another copy and written in place (promise D2, decision 78).

Whoever meets damage in the log asks `repair`, waits, and reads again: readers of a leader's store and of a follower's
view, the replay of a follower, what reads groups for followers. The file is walked from its begin, and each damaged
part below the committed end is asked for, from one copy after the other, until bytes come that are whole and fit
between their neighbours; same epoch and offset are the same bytes on all copies (I4). `given` is the other side.

Bounded: one file at a time, `WAITING_MAX` wait, a part has `PART_BYTES_MAX`, a file is walked once in `REST_MS` unless
something was repaired in it, each copy is asked once for a part. Belongs to one loop; files are read on a thread of its
own and written by the folder's owner. Always true: nothing is written that `log_damage.fault_of` finds fault with; what
lies at or behind the committed end is asked for and written only by a start (decision 87) and before a cut (decision
94), and given only by a leader, or below a record that both logs have (decision 95).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from evenq.errors import BadRequest, Error, HaNotAvailable, NotFound, StoreCorrupted, StorePoisoned
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
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
from evenq_broker.loops.state.signals import done_within
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import RECORDS_BYTES_MAX

__all__ = ["CommittedLog", "RecordRepair"]

log = logging.getLogger(__name__)

WAIT_MS = 5_000
"""Longest wait of a read that met damage, ms; the repair goes on."""
REST_MS = 10_000
"""Between two walks through a file in which something could not be repaired."""
CLEAN_MS = 1_000
"""Between two walks through a file that is whole: who asks was wrong."""
START_MS = 15_000
"""How long a start asks copies that cannot tell yet what is committed."""
START_PAUSE_MS = 1_000
WAITING_MAX = 16
PART_BYTES_MAX = RECORDS_BYTES_MAX
PARTS_MAX = 1_000
"""Of one walk through a file."""
FAILURES_NAMED = 3
BROKEN = "what was written there came back as other bytes: the disk is broken"

Ask = Callable[[int, WantedRecords], Awaitable[bytes]]
"""What a copy, by its broker id, has in a part of the log, unchecked. Raises Error."""


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """What is known of the log now."""

    end: int
    """All below is committed."""
    table: EpochTable
    led_end: int = 0
    """While this copy leads: where its log ends, which is the log of its epoch; else 0."""
    matched_end: int = 0
    """While this copy cuts its log to its leader's: where; else 0. The leader has the same below, committed or not
    (R4).
    """

    @property
    def repaired_end(self) -> int:
        """Damage below is repaired while this copy runs."""
        return max(self.end, self.matched_end)


@dataclass(slots=True)
class _FileLook:
    """What came of one walk through a file."""

    ended_ms: int = 0
    repaired: int = 0
    failures: list[tuple[DamagedPart, str]] = field(default_factory=list)

    @property
    def rest_ms(self) -> int:
        """How long it is remembered."""
        return REST_MS if self.failures else CLEAN_MS

    def failure_at(self, log_offset: int) -> str:
        """Why what is damaged there, or else anywhere in the file, was not repaired; empty: nothing of it was."""
        here = [reason for part, reason in self.failures if part.start <= log_offset < part.end]
        return "; ".join((here or [reason for _, reason in self.failures])[:FAILURES_NAMED])


class RecordRepair:
    """See the module. It is a `Repairs` of the store and a `RecordSource` of the calls."""

    def __init__(
        self, disk: Disk, segment_bytes: int, *, known: Callable[[], CommittedLog], copies: Callable[[], list[int]],
        ask: Ask, write: Callable[[int, bytes], Awaitable[None]], clock: Clock, group: str,
    ) -> None:  # fmt: skip
        """`copies`: broker ids of the other copies, the first is asked first. `write` has the folder's owner put
        records in place. `group`: the broker's name, for log lines.
        """
        self._disk, self._segment_bytes = disk, segment_bytes
        self._known, self._copies, self._ask, self._write = known, copies, ask, write
        self._clock, self._group = clock, group
        self.records_repaired = 0
        self.parts_failed = 0
        """Damaged parts that no copy could replace; each walk that meets one counts."""
        self.version = 0
        """See Repairs."""
        self._jobs = Jobs(threads=1, name="evenq-repair", threaded=disk.blocks)
        self._one = asyncio.Lock()
        self._under_way: dict[int, asyncio.Task[_FileLook]] = {}
        self._walks: dict[int, _FileLook] = {}
        """Of files that were walked lately."""
        self._closed = False

    # -- who met damage -----------------------------------------------------------------------------------------------

    async def repair(self, error: StoreCorrupted, seen: int) -> bool:
        """See Repairs."""
        # Repaired since the read began, perhaps at this very place: reading again is cheaper than a walk.
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
        """The walk through the file of the damage. Raises StoreCorrupted: it takes long, or too many wait."""
        start, _ = segment_of(error.log_offset, self._segment_bytes)
        now_ms = self._clock.monotonic_ms()
        self._walks = {one: walk for one, walk in self._walks.items() if now_ms - walk.ended_ms < walk.rest_ms}
        walk = self._walks.get(start)
        # A walk that repaired something is not remembered: who comes later met other damage than it did.
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
                f"{error.message}; its repair from another copy goes on, read again", log_offset=error.log_offset
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
                pass  # retention let it go
            except StorePoisoned:
                raise
            except (Error, OSError) as error:
                log.warning(
                    "replica %s: the log file at %d is not repaired: %s", self._group, start, error,
                    extra={"broker": self._group, "log_offset": start},
                )  # fmt: skip
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
        """Why a part could not be repaired; empty: it was."""
        if part.size > PART_BYTES_MAX:
            return f"{part.size} bytes in a row are damaged, {PART_BYTES_MAX} can be fetched"
        reasons: list[str] = []
        best: tuple[int, bytes] | None = None
        # The rest of a file that no header fits in is of the epoch before or of the one behind: tables differ in that.
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
            # One that is damaged in the part, too, gives its begin. The next one may have all of it, and a block that
            # the disk lost can be written as a whole only.
            if len(data) == part.size:
                break
        if best is None:
            return "; ".join(reasons) or "there is no other copy to ask"
        copy, data = best
        try:
            await write(part.start, data)
        except StorePoisoned:
            raise
        except Error as error:
            return error.message
        count = log_damage.count_records(data, part.start, segment_bytes=self._segment_bytes)
        # With each part and not at the walk's end: who waits for this part need not wait for the file.
        self.version += 1
        self.records_repaired += count
        self._log_repair(part, copy, count, len(data))
        return ""

    def _log_repair(self, part: DamagedPart, copy: int, count: int, size: int) -> None:
        log.warning(
            "replica %s: %s was damaged from byte %d on (log offset %d, %d bytes: %s); repaired from copy %d. A disk "
            "that returns wrong data goes on doing so: look after it",
            self._group, *self._place(part), part.start, size, part.reason, copy,
            extra={"broker": self._group, "log_offset": part.start, "bytes": size, "records": count, "copy": copy},
        )  # fmt: skip

    def _log_failure(self, part: DamagedPart, failure: str) -> None:
        self.parts_failed += 1
        log.error(
            "replica %s: %s is damaged from byte %d on (log offset %d, %d bytes: %s), and no other copy could replace "
            "it: %s",
            self._group, *self._place(part), part.start, part.size, part.reason, failure,
            extra={"broker": self._group, "log_offset": part.start, "bytes": part.size},
        )  # fmt: skip

    def _place(self, part: DamagedPart) -> tuple[str, int]:
        start, position = segment_of(part.start, self._segment_bytes)
        return self._disk.describe(path_of(start)), position

    # -- a start ------------------------------------------------------------------------------------------------------

    async def repair_unopened(self, error: StoreCorrupted) -> None:
        """The folder cannot be opened because of this damage below what is on disk for certain: repair it, and what
        lies before it in its file. Its table of epochs tells whose log it is. Returns if the folder may be opened
        again; raises StoreCorrupted.
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
        """Why the damage at `log_offset` stays; empty: it is repaired."""
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
            # Else the folder would be opened and scanned again and again, and would look like one that is repaired.
            if written < 0:
                return "its file shows no damaged record up to this place, so no other copy was asked"
        except FileNotFoundError:
            return "the file is missing"
        except OSError as error:
            return f"the disk failed: {error}"
        except Error as error:
            return error.message
        return ""

    # -- who is asked -------------------------------------------------------------------------------------------------

    async def given(self, wanted: WantedRecords) -> bytes:
        """See RecordSource. What is found damaged here is repaired, too, and not waited for."""
        known, start, end = self._known(), wanted.start, wanted.end
        file_start = segment_of(start, self._segment_bytes)[0] if start >= 0 else 0
        if not 0 <= start < end <= file_start + self._segment_bytes or end - start > PART_BYTES_MAX:
            raise BadRequest(
                f"{start} to {end} is no part of one log file, which has {self._segment_bytes} bytes, or is over "
                f"{PART_BYTES_MAX} bytes"
            )
        if start < known.table.start:
            raise NotFound(f"the log here begins at {known.table.start}")
        # A leader knows of nothing committed until its copies have its first record, and a copy that asks at its start
        # waits for this answer (decision 87).
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
        """Whether the record that begins at `end` here has this checksum: then both logs have the same bytes below it
        (decision 95).
        """
        if crc is None:
            return False
        return await self._jobs.run(lambda: crc_of_record_at(self._disk, self._segment_bytes, end)) == crc

    def _repair_too(self, file_start: int) -> None:
        if not self._closed and file_start not in self._walks and not self._under_way:
            self._begin(file_start)

    async def close(self) -> None:
        """End what is under way, between two writes. Idempotent."""
        self._closed = True
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.close()
