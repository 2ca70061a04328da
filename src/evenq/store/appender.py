"""The loop's half of the write path: takes appends, hands groups of them to the writer, makes them consumable.

Called on the loop thread only. Between `append` and the writer's report a record has a place (`Packer`) but is not
consumable; if the disk was full, the places are taken back, if anything else failed the store is poisoned. While the
writer has one group, the next one gathers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from evenq.errors import BadRequest, Error, StoreFull, StorePoisoned, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.consume_queue import ConsumeQueue
from evenq.store.hot_cache import HotCache
from evenq.store.messages import Append, AppendBlock, OnDispatched, TimerAppend
from evenq.store.options import FlushMode, StoreOptions, StoreStats
from evenq.store.packer import Packer
from evenq.store.record import HEADER_BYTES
from evenq.store.writer import Batch

__all__ = ["Appender"]

GATHER_BYTES = 256 << 10  # a group of this size does not wait for more
ANSWER_BYTES = 1 << 20  # senders of so many bytes are told in one turn


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
        self._options = options
        self._now_ms = clock.now_ms
        self._loop = asyncio.get_running_loop()
        self.submit: Callable[[Batch], None] = lambda _: None
        self.on_failure: Callable[[Error], None] | None = None
        self.on_full: Callable[[], None] = lambda: None
        """Called when `full` changes between a reason and none."""
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
        self._packer = Packer(queues, segment_bytes=segment_bytes, end=log_end)
        self._cache = HotCache(options.cache_bytes)
        self._waiting_max = options.append_queue_max
        self._end_max = log_end + options.append_bytes_max
        """No message is placed at or behind this log offset: it moves on with what is safe."""
        self._busy: Batch | None = None
        """What the writer has."""
        self._kick_due = False
        self._gather_turns = gather_turns
        self._turns = 0
        """Turns of the loop that the present group has waited."""
        self._waiters: list[asyncio.Future[None]] = []
        self._taken_back = 0
        """How often a full disk freed places again."""
        self._last_full: StoreFull | None = None

    # -- appends ------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Append]) -> asyncio.Future[None]:
        """Give places to messages and queue them. See `MessageStore.append`."""
        if self.blocked or not entries or self._overloaded():
            self._refuse(entries)
        self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)
        return self._joined(self._packer.pack(entries, store_ms, self.synced_end), len(entries))

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        """Queue one opaque record. See `MessageStore.append_state`."""
        if self.failure is not None or self.closed:
            self._refuse(())
        self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)
        return self._joined(self._packer.pack_state(payload, store_ms, self.synced_end), 1)

    def append_group(
        self, entries: Sequence[Append], *, state: bytes, timers: Sequence[TimerAppend], ended: Sequence[int],
        moves: bool = False, blocks: Sequence[AppendBlock] = (),
    ) -> asyncio.Future[None]:  # fmt: skip
        """One all-or-nothing group: blocks of messages, messages, timers, the end of timers, state, in this order. See
        `MessageStore.append`. `moves`: the timers are old ones, so that their file can go; they may use
        `reserve_bytes` of the disk's reserve.

        The plain `append` is not told apart from within, so that it stays as fast as it is.
        """
        if moves and self.full is not None and not self.closed and self.failure is None and self.reserve_bytes > 0:
            self.reserve_bytes -= sum(HEADER_BYTES + len(timer.head) + len(timer.system) for timer in timers)
        elif entries or timers or blocks:
            if self.blocked or self._overloaded():
                self._refuse(entries or timers or blocks)
        elif self.failure is not None or self.closed:
            self._refuse(())
        self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)
        batch = self._packer.pack_mixed(entries, timers, ended, state, store_ms, self.synced_end, blocks)
        return self._joined(batch, len(entries) + sum(map(len, blocks)) + len(timers) + bool(ended) + bool(state))

    def _overloaded(self) -> bool:
        return self.stats.waiting >= self._waiting_max or self._packer.end >= self._end_max

    def _joined(self, batch: Batch, records: int) -> asyncio.Future[None]:
        """A call's records are in the group: see that the writer gets it."""
        self.stats.waiting += records
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
        return self._packer.end

    async def settled(self) -> None:
        """Wait until every append so far has its outcome. Raises StoreFull or StorePoisoned if one of them failed."""
        target, refused = self._packer.end, self._taken_back
        while self.stats.log_end < target and self.failure is None and self._taken_back == refused:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self.failure is not None:
            raise self.failure
        if self._taken_back != refused:  # gone, even if the disk has space again by now
            raise StoreFull(str(self._last_full))

    # -- groups -------------------------------------------------------------------------------------------------------

    def _kick(self) -> None:
        batch = self._packer.batch
        if self._turns < self._gather_turns and batch is not None and batch.bytes < GATHER_BYTES:
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if batch is not None and self._busy is None and self.failure is None:
            self._busy = self._packer.take()
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
        if self._packer.batch is not None:
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
        stats.waiting -= batch.records
        stats.log_end = batch.end
        self._end_max = batch.end + self._options.append_bytes_max
        self.unfiled += batch.messages
        if self._synchronous:
            self.synced_end = stats.log_synced = batch.end
        self._cache.add(batch)
        stats.cache_bytes = self._cache.bytes

    def set_full(self, reason: StoreFull | None) -> None:
        """Refuse messages, or take them again."""
        changed = (reason is None) != (self.full is None)
        self.full = reason
        self.blocked = reason is not None or self.closed or self.failure is not None
        if changed:
            self.on_full()

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
        size = self._packer.end - self.stats.log_end
        raise TooManyRequests(
            f"{self.stats.waiting} records of {size} bytes wait for the disk, the limits are "
            f"{self._options.append_queue_max} records and {self._options.append_bytes_max} bytes: retry after a pause"
        )

    def _take_back(self, batch: Batch, error: StoreFull) -> None:
        """The disk was full: nothing of `batch` is in the log, so its places and those behind it are free again."""
        self.set_full(error)
        self._taken_back += 1
        self._last_full = error
        groups = self._packer.take_back(batch)
        for group in groups:
            self.stats.waiting -= group.records
            self.stats.refused += group.records
        self._wake_waiters()
        _fail(groups, lambda: StoreFull(str(error)))

    def poison(self, reason: str) -> None:
        """Stop for good: what is on disk is unknown. Every waiting and later append fails with StorePoisoned."""
        if self.failure is not None:
            return
        self.failure = failure = StorePoisoned(f"{reason}; the store stopped, restart the broker to recover it")
        self.blocked = True
        groups = [group for group in (self._busy, self._packer.take()) if group is not None]
        self._busy = None
        self._wake_waiters()
        _fail(groups, lambda: StorePoisoned(str(failure)))
        if self.on_failure is not None:
            self.on_failure(failure)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _fail(groups: list[Batch], error: Callable[[], Error]) -> None:
    """Tell the senders of these groups."""
    for group in groups:
        for future in group.futures:
            if not future.done():
                future.set_exception(error())
