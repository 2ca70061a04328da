"""The loop's half of the write path: takes appends, hands groups of them to the writer, makes them consumable.

Called on the loop thread only. Between `append` and the writer's report a record has a place (`Packer`) but is not
consumable; if the disk was full, the places are taken back, if anything else failed the store is poisoned. While the
writer has one group, the next one gathers.

In a log with copies (`LogState.replicated`) groups that were written wait, in order, until `commit` says that every
in-sync copy has them; only then the same things happen that otherwise follow the writer's report. The writer goes on
meanwhile. What waits is in the log: a full disk takes back what is behind it.

There the owner may take messages before they are committed, and even before they are written (`on_gathering`), if
no client hears of it before a record behind them is committed: a log has nothing without all that is before it. What is
taken so in time has its record in the same group. A full disk may take such messages back: `on_taken_back`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy

from evenq.errors import BadRequest, Error, StoreFull, StorePoisoned, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.hot_cache import HotCache
from evenq.store.log.log_state import LogState
from evenq.store.log.messages import Append, AppendBlock, OnDispatched, TimerAppend
from evenq.store.log.options import FlushMode, StoreOptions
from evenq.store.log.packer import Packer
from evenq.store.log.recent_groups import RecentGroups
from evenq.store.log.record import HEADER_BYTES
from evenq.store.log.writer import WriteBatch

__all__ = ["Appender"]

GATHER_BYTES = 256 << 10  # a group of this size does not wait for more
GATHER_MS = 5  # nor does one that has waited for this long: under a crowd a turn takes milliseconds (decision 57)
TAKING_TURNS = 2  # from the call that wakes who takes messages: first it takes, then it records that (decision 76)
ANSWER_BYTES = 1 << 20  # senders of this number of bytes are answered in one turn (decision 12)

OnGathering = Callable[[list[tuple[int, int, int]]], bool]
"""Gets (topic id, queue id, end) of queues."""


class Appender:
    """Places, groups and outcomes of appends. `submit` hands a batch to the writer, `complete` takes its report, and
    `commit` that of the copies.
    """

    def __init__(
        self,
        queues: dict[tuple[int, int], ConsumeQueue],
        state: LogState,
        options: StoreOptions,
        *,
        clock: Clock,
        segment_bytes: int,
        gather_turns: int = 0,
        epoch: int = 1,
    ) -> None:
        """`gather_turns`: turns of the loop that a group waits for others to join it before the writer gets it, but
        GATHER_MS at most. A turn without work is a few microseconds; a group alone costs the writer's thread and ours
        two switches. `epoch`: of the leader that appends, for the records' headers.
        """
        self._state = state
        self._stats = state.stats
        state.on_poison = self._give_up
        self._options = options
        self._now_ms = clock.now_ms
        self._monotonic_ms = clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self.submit: Callable[[WriteBatch], None] = lambda _: None
        self.on_growth: Callable[[], None] = lambda: None
        """Called after each batch that was written or became safe, for the flusher."""
        self.on_dispatched: OnDispatched | None = None
        self.on_timers: Callable[[Sequence[TimerAppend], Sequence[int]], None] = lambda _, __: None
        """Called for each call that is safe now and had timers or ends, in the step that moves the log's safe end."""
        self.on_written: Callable[[int], None] = lambda _: None
        """Called with the new end for each batch that is written and waits for its commit; the owner's."""
        self.on_gathering: OnGathering = lambda _: False
        """Of a log with copies: called when messages have joined the group that gathers, with all its queues and their
        ends. True: somebody takes them now, so the group waits TAKING_TURNS for what that appends.
        """
        self.on_taken_back: OnDispatched = lambda _: None
        """Called before those are told whose group found the disk full, with its queues and where they end now."""
        self._synchronous = options.flush is FlushMode.SYNC
        self._replicated = state.replicated
        self._packer = Packer(queues, segment_bytes=segment_bytes, end=state.stats.log_end, epoch=epoch)
        self._cache = HotCache(options.cache_bytes)
        self._waiting_max = options.append_queue_max
        self._end_max = state.stats.log_end + options.append_bytes_max
        """No message is placed at or behind this log offset: it moves on with what is safe."""
        self._busy: WriteBatch | None = None
        """What the writer has."""
        self._uncommitted: deque[WriteBatch] = deque()
        """What is written and waits for its commit, in order. The bounds of what waits are its bounds."""
        self._committed_end = 0
        self.recent = RecentGroups()
        """Of a replicated store."""
        self._left: Error | None = None
        """Told to those whose records waited when the store closed."""
        self._kick_due = False
        self._gather_turns = gather_turns
        self._turns = 0
        """Turns of the loop that the present group has waited."""
        self._gather_until_ms = 0
        self._announced = 0
        """Messages of the group that gathers of which `on_gathering` was told."""
        self._taking_turns = 0
        """Turns that the group still waits for those who take its messages."""
        self._waiters: list[asyncio.Future[None]] = []
        self._last_full: StoreFull | None = None

    # -- appends ------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Append]) -> asyncio.Future[None]:
        """Give places to messages and queue them. See `MessageStore.append`."""
        state = self._state
        if state.blocked or not entries or self._overloaded():
            self._refuse(entries)
        # Store times never fall although the clock may (D10): reads by time and retention search by halves.
        state.last_store_ms = store_ms = max(self._now_ms(), state.last_store_ms)
        return self._joined(self._packer.pack(entries, store_ms, state.synced_end), len(entries))

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        """Queue one opaque record. See `MessageStore.append_state`."""
        state = self._state
        # Neither a full disk nor too many waiting messages refuse state: acks and offsets must go on (D9).
        if state.stopped:
            self._refuse(())
        state.last_store_ms = store_ms = max(self._now_ms(), state.last_store_ms)
        return self._joined(self._packer.pack_state(payload, store_ms, state.synced_end), 1)

    def append_group(
        self, entries: Sequence[Append], *, state: bytes, timers: Sequence[TimerAppend], ended: Sequence[int],
        moves: bool = False, blocks: Sequence[AppendBlock] = (),
    ) -> asyncio.Future[None]:  # fmt: skip
        """One all-or-nothing group: blocks of messages, messages, timers, the end of timers, state, in this order. See
        `MessageStore.append`. `moves`: the timers are old ones, so that their file can go; they may use
        `reserve_bytes` of the disk's reserve.

        The plain `append` is not told apart from within, so that it stays as fast as it is.
        """
        log = self._state
        # Moving timers is what frees space: refused with the messages, a full disk would stay full.
        if moves and log.full is not None and not log.stopped and log.reserve_bytes > 0:
            log.reserve_bytes -= sum(HEADER_BYTES + len(timer.head) + len(timer.system) for timer in timers)
        elif entries or timers or blocks:
            if log.blocked or self._overloaded():
                self._refuse(entries or timers or blocks)
        elif log.stopped:
            self._refuse(())
        log.last_store_ms = store_ms = max(self._now_ms(), log.last_store_ms)
        batch = self._packer.pack_mixed(entries, timers, ended, state, store_ms, log.synced_end, blocks)
        return self._joined(batch, len(entries) + sum(map(len, blocks)) + len(timers) + bool(ended) + bool(state))

    def _overloaded(self) -> bool:
        return self._stats.waiting >= self._waiting_max or self._packer.end >= self._end_max

    def _joined(self, batch: WriteBatch, records: int) -> asyncio.Future[None]:
        """A call's records are in the group: see that the writer gets it."""
        self._stats.waiting += records
        # With copies also while the writer is busy: what joins then may be taken by a parked receive (decision 76).
        if not self._kick_due and (self._busy is None or self._replicated):
            self._kick_due = True
            self._begin_to_gather()
            self._loop.call_soon(self._kick)  # at the end of this turn, so that its other appends come along
        future = self._loop.create_future()
        batch.futures.append(future)
        return future

    @property
    def assigned_end(self) -> int:
        """First log offset that no record has."""
        return self._packer.end

    async def settled(self) -> None:
        """Wait until every append so far has its outcome, and until what recovery found is committed. Raises StoreFull
        or StorePoisoned if an append failed, PersistenceTimeout if the store closed first, and what `abandon` was
        given.
        """
        state = self._state
        target, refused = self._packer.end, state.taken_back
        while (
            (state.stats.log_end < target or not state.certain)
            and state.failure is None
            and self._left is None
            and state.taken_back == refused
        ):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if state.failure is not None:
            raise state.failure
        if self._left is not None and (state.stats.log_end < target or not state.certain):
            raise copy(self._left)
        if state.taken_back != refused:  # gone, even if the disk has space again by now
            raise StoreFull(str(self._last_full))

    # -- groups -------------------------------------------------------------------------------------------------------

    def _begin_to_gather(self) -> None:
        self._turns = 0
        if self._gather_turns or self._replicated:
            self._gather_until_ms = self._monotonic_ms() + GATHER_MS

    def _kick(self) -> None:
        batch = self._packer.batch
        if self._replicated and batch is not None and self._is_being_taken(batch):
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        if (
            self._turns < self._gather_turns
            and self._busy is None
            and batch is not None
            and batch.bytes < GATHER_BYTES
            and self._monotonic_ms() < self._gather_until_ms
        ):
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if batch is not None and self._busy is None and self._state.failure is None:
            self._busy = self._packer.take()
            self._announced = 0
            passing("append.handing_over")
            self.submit(batch)
            passing("append.handed_over")

    def _is_being_taken(self, batch: WriteBatch) -> bool:
        """Let the group's new messages be taken; whether the group waits for the record of that."""
        if batch.messages > self._announced:
            self._announced = batch.messages
            if self.on_gathering([(queue.topic_id, queue.queue_id, end) for queue, end in batch.touched.items()]):
                self._taking_turns = TAKING_TURNS
        if not self._taking_turns or batch.bytes >= GATHER_BYTES or self._monotonic_ms() >= self._gather_until_ms:
            self._taking_turns = 0
            return False
        self._taking_turns -= 1
        return True

    def written(self, batch: WriteBatch) -> None:
        """The writer wrote a batch of a replicated store and begins to sync it: copies may have it meanwhile."""
        state = self._state
        if state.failure is None and self._left is None:
            self._stats.written_end = batch.end
            self.recent.keep(batch)
            self.on_written(batch.end)

    def complete(self, batch: WriteBatch, error: Exception | None) -> None:
        """The writer's report on one batch."""
        state = self._state
        if state.failure is not None or self._left is not None:  # stopped meanwhile, its futures have failed
            return
        # What is on disk is unknown after any error but a full disk, which was undone durably (`CommitLog._undo`).
        if error is not None and not isinstance(error, StoreFull):
            state.poison(f"writing the commit log at offset {batch.start} failed: {error}")
            return
        self._busy = None
        if error is not None:
            self._take_back(batch, error)
            return
        if self._replicated:
            self._await_commit(batch)
        else:
            self._stats.written_end = batch.end
            self._finish(batch)

    def _await_commit(self, batch: WriteBatch) -> None:
        """It is written: the writer goes on, the owner asks the copies."""
        self.recent.keep(batch)
        # Commits may stay away for long; the files have the bytes for followers that come later.
        batch.forget_bytes()
        self._uncommitted.append(batch)
        if self._packer.batch is not None and not self._kick_due:
            self._go_on()
        reported_end, self._stats.written_end = self._stats.written_end, batch.end
        self.on_growth()
        # With a sync for each group the owner heard of it before the sync (`written`), so that copies sync at the same
        # time.
        if batch.end > reported_end:
            self.on_written(batch.end)
        if self._synchronous:
            self._state.synced(batch.end)
        self.commit(min(self._committed_end, batch.end))  # copies may have been faster than the sync here

    def commit(self, end: int) -> None:
        """All below `end` is committed. See `MessageStore.commit`. Once the store has stopped, nothing waits here."""
        state, stats, groups = self._state, self._stats, self._uncommitted
        if end > stats.written_end:
            raise AssertionError(f"committed up to {end}, but this log is written up to {stats.written_end} only")
        # What recovery found is committed now too: only from here on may derived files tell of it.
        if not state.certain and end >= stats.log_end:
            state.certain = True
            self._wake_waiters()
        self._committed_end = max(self._committed_end, end)
        while groups and groups[0].end <= end:
            self._finish(groups.popleft())

    def _go_on(self) -> None:
        """The writer gets what has gathered."""
        self._begin_to_gather()
        self._kick_due = True
        self._kick()

    def _finish(self, batch: WriteBatch) -> None:
        """It is safe: its messages are consumable, its senders are answered."""
        passing("answer.before")
        touched = batch.touched
        # Before its senders are answered: who then reads must find its own message.
        for queue, end in touched.items():
            queue.max_offset = end
        self._state.dirty.update(dict.fromkeys(touched))
        # In the same step as the timers: a snapshot between the two would have the log's end without what it holds.
        self._count(batch)
        for timers, ended in batch.timer_changes:
            self.on_timers(timers, ended)
        if self._packer.batch is not None and self._busy is None and not self._kick_due:
            self._go_on()  # the writer has work while the senders are answered
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

    def _count(self, batch: WriteBatch) -> None:
        stats = self._stats
        stats.messages += batch.messages
        stats.states += batch.states
        stats.timers += batch.timers
        stats.bytes += batch.bytes
        stats.batches += 1
        stats.waiting -= batch.records
        stats.log_end = batch.end
        self._end_max = batch.end + self._options.append_bytes_max
        self._state.unfiled += batch.messages
        if self._synchronous:
            self._state.synced(batch.end)
        self._cache.add(batch)
        stats.cache_bytes = self._cache.bytes

    # -- what went wrong ----------------------------------------------------------------------------------------------

    def _refuse(self, entries: Sequence[object]) -> None:
        """Raise the error that says why nothing is taken."""
        state = self._state
        state.stats.refused += 1
        if state.failure is not None:
            # A copy: one that is raised again and again would keep the stack of each time.
            raise copy(state.later or state.failure)
        if state.closed:
            raise StorePoisoned("the store is closed: no append can be stored")
        if state.refusal is not None:
            raise copy(state.refusal)
        if not entries:
            raise BadRequest("append takes at least one message, not none")
        if state.full is not None:
            raise StoreFull(str(state.full))
        size = self._packer.end - state.stats.log_end
        goal = "to be committed" if self._replicated else "for the disk"
        raise TooManyRequests(
            f"{state.stats.waiting} records of {size} bytes wait {goal}, the limits are "
            f"{self._options.append_queue_max} records and {self._options.append_bytes_max} bytes: retry after a pause"
        )

    def _take_back(self, batch: WriteBatch, error: StoreFull) -> None:
        """The disk was full: nothing of `batch` is in the log, so its places and those behind it are free again."""
        self._state.set_full(error)
        self._state.taken_back += 1
        self._last_full = error
        self._announced = 0
        groups = self._packer.take_back(batch, self._uncommitted)
        # Before the senders hear of it: a retry gets the same places, and must not meet deliveries of the messages
        # before.
        self.on_taken_back([(one.topic_id, one.queue_id, one.next_offset) for group in groups for one in group.touched])
        for group in groups:
            self._stats.waiting -= group.records
            self._stats.refused += group.records
        self._wake_waiters()
        _fail(groups, error)

    def leave(self, error: Error) -> None:
        """The store closes: who still waits is told `error`. What was written stays in the log."""
        self._left = error
        self._give_up(error)

    def _give_up(self, error: Error) -> None:
        groups = [*self._uncommitted, *(group for group in (self._busy, self._packer.take()) if group is not None)]
        self._uncommitted.clear()
        self._busy = None
        self._wake_waiters()
        _fail(groups, error)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _fail(groups: list[WriteBatch], error: Error) -> None:
    """Tell the senders of these groups, each with an error of its own."""
    for group in groups:
        for future in group.futures:
            if not future.done():
                future.set_exception(copy(error))
