"""Carries out retention: collects the facts, lets `retention` decide, and deletes the log's oldest files.

The order matters. First the queues' minima rise, on disk and then on the loop, so that no new read begins there and no
start falls behind. Then a snapshot and a checkpoint are on disk that need nothing of the files and name the log's new
start. Only then the files are deleted, oldest first. The next start completes what a crash interrupts. A reader that
meets a missing file reads from the new minimum. Nothing is deleted before all that is consumable is committed
(`LogState.certain`).

Messages of a topic with a table wait until they are exported, `table_wait_ms` beyond their retention at most, and not
while the disk is fuller than `disk_clean_ratio`: then the wait would end in refused messages.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from evenq.errors import StoreCorrupted, StoreFull, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles
from evenq.store.log import consume_queue, retention, segment, snapshot
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.log_holds import LogHolds
from evenq.store.log.log_state import LogState
from evenq.store.log.options import StoreOptions
from evenq.store.log.record import HEADER, HEADER_BYTES
from evenq.store.log.retention import FOR_EVER, RetentionFacts, RetentionHold, RetentionPlan, SegmentFact
from evenq.store.opening.flusher import Flusher
from evenq.store.opening.snapshotter import Snapshotter
from evenq.store.queues.reader import Entries, LogReader

log = logging.getLogger(__name__)

ROUND_MS: Final = 60_000
PRESSED_ROUND_MS: Final = 1_000  # under pressure: while the disk exceeds its lower mark
RAISE_MS: Final = 300_000  # between raises of the minima of topics that keep less; under pressure, in each round
STORE_MS: Final = 12  # place of the store time among the header's fields

RetentionOf = Callable[[int], int | None]
"""Topic id to how long its messages are kept, ms; 0 for ever, None as in the store's options."""
Key = tuple[int, int]


class TableEnds(Protocol):
    """Ends of the tables of topics, as their exporters report them."""

    def exported(self, topic_id: int, queue_id: int) -> int | None:
        """Returns the first offset that is in no file of the table; None: the queue has no table."""

    def deleted(self, topic_id: int, queue_id: int, start: int, end: int) -> None:
        """Handles the deletion of messages that were not exported, from `start` to `end - 1`."""


T = TypeVar("T")


