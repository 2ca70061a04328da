"""The loop's half of the write path: gives each record its place, packs it, gathers groups for the writer, makes them
consumable.

Called on the loop thread only. Between `append` and the writer's report a record has a place but is not consumable;
if the disk was full, the places are taken back, if anything else failed the store is poisoned. This is the hot path:
a few microseconds a message.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence

from crc32c import crc32c

from evenq.errors import BadRequest, BodyTooLarge, Error, StoreFull, StorePoisoned, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.commit_log import Run
from evenq.store.consume_queue import ENTRY, ConsumeQueue
from evenq.store.messages import Append, OnDispatched, TimerAppend
from evenq.store.options import FlushMode, StoreOptions, StoreStats
from evenq.store.record import (
    FLAG_MORE,
    HEADER_BYTES,
    MAGIC,
    MESSAGE,
    PLACE,
    PREFIX,
    STATE,
    STEM,
    TIMER,
    TIMER_END,
    TIMER_KIND_MAX,
    VERSION,
    pack,
    pack_padding,
    pack_timer_ids,
    timer_flags,
    unsigned,
)
from evenq.store.segment import segment_of
from evenq.store.writer import Batch, Placed

__all__ = ["Appender"]

EPOCH = 1  # one copy of the log: the first and only leader
GATHER_BYTES = 128 << 10  # a group of this size does not wait for more
ANSWER_BYTES = 256 << 10  # senders of so many bytes are told in one turn

_pack_prefix = PREFIX.pack
_pack_place = PLACE.pack
_pack_entry = ENTRY.pack


class Appender:
    """Places, groups and outcomes of appends. `submit` hands a batch to the writer, `complete` takes its report."""

    def __init__(
        self,
        queues: dict[tuple[int, int], ConsumeQueue],
        options: StoreOptions,
        *,
        clock: Clock,
        segment_bytes: int,
        log_end: int,
        last_store_ms: int,
        gather_turns: int = 0,
    ) -> None:
        """`gather_turns`: turns of the loop that a group waits for others to join it before the writer gets it. A turn
        without work is a few microseconds; a group alone costs the writer's thread and ours two switches.
        """
        self._queues = queues
        self._options = options
        self._now_ms = clock.now_ms
        self._loop = asyncio.get_running_loop()
        self.submit: Callable[[Batch], None] = lambda _: None
        self.on_failure: Callable[[Error], None] | None = None
        self.on_growth: Callable[[], None] = lambda: None
        """Called after each safe batch, for the flusher."""
        self.on_dispatched: OnDispatched | None = None
        self.on_timers: Callable[[Sequence[TimerAppend], Sequence[int]], None] = lambda _, __: None
        """Called for each call that is safe now and had timers or ends, in the step that moves the log's safe end."""
        self.stats = StoreStats(log_end=log_end, log_synced=log_end)
        self.failure: Error | None = None
        self.full: StoreFull | None = None
        """Why messages are refused for now; state records go on."""
        self.reserve_bytes = 0
        """What moves may still use while messages are refused."""
        self.closed = False
        self.blocked = False
        """Whether any of the three above refuses messages: one look for each append."""
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues that grew since the last checkpoint, in the order of their first growth."""
        self.unfiled = 0
        """Consumable entries that are in no file yet."""
        self.synced_end = log_end
        self.last_store_ms = last_store_ms
        self._synchronous = options.flush is FlushMode.SYNC
        self._segment_bytes = segment_bytes
        self._assigned_end = log_end
        start, position = segment_of(log_end, segment_bytes)
        self._segment_end = start + segment_bytes
        self._run_at = (start, position)
        self._batch: Batch | None = None
        self._busy: Batch | None = None
        self._kick_due = False
        self._gather_turns = gather_turns
        self._turns = 0
        """Turns of the loop that the present group has waited."""
        self._waiting_bytes = 0
        self._oldest: deque[Placed] = deque()
        """Where the safe messages in memory are, oldest first."""
        self._cache_bytes = 0
        """Payloads in memory, safe or not."""
        self._waiters: list[asyncio.Future[None]] = []
        self._taken_back = 0
        """How often a full disk freed places again."""

    # -- appends ------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Append]) -> asyncio.Future[None]:  # noqa: PLR0915  # calls cost, so it is one
        """Give places to messages and queue them. See `MessageStore.append`."""
        waiting = self.stats.waiting
        if (
            self.blocked
            or waiting >= self._options.append_queue_max
            or self._waiting_bytes >= self._options.append_bytes_max
            or not entries
        ):
            self._refuse(entries)
        batch = self._batch or self._new_batch()
        self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)
        synced_end = self.synced_end
        data = batch.runs[-1].data
        mark = (len(batch.runs), len(data), self._segment_end, len(batch.placed))
        count = left = len(entries)
        log_end = first = self._assigned_end
        topic_id = queue_id = -1
        queue: ConsumeQueue | None = None
        begin = payload_bytes = 0  # of the present run of messages for one queue: what can be done once a run, is
        try:
            for entry in entries:
                if entry.queue_id != queue_id or entry.topic_id != topic_id:
                    if queue is not None:
                        self._place(batch, queue, entries[begin : count - left], payload_bytes)
                        begin = count - left
                        payload_bytes = 0
                    topic_id = entry.topic_id
                    queue_id = entry.queue_id
                    queue = self._queues.get((topic_id, queue_id)) or self._new_queue(topic_id, queue_id)
                    stem, last_stem = queue.stems or self._stems(queue)
                    queue_offset = queue.next_offset
                    tail = queue.tail
                left -= 1
                if not left:
                    stem = last_stem
                head = entry.head
                system = entry.system
                tag_hash = entry.tag_hash
                head_bytes = len(head)
                system_bytes = len(system)
                size = HEADER_BYTES + head_bytes + system_bytes
                if log_end + size > self._segment_end:
                    log_end = self._roll(batch, log_end, size)
                    data = batch.runs[-1].data
                body = b"".join((
                    stem,
                    _pack_place(
                        queue_offset, log_end, synced_end, store_ms, entry.born_ms, tag_hash, head_bytes, system_bytes
                    ),
                    head,
                    system,
                ))  # fmt: skip
                data += _pack_prefix(size, MAGIC, crc32c(body))
                data += body
                tail += _pack_entry(log_end, size, tag_hash)
                entry.queue_offset = queue_offset
                entry.log_offset = log_end
                entry.store_ms = store_ms
                queue_offset += 1
                log_end += size
                payload_bytes += head_bytes + system_bytes
            assert queue is not None
            self._place(batch, queue, entries[begin:] if begin else entries, payload_bytes)
        except (struct.error, TypeError, BadRequest) as error:
            self._take_back_call(batch, entries, mark)
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(f"a message does not fit the frame's fields: {error}") from error
        batch.messages += count
        return self._queued(batch, log_end, log_end - first, waiting + count)

    def _place(self, batch: Batch, queue: ConsumeQueue, messages: Sequence[Append], payload_bytes: int) -> None:
        """The messages, neighbours in one queue, are packed: make them the newest ones there."""
        count = len(messages)
        queue.hot += messages
        batch.touched[queue] = queue.next_offset = queue.next_offset + count
        batch.placed.append((queue, count, payload_bytes))
        self._cache_bytes += payload_bytes

    def _new_queue(self, topic_id: int, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(topic_id, queue_id)
        self._stems(queue)  # refuses what is no number of 32 bits
        self._queues[topic_id, queue_id] = queue
        return queue

    @staticmethod
    def _stems(queue: ConsumeQueue) -> tuple[bytes, bytes]:
        more, last = (
            STEM.pack(VERSION, MESSAGE, flags, EPOCH, queue.topic_id, queue.queue_id) for flags in (FLAG_MORE, 0)
        )
        queue.stems = (more, last)
        return more, last

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        """Queue one opaque record. See `MessageStore.append_state`."""
        if self.failure is not None or self.closed:
            self._refuse(())
        self._check_size(HEADER_BYTES + len(payload))
        batch = self._batch or self._new_batch()
        self.last_store_ms = store_ms = max(self.last_store_ms, self._now_ms())
        first = self._assigned_end
        _, log_end = self._put(batch, first, STATE, payload, store_ms=store_ms)
        batch.states += 1
        return self._queued(batch, log_end, log_end - first, self.stats.waiting + 1)

    def append_group(
        self, entries: Sequence[Append], *, state: bytes, timers: Sequence[TimerAppend], ended: Sequence[int],
        moves: bool = False,
    ) -> asyncio.Future[None]:  # fmt: skip
        """One all-or-nothing group: messages, timers, the end of timers, state, in this order in the log. See
        `MessageStore.append`. `moves`: the timers are old ones, so that their file can go; they may use
        `reserve_bytes` of the disk's reserve.

        The plain `append` is not told apart from within, so that it stays as fast as it is.
        """
        records = len(entries) + len(timers) + bool(ended) + bool(state)
        if moves and self.full is not None and not self.closed and self.failure is None and self.reserve_bytes > 0:
            self.reserve_bytes -= sum(HEADER_BYTES + len(timer.head) + len(timer.system) for timer in timers)
        elif entries or timers:
            over = self.stats.waiting >= self._options.append_queue_max
            if self.blocked or over or self._waiting_bytes >= self._options.append_bytes_max:
                self._refuse(entries or timers)
        elif self.failure is not None or self.closed:
            self._refuse(())
        batch = self._batch or self._new_batch()
        self.last_store_ms = store_ms = max(self.last_store_ms, self._now_ms())
        mark = (len(batch.runs), len(batch.runs[-1].data), self._segment_end, len(batch.placed))
        first = log_end = self._assigned_end
        left = records
        try:
            for entry in entries:
                left -= 1
                log_end = self._put_message(batch, log_end, entry, store_ms, more=left > 0)
            for timer in timers:
                left -= 1
                log_end = self._put_timer(batch, log_end, timer, store_ms, more=left > 0)
            if ended:
                left -= 1
                _, log_end = self._put(
                    batch, log_end, TIMER_END, pack_timer_ids(ended), store_ms=store_ms, more=left > 0
                )
            if state:
                _, log_end = self._put(batch, log_end, STATE, state, store_ms=store_ms)
        except (struct.error, TypeError, BadRequest) as error:
            self._take_back_call(batch, entries, mark)
            for timer in timers:
                timer.log_offset = timer.store_ms = -1
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(f"a record does not fit the frame's fields: {error}") from error
        batch.messages += len(entries)
        batch.timers += len(timers) + bool(ended)
        batch.timer_changes.append((timers, tuple(ended)))
        batch.states += bool(state)
        return self._queued(batch, log_end, log_end - first, self.stats.waiting + records)

    def _put(
        self, batch: Batch, log_end: int, kind: int, head: bytes, system: bytes = b"", *, store_ms: int,
        more: bool = False, flags: int = 0, topic_id: int = 0, queue_id: int = 0, queue_offset: int = 0,
        born_ms: int | None = None, tag_hash: int = 0,
    ) -> tuple[int, int]:  # fmt: skip
        """Pack one record behind `log_end`; returns its place and the end behind it."""
        size = HEADER_BYTES + len(head) + len(system)
        if log_end + size > self._segment_end:
            log_end = self._roll(batch, log_end, size)
        frame = pack(
            kind=kind, flags=flags | FLAG_MORE if more else flags, epoch=EPOCH, topic_id=topic_id, queue_id=queue_id,
            queue_offset=queue_offset, log_offset=log_end, synced_offset=self.synced_end, store_ms=store_ms,
            born_ms=store_ms if born_ms is None else born_ms, tag_hash=tag_hash, head=head, system=system,
        )  # fmt: skip
        batch.runs[-1].data += frame
        return log_end, log_end + size

    def _put_message(self, batch: Batch, log_end: int, entry: Append, store_ms: int, *, more: bool) -> int:
        queue = self._queues.get((entry.topic_id, entry.queue_id)) or self._new_queue(entry.topic_id, entry.queue_id)
        place, log_end = self._put(
            batch, log_end, MESSAGE, entry.head, entry.system, more=more, topic_id=entry.topic_id,
            queue_id=entry.queue_id, queue_offset=queue.next_offset, store_ms=store_ms, born_ms=entry.born_ms,
            tag_hash=entry.tag_hash,
        )  # fmt: skip
        queue.tail += _pack_entry(place, log_end - place, entry.tag_hash)
        entry.queue_offset, entry.log_offset, entry.store_ms = queue.next_offset, place, store_ms
        self._place(batch, queue, (entry,), len(entry.head) + len(entry.system))
        return log_end

    def _put_timer(self, batch: Batch, log_end: int, timer: TimerAppend, store_ms: int, *, more: bool) -> int:
        if not 0 <= timer.kind <= TIMER_KIND_MAX:
            raise BadRequest(f"a timer's kind is {timer.kind}, it must be 0..{TIMER_KIND_MAX}")
        place, log_end = self._put(
            batch, log_end, TIMER, timer.head, timer.system, more=more, flags=timer_flags(timer.kind),
            topic_id=timer.topic_id, queue_id=timer.queue_id, queue_offset=unsigned(timer.tag_hash),
            store_ms=store_ms, born_ms=timer.born_ms, tag_hash=timer.due_ms,
        )  # fmt: skip
        timer.log_offset, timer.store_ms = place, store_ms
        return log_end

    def _queued(self, batch: Batch, log_end: int, size: int, waiting: int) -> asyncio.Future[None]:
        self.stats.waiting = waiting
        self._assigned_end = batch.end = log_end
        batch.bytes += size
        self._waiting_bytes += size
        if self._busy is None and not self._kick_due:
            self._kick_due = True
            self._turns = 0
            self._loop.call_soon(self._kick)  # at the end of this turn, so that its other appends come along
        future = self._loop.create_future()
        batch.futures.append(future)
        return future

    @property
    def assigned_end(self) -> int:
        """First log offset that no record has."""
        return self._assigned_end

    async def settled(self) -> None:
        """Wait until every append so far has its outcome. Raises StoreFull or StorePoisoned if one of them failed."""
        target, refused = self._assigned_end, self._taken_back
        while self.stats.log_end < target and self.failure is None and self._taken_back == refused:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self.failure is not None:
            raise self.failure
        if self._taken_back != refused and self.full is not None:
            raise StoreFull(str(self.full))

    # -- groups -------------------------------------------------------------------------------------------------------

    def _new_batch(self) -> Batch:
        batch = self._batch = Batch(self._assigned_end)
        start = self._segment_end - self._segment_bytes
        batch.runs.append(Run(start, self._assigned_end - start))
        return batch

    def _roll(self, batch: Batch, log_end: int, size: int) -> int:
        """Fill the file and go on in the next one; returns its start."""
        self._check_size(size)
        run = batch.runs[-1]
        run.seals = True
        rest = self._segment_end - log_end
        if rest:
            padding = pack_padding(
                log_end, rest, epoch=EPOCH, synced_offset=self.synced_end, store_ms=self.last_store_ms
            )
            run.data += padding
        start = self._segment_end
        self._segment_end += self._segment_bytes
        batch.runs.append(Run(start, 0))
        return start

    def _kick(self) -> None:
        batch = self._batch
        if self._turns < self._gather_turns and batch is not None and batch.bytes < GATHER_BYTES:
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if batch is not None and self._busy is None and self.failure is None:
            self._busy = batch
            self._batch = None
            passing("append.handing_over")
            self.submit(batch)
            passing("append.handed_over")

    def complete(self, batch: Batch, error: Exception | None) -> None:
        """The writer's report on one batch."""
        if self.failure is not None:  # poisoned meanwhile, its futures have failed
            return
        if error is not None and not isinstance(error, StoreFull):
            self.poison(f"writing the commit log at offset {batch.start} failed: {error}")
            return
        self._busy = None
        if error is not None:
            self._take_back(batch, error)
            return
        passing("answer.before")
        touched = batch.touched
        for queue, end in touched.items():
            queue.max_offset = end
        self.dirty.update(dict.fromkeys(touched))
        self._count(batch)
        for timers, ended in batch.timer_changes:
            self.on_timers(timers, ended)
        if self._batch is not None:
            self._turns = 0
            self._kick_due = True
            self._kick()  # the writer goes on while the senders are answered
        if self._waiters:
            self._wake_waiters()
        self._answer(batch.futures, max(1, len(batch.futures) * ANSWER_BYTES // batch.bytes))
        if touched and self.on_dispatched is not None:
            self.on_dispatched([(queue.topic_id, queue.queue_id, end) for queue, end in touched.items()])
        passing("answer.after")
        self.on_growth()

    def _answer(self, futures: list[asyncio.Future[None]], count: int) -> None:
        """Tell senders, `count` of them in one turn: those told first bring the next group before the last are told,
        so that the writer writes while the loop packs.
        """
        for future in futures[:count]:
            if not future.done():
                future.set_result(None)
        if len(futures) > count:
            self._loop.call_soon(self._answer, futures[count:], count)

    def _count(self, batch: Batch) -> None:
        stats = self.stats
        stats.messages += batch.messages
        stats.states += batch.states
        stats.timers += batch.timers
        stats.bytes += batch.bytes
        stats.batches += 1
        stats.waiting -= batch.messages + batch.states + batch.timers
        stats.log_end = batch.end
        self._waiting_bytes -= batch.bytes
        self._oldest += batch.placed
        self.unfiled += batch.messages
        if self._synchronous:
            self.synced_end = stats.log_synced = batch.end
        self._shrink_cache()

    def _shrink_cache(self) -> None:
        limit = self._options.cache_bytes
        oldest = self._oldest
        while self._cache_bytes > limit and oldest:
            queue, count, payload_bytes = oldest.popleft()
            queue.drop_oldest(count)
            self._cache_bytes -= payload_bytes
        self.stats.cache_bytes = self._cache_bytes

    def set_full(self, reason: StoreFull | None) -> None:
        """Refuse messages, or take them again."""
        self.full = reason
        self.blocked = reason is not None or self.closed or self.failure is not None

    def close(self) -> None:
        """Take no more appends."""
        self.closed = self.blocked = True

    # -- what went wrong ----------------------------------------------------------------------------------------------

    def _refuse(self, entries: Sequence[object]) -> None:
        """Raise the error that says why nothing is taken."""
        self.stats.refused += 1
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise StorePoisoned("the store is closed: no append can be stored")
        if not entries:
            raise BadRequest("append takes at least one message, not none")
        if self.full is not None:
            raise StoreFull(str(self.full))
        raise TooManyRequests(
            f"{self.stats.waiting} records of {self._waiting_bytes} bytes wait for the disk, the limits are "
            f"{self._options.append_queue_max} records and {self._options.append_bytes_max} bytes: retry after a pause"
        )

    def _check_size(self, size: int) -> None:
        if size > self._segment_bytes:
            raise BodyTooLarge(f"a record of {size} bytes is over the log's file size of {self._segment_bytes} bytes")

    def _take_back_call(self, batch: Batch, entries: Sequence[Append], mark: tuple[int, int, int, int]) -> None:
        """Undo one call of which something could not be packed."""
        runs, size, self._segment_end, placed = mark
        self._unplace(batch, placed)
        for entry in entries:
            queue = self._queues.get((entry.topic_id, entry.queue_id))
            if queue is not None:
                queue.trim_tail()
                batch.touched[queue] = queue.next_offset
            entry.queue_offset = entry.log_offset = entry.store_ms = -1
        del batch.runs[runs:]
        batch.runs[-1].seals = False
        del batch.runs[-1].data[size:]
        if not batch.futures:
            self._batch = None

    def _unplace(self, batch: Batch, first: int = 0) -> None:
        """Let go of what was placed from place `first` of the group on."""
        for queue, count, payload_bytes in reversed(batch.placed[first:]):
            del queue.hot[-count:]
            queue.next_offset -= count
            self._cache_bytes -= payload_bytes
        del batch.placed[first:]

    def _take_back(self, batch: Batch, error: StoreFull) -> None:
        """The disk was full: nothing of `batch` is in the log, so its places and those behind it are free again."""
        self.set_full(error)
        self._taken_back += 1
        batches = [batch] if self._batch is None else [self._batch, batch]
        self._batch = None
        for taken in batches:
            self._unplace(taken)
            for queue in taken.touched:
                queue.trim_tail()
            records = taken.messages + taken.states + taken.timers
            self.stats.waiting -= records
            self.stats.refused += records
            self._waiting_bytes -= taken.bytes
        self._assigned_end = batch.start
        self._segment_end = batch.runs[0].start + self._segment_bytes
        self._wake_waiters()
        for taken in reversed(batches):
            for future in taken.futures:
                if not future.done():
                    future.set_exception(StoreFull(str(error)))

    def poison(self, reason: str) -> None:
        """Stop for good: what is on disk is unknown. Every waiting and later append fails with StorePoisoned."""
        if self.failure is not None:
            return
        self.failure = failure = StorePoisoned(f"{reason}; the store stopped, restart the broker to recover it")
        self.blocked = True
        batches = [batch for batch in (self._busy, self._batch) if batch is not None]
        self._busy = self._batch = None
        self._wake_waiters()
        for batch in batches:
            for future in batch.futures:
                if not future.done():
                    future.set_exception(StorePoisoned(str(failure)))
        if self.on_failure is not None:
            self.on_failure(failure)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