class Cleaner:
    """Retention of one open store; `tick` is one of the flusher's duties."""

    def __init__(
        self,
        state: LogState,
        flusher: Flusher,
        snapshotter: Snapshotter,
        disk: Disk,
        files: ReadFiles,
        reader: LogReader,
        options: StoreOptions,
        *,
        clock: Clock,
        queues: dict[Key, ConsumeQueue],
        segment_bytes: int,
        topic_retention_ms: RetentionOf | None,
        tables: TableEnds | None = None,
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._snapshotter = snapshotter
        self._disk = disk
        self._files = files
        self._reader = reader
        self._options = options
        self._clock = clock
        self._queues = queues
        self._segment_bytes = segment_bytes
        self._retention_of = topic_retention_ms
        self._tables = tables
        self.lock = asyncio.Lock()
        """Held by a round while it looks and deletes."""
        self.holds = LogHolds(clock)
        """Parts of the log that backups have not read yet."""
        self._round_ms = self._raised_ms = clock.monotonic_ms()
        self._last_ms: dict[int, int] = {}
        """Start of a full file to the store time of the record after its end."""
        self._firsts: dict[Key, tuple[int, int]] = {}
        """Minimum of a queue, and its log offset, as looked up before."""
        self._first_ms: dict[Key, tuple[int, int]] = {}
        """Minimum of a queue, and its store time, as looked up before."""
        self._without_files: dict[Key, int] = {}
        """Queues that keep nothing and have no files, and the offset at which they would continue."""
        self.on_drop: list[Callable[[int], None]] = []
        """Called on the loop with the log's new start, before the files before it are deleted."""

    async def tick(self) -> None:
        """Deletes what is expired, or over the disk's marks, if a round is due. Raises StorePoisoned."""
        now_ms = self._clock.monotonic_ms()
        pressed = self._flusher.usage.used_ratio >= self._options.disk_clean_ratio
        if now_ms - self._round_ms < (PRESSED_ROUND_MS if pressed else ROUND_MS):
            return
        self._round_ms = now_ms
        try:
            await self.clean(raising=pressed or now_ms - self._raised_ms >= RAISE_MS)
        except StoreFull as error:
            log.warning("deletion of expired log files postponed: %s", error, extra={"error": str(error)})

    async def clean(self, *, raising: bool = True) -> None:
        """Runs a round now; `raising`: also of topics that keep less. Raises StoreFull, StorePoisoned."""
        if not self._state.certain:
            return
        try:
            async with self.lock:  # otherwise the older plan of two might set the log's start last
                await self._round(raising)
        except StoreCorrupted as error:
            log.error("no log file deleted: %s", error, extra={"error": str(error)})  # noqa: TRY400  # its text says all

    async def _round(self, raising: bool) -> None:
        if raising:
            self._raised_ms = self._clock.monotonic_ms()
            await self._raise_by_topic()
            await self._remove_files_of_empty_queues()
        end, holds, keepers = self._filed_end(), self._held(), self._keepers()  # of one moment
        plan = retention.plan(await self._look(lambda: self._facts(end, holds, keepers)))
        if plan is not None and (plan := self._held_back(plan)) is not None:
            await self._let_go(plan)

    def _held_back(self, plan: RetentionPlan) -> RetentionPlan | None:
        """Returns the plan without the files that a backup has not read, unless the disk is full."""
        held = self.holds.held_from()
        if held is None or held >= plan.log_start:
            return plan
        if self._state.full is not None or self._flusher.usage.used_ratio >= self._options.disk_force_ratio:
            log.warning(
                "the disk is full: deleting log files from offset %d on that a backup has not read yet",
                held,
                extra={"held_from": held},
            )
            return plan
        first = plan.log_start - len(plan.reasons) * self._segment_bytes
        count = (held - first) // self._segment_bytes
        return RetentionPlan(first + count * self._segment_bytes, plan.reasons[:count]) if count > 0 else None

    async def _look(self, job: Callable[[], T]) -> T:
        """Reads on the flush thread. Damage there does not stop the store, but then nothing is deleted."""

        def looked() -> T | StoreCorrupted:
            try:
                return job()
            except StoreCorrupted as error:
                return error
            except (FileNotFoundError, struct.error) as error:
                return StoreCorrupted(f"a file in {self._disk.describe('')} is missing or too short: {error}")

        result = await self._flusher.blocking(looked)
        if isinstance(result, StoreCorrupted):
            raise result
        return result

    def _retention_ms(self, topic_id: int) -> int:
        kept = self._retention_of(topic_id) if self._retention_of is not None else None
        return self._options.retention_ms if kept is None else kept

    def _is_held(self, queue: ConsumeQueue) -> bool:
        kept, usual = self._retention_ms(queue.topic_id), self._options.retention_ms
        return queue.min_offset < queue.filed and usual != FOR_EVER and (kept == FOR_EVER or kept > usual)

    def _keeps_less(self, queue: ConsumeQueue) -> bool:
        kept, usual = self._retention_ms(queue.topic_id), self._options.retention_ms
        return kept != FOR_EVER and (usual == FOR_EVER or kept < usual)

    def _filed_end(self) -> int:
        """Returns the log offset before which all messages have filed entries: later files may be of other queues."""
        return self._flusher.filed_end if self._state.unfiled else self._state.stats.log_end

    def _held(self) -> list[tuple[ConsumeQueue, int, int]]:
        """Returns queues, the offsets from which on they keep messages longer than the store, and for how long, ms."""
        usual, wait_ms = self._options.retention_ms, self._options.table_wait_ms
        held = [
            (queue, queue.min_offset, self._retention_ms(queue.topic_id))
            for queue in self._queues.values()
            if self._is_held(queue)
        ]
        for queue in self._queues.values() if usual != FOR_EVER else ():
            kept, at = self._retention_ms(queue.topic_id), self._waits_from(queue)
            if at is not None and kept != FOR_EVER:
                held.append((queue, at, kept + wait_ms))
        return held

    def _waits_from(self, queue: ConsumeQueue) -> int | None:
        """Returns the first offset that waits for the exporter of a table; None: nothing in files does."""
        full = self._state.full is not None or self._flusher.usage.used_ratio >= self._options.disk_clean_ratio
        if self._tables is None or full or not self._options.table_wait_ms:
            return None
        exported = self._tables.exported(queue.topic_id, queue.queue_id)
        return None if exported is None or exported >= queue.filed else max(exported, queue.min_offset)

    def _keepers(self) -> list[ConsumeQueue] | None:
        """Returns queues with messages in files, to find how far back they reach; None if no topic keeps less."""
        queues = self._queues.values()
        if self._retention_of is None or not any(map(self._keeps_less, queues)):
            return None
        return [queue for queue in queues if queue.min_offset < queue.filed]

    def _facts(
        self, end: int, held: list[tuple[ConsumeQueue, int, int]], keepers: list[ConsumeQueue] | None
    ) -> RetentionFacts:
        options, usage = self._options, self._disk.usage()
        starts = [start for start in segment.starts(self._disk, self._segment_bytes) if start < end]
        # Not the newest file: it is never expired, and no record follows it.
        times = [self._behind_ms(start) for start in starts[:-1]]
        unneeded = 0 if keepers is None else min([end, *map(self._first_of, keepers)])
        return RetentionFacts(
            now_ms=self._clock.now_ms(),
            retention_ms=options.retention_ms,
            retention_hour=options.retention_hour,
            clean_ratio=options.disk_clean_ratio,
            force_ratio=options.disk_force_ratio,
            used_ratio=usage.used_ratio,
            disk_bytes=usage.total,
            segment_bytes=self._segment_bytes,
            segments=[SegmentFact(*fact) for fact in zip(starts, [*times, 0], strict=False)],
            holds=[RetentionHold(self._place_of(queue, offset), kept_ms) for queue, offset, kept_ms in held],
            unneeded_before=unneeded,
            keep_from=None if self._snapshotter.automatic else self._snapshotter.newest,
        )

    def _behind_ms(self, start: int) -> int:
        """Returns the store time of the first record after a full file: nothing in the file is younger."""
        last_ms = self._last_ms.get(start)
        if last_ms is None:
            with self._files.using(segment.path_of(start + self._segment_bytes)) as file:
                data = file.pread(HEADER_BYTES, 0)
            # The next file is still empty, so this one was written just now.
            if len(data) < HEADER_BYTES:
                return self._clock.now_ms()
            last_ms = self._last_ms[start] = HEADER.unpack(data)[STORE_MS]
        return last_ms

    def _first_of(self, queue: ConsumeQueue) -> int:
        """Returns the log offset of the queue's oldest message, which is in a file."""
        return self._place_of(queue, queue.min_offset)

    def _place_of(self, queue: ConsumeQueue, offset: int) -> int:
        """Returns the log offset of a message that is in a file; that of the oldest is remembered."""
        key = queue.topic_id, queue.queue_id
        first = self._firsts.get(key)
        if first is not None and first[0] == offset:
            return first[1]
        place = self._log_offset_at(queue, offset)
        if offset == queue.min_offset:
            self._firsts[key] = (offset, place)
        return place

    def _log_offset_at(self, queue: ConsumeQueue, offset: int) -> int:
        name, position = consume_queue.file_at(offset)
        with self._files.using(f"{consume_queue.folder_of(queue.topic_id, queue.queue_id)}/{name}") as file:
            entry: tuple[int, int, int] = consume_queue.ENTRY.unpack(file.pread(consume_queue.ENTRY_BYTES, position))
        return entry[0]

    async def _let_go(self, plan: RetentionPlan) -> None:
        flusher, log_start = self._flusher, await self._rolled(plan)
        if log_start <= flusher.log_start:
            return
        if not self._snapshotter.automatic and self._snapshotter.newest < log_start:
            return
        passing("retention.planned")
        if not await flusher.checkpoint():
            log.warning("deletion of expired log files postponed: no space on the disk for a checkpoint")
            return
        # From here on all entries of the files to delete are in files themselves.
        queues = list(self._queues.values())
        minima = await self._look(lambda: self._minima(queues, log_start))
        if not await self._raise(minima):
            return
        passing("retention.raised")
        # Before the checkpoint names it: a start whose log begins after its newest snapshot cannot rebuild the state.
        await self._snapshotter.begin_at(log_start)
        passing("retention.snapshot_saved")
        flusher.log_start = log_start
        await flusher.checkpoint()
        passing("retention.checkpointed")
        for dropped in self.on_drop:
            # Before the files are deleted, so that no read begins there any more.
            dropped(log_start)
        files = await flusher.blocking(lambda: self._delete(log_start, minima))
        stats = self._state.stats
        stats.deleted_files += files
        stats.deleted_bytes += files * self._segment_bytes
        first = plan.log_start - len(plan.reasons) * self._segment_bytes
        for start, reason in zip(range(first, log_start, self._segment_bytes), plan.reasons, strict=False):
            path = self._disk.describe(segment.path_of(start))
            log.info("log file %s deleted (%s)", path, reason, extra={"file": path, "reason": reason})

    async def _rolled(self, plan: RetentionPlan) -> int:
        """Moves the pending timers out of the way; returns where the log can begin then, at most the plan's place."""
        timers = self._snapshotter.timers
        goals = [plan.log_start]
        if self._state.full is not None:  # file by file, as space becomes free
            goals = [plan.log_start - number * self._segment_bytes for number in reversed(range(len(plan.reasons)))]
        reached = self._flusher.log_start
        for goal in goals:
            pinned = timers.pinned_before()
            if pinned is not None and pinned < goal:
                try:
                    await timers.roll_forward(goal)
                except (StoreFull, TooManyRequests) as error:
                    log.warning("expired log files kept for their timers: %s", error, extra={"error": str(error)})
                    return reached
                pinned = timers.pinned_before()
                if pinned is not None and pinned < goal:
                    return reached
            reached = goal
        return reached

    def _minima(self, queues: list[ConsumeQueue], log_start: int) -> dict[Key, int]:
        """Returns the new minimum of each queue that has messages before `log_start`. On the flush thread."""
        minima: dict[Key, int] = {}
        for queue in queues:
            low, high = queue.min_offset, queue.filed
            if low < high and self._first_of(queue) < log_start:
                at = partial(self._log_offset_at, queue)
                minimum = low + bisect.bisect_left(range(low, high), log_start, key=at)
                self._check(queue, minimum, log_start)
                minima[queue.topic_id, queue.queue_id] = minimum
        return minima

    def _check(self, queue: ConsumeQueue, minimum: int, log_start: int) -> None:
        """Checks a new minimum by its messages: entries have no checksum, and a wrong one would hide kept messages."""
        entries = _filed(queue)
        near = [offset for offset in (minimum - 1, minimum) if queue.min_offset <= offset < queue.filed]
        for message in self._reader.read_at(entries, near):
            if (message.log_offset < log_start) != (message.queue_offset < minimum):
                folder = self._disk.describe(consume_queue.folder_of(queue.topic_id, queue.queue_id))
                raise StoreCorrupted(f"{folder} is out of order near entry {minimum}")

    async def _raise(self, minima: dict[Key, int]) -> bool:
        """Raises minima, on disk first: a minimum that a reader saw must not fall at a start. False without space."""
        self._flusher.raised.update(minima)
        if minima and not await self._flusher.checkpoint():
            return False
        for key, minimum in minima.items():
            queue = self._queues[key]
            exported = None if self._tables is None else self._tables.exported(*key)
            if self._tables is not None and exported is not None and max(exported, queue.min_offset) < minimum:
                self._tables.deleted(*key, max(exported, queue.min_offset), minimum)
            queue.min_offset = max(queue.min_offset, minimum)
        return True

    def _delete(self, log_start: int, minima: dict[Key, int]) -> int:
        snapshot.drop_before(self._disk, log_start)
        files = segment.drop_before(self._disk, log_start)
        for path in files:
            self._files.forget(path)
        self._last_ms = {start: last_ms for start, last_ms in self._last_ms.items() if start >= log_start}
        self._delete_entries(minima)
        return len(files)

    def _delete_entries(self, minima: dict[Key, int]) -> None:
        for key, minimum in minima.items():
            for path in consume_queue.drop_before(self._disk, *key, minimum):
                self._files.forget(path)

    async def _remove_files_of_empty_queues(self) -> None:
        """Deletes the last file of each queue that keeps nothing: queues of deleted topics would keep it for ever."""
        empty = [
            key
            for key, queue in self._queues.items()
            if 0 < queue.min_offset == queue.next_offset != self._without_files.get(key, 0)
        ]
        if not empty:
            return
        # No entry of theirs is on its way to a file: a later one is written after this job, into a new file.
        ends = {key: self._queues[key].next_offset for key in empty}
        count = await self._flusher.blocking(lambda: self._drop_all(empty))
        self._without_files.update(ends)
        if count:
            log.info("%d files of %d queues that keep nothing deleted", count, len(empty), extra={"files": count})

    def _drop_all(self, keys: list[Key]) -> int:
        paths = [path for key in keys for path in consume_queue.drop_all(self._disk, *key)]
        for path in paths:
            self._files.forget(path)
        return len(paths)

    async def _raise_by_topic(self) -> None:
        """Raises the minima of topics whose retention is shorter; their bytes are deleted with the files."""
        if self._retention_of is None:
            return
        now_ms = self._clock.now_ms()
        looks = [
            (_filed(queue), now_ms - self._retention_ms(queue.topic_id), self._waits_from(queue))
            for queue in self._queues.values()
            if queue.min_offset < queue.filed and self._keeps_less(queue)
        ]
        if not looks:
            return
        minima = await self._look(lambda: self._minima_by_time(looks))
        if minima and await self._raise(minima):
            # A start that rebuilds the entries has the minima from the snapshot alone, and they must not fall (D6).
            await self._snapshotter.begin_at(self._flusher.log_start)
            await self._flusher.blocking(lambda: self._delete_entries(minima))
            log.info("expired messages removed from %d queues", len(minima), extra={"queues": len(minima)})

    def _minima_by_time(self, looks: list[tuple[Entries, int, int | None]]) -> dict[Key, int]:
        """`looks`: a queue, the time before which its messages are expired, and its first one that waits, or None."""
        minima: dict[Key, int] = {}
        for entries, cutoff_ms, waits_from in looks:
            key, minimum = (entries.topic_id, entries.queue_id), entries.min_offset
            known = self._first_ms.get(key)
            if known is None or known[0] != minimum:
                known = self._first_ms[key] = (minimum, self._reader.read_at(entries, [minimum])[0].store_ms)
            if known[1] < cutoff_ms:
                expired = self._reader.offset_at(entries, cutoff_ms)
                if waits_from is not None and waits_from < expired:
                    late = self._reader.offset_at(entries, cutoff_ms - self._options.table_wait_ms)
                    expired = max(waits_from, late)
                if expired > minimum:
                    minima[key] = expired
        return minima


def _filed(queue: ConsumeQueue) -> Entries:
    """Returns the part of a queue whose entries are in files: younger messages stay anyway."""
    return Entries(queue.topic_id, queue.queue_id, queue.min_offset, queue.filed, queue.filed, b"")
