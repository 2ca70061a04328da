"""The loop's half of the write path: accepts appends, passes groups of them to the writer, makes them consumable.

On the loop thread only. Between `append` and the writer's report a record has a place (`Packer`) but is not consumable.
If the disk was full, the places are taken back; any other failure poisons the store. While the writer has one group,
the next one gathers. A small group is written on the loop if the writer permits that, at the end of the turn that made
it: it does not gather for longer, because no thread is woken for it.

In a log with copies (`LogState.replicated`) written groups wait, in order, until `commit` says that every in-sync copy
has them; only then follows what otherwise follows the writer's report. The writer continues in the meantime. The
waiting groups are in the log, so a full disk takes back only later ones.

There the owner may take messages before they are committed, and even before they are written (`on_gathering`). No
client may get them before a later record is committed, since a log has nothing without all that precedes it. A record
of the take joins the same group if it is appended in time. A full disk may take such messages back: `on_taken_back`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy

from evenq.errors import BadRequest, Error, StoreFull, StorePoisoned, TooManyRequests
from evenq.runtime.accelerator import accelerator
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.hot_cache import HotCache
from evenq.store.log.log_state import LogState
from evenq.store.log.messages import Append, AppendBlock, OnDispatched, TimerAppend
from evenq.store.log.native_packer import packer_of
from evenq.store.log.options import FlushMode, StoreOptions
from evenq.store.log.recent_groups import RecentGroups
from evenq.store.log.record import HEADER_BYTES
from evenq.store.log.writer import WriteBatch, Writer

GATHER_BYTES = 256 << 10  # a group of this size does not wait for more
GATHER_MS = 5  # nor does one that has waited for this long: under load a turn takes milliseconds (decision 57)
TAKING_TURNS = 2  # after the call that wakes a receive: first it takes messages, then it records that (decision 76)
ANSWER_BYTES = 1 << 20  # senders of this number of bytes are answered in one turn (decision 12)

OnGathering = Callable[[list[tuple[int, int, int]]], bool]
"""Called with (topic id, queue id, end) of queues."""


class Appender:
    """Places, groups and outcomes of appends. `complete` handles the writer's report, `commit` that of the copies."""

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
        """`gather_turns`: turns of the loop that a group waits for more appends before the writer gets it, for at most
        GATHER_MS. An idle turn takes a few microseconds; a group alone costs two thread switches. `epoch`: of the
        leader that appends, for the records' headers.
        """
        self._state = state
        self._stats = state.stats
        state.on_poison = self._give_up
        self._options = options
        self._now_ms = clock.now_ms
        self._monotonic_ms = clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self.writer: Writer
        """Set by the owner, because the writer reports to `complete`: `submit` does that in a later step, `write_here`
        usually before it returns.
        """
        self.on_growth: Callable[[], None] = lambda: None
        """Called after each batch that was written or became safe; the flusher's."""
        self.on_dispatched: OnDispatched | None = None
        self.on_timers: Callable[[Sequence[TimerAppend], Sequence[int]], None] = lambda _, __: None
        """Called for each safe call with timers or ends, in the step that moves the log's safe end."""
        self.on_written: Callable[[int], None] = lambda _: None
        """Called with the new end for each batch that is written and waits for its commit; the owner's."""
        self.on_gathering: OnGathering = lambda _: False
        """In a log with copies: called with all queues of the gathering group and their ends when messages joined it.
        Returns True if some are taken now: then the group waits TAKING_TURNS for the record of that.
        """
        self.on_taken_back: OnDispatched = lambda _: None
        """Called with the queues of a group that found the disk full and their new ends, before its appends fail."""
        self._synchronous = options.flush is FlushMode.SYNC
        self._replicated = state.replicated
        self._packer = packer_of(
            accelerator().module, queues, segment_bytes=segment_bytes, end=state.stats.log_end, epoch=epoch
        )
        self._cache = HotCache(options.cache_bytes)
        self._waiting_max = options.append_queue_max
        self._end_max = state.stats.log_end + options.append_bytes_max
        """No message gets a place at or after this log offset, which moves with what is safe."""
        self._busy: WriteBatch | None = None
        """The batch that the writer has."""
        self._uncommitted: deque[WriteBatch] = deque()
        """Written batches that wait for their commit, in order. The limits of waiting records bound it."""
        self._committed_end = 0
        self.recent = RecentGroups()
        """Only used in a replicated store."""
        self._left: Error | None = None
        """Error of the records that waited when the store closed."""
        self._kick_due = False
        self._gather_turns = gather_turns
        self._turns = 0
        """Turns of the loop that the present group has waited."""
        self._gather_until_ms = 0
        self._announced = 0
        """Messages of the gathering group of which `on_gathering` was notified."""
        self._taking_turns = 0
        """Turns that the group still waits for the record of messages that were taken."""
        self._waiters: list[asyncio.Future[None]] = []
        self._last_full: StoreFull | None = None

    def append(self, entries: Sequence[Append]) -> asyncio.Future[None]:
        """Places messages and queues them. See `MessageStore.append`."""
        state = self._state
        if state.blocked or not entries or self._overloaded():
            self._refuse(entries)
        # Store times never fall although the clock may (D10): reads by time and retention use binary search.
        state.last_store_ms = store_ms = max(self._now_ms(), state.last_store_ms)
        return self._joined(self._packer.pack(entries, store_ms, state.synced_end), len(entries))

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        """Queues one opaque record. See `MessageStore.append_state`."""
        state = self._state
        # A full disk or too many waiting messages do not refuse state: acks and offsets must still be accepted (D9).
        if state.stopped:
            self._refuse(())
        state.last_store_ms = store_ms = max(self._now_ms(), state.last_store_ms)
        return self._joined(self._packer.pack_state(payload, store_ms, state.synced_end), 1)

    def append_group(
        self,
        entries: Sequence[Append],
        *,
        state: bytes,
        timers: Sequence[TimerAppend],
        ended: Sequence[int],
        moves: bool = False,
        blocks: Sequence[AppendBlock] = (),
    ) -> asyncio.Future[None]:
        """Queues one all-or-nothing group: blocks of messages, messages, timers, the end of timers, state, in this
        order. See `MessageStore.append`. `moves`: the timers are old ones, moved so that their file can be deleted;
        they may use `reserve_bytes` of the disk's reserve. The plain `append` is separate, so that it stays fast.
        """
        log = self._state
        # Moving timers frees space: if it were refused with the messages, a full disk would stay full.
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
        """Adds a call's records to the group, and ensures that the writer gets it."""
        self._stats.waiting += records
        # With copies also while the writer is busy: a waiting receive may take what joins (decision 76).
        if not self._kick_due and (self._busy is None or self._replicated):
            self._kick_due = True
            self._begin_to_gather()
            self._loop.call_soon(self._kick)  # at the end of this turn, so that its other appends join
        future = self._loop.create_future()
        batch.futures.append(future)
        return future

    @property
    def assigned_end(self) -> int:
        """First log offset without a record."""
        return self._packer.end

    async def settled(self) -> None:
        """Waits until every append so far has its outcome, and what recovery found is committed. Raises StoreFull or
        StorePoisoned if an append failed, PersistenceTimeout if the store closed first, and the error of `abandon`.
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
        if state.taken_back != refused:  # the records are gone, even if the disk has space again by now
            raise StoreFull(str(self._last_full))

    def _begin_to_gather(self) -> None:
        self._turns = 0
        if self._gather_turns or self._replicated:
            self._gather_until_ms = self._monotonic_ms() + GATHER_MS

    def _kick(self, *, may_write: bool = True) -> None:
        batch = self._packer.batch
        if self._replicated and batch is not None and self._is_being_taken(batch):
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        due = batch is not None and self._busy is None and self._state.failure is None
        here = due and may_write and batch is not None and self.writer.writes_here(batch)
        if (
            self._turns < self._gather_turns
            and self._busy is None
            and batch is not None
            # With copies a group is a message to each of them, so it gathers wherever it is written.
            and (not here or self._replicated)
            and batch.bytes < GATHER_BYTES
            and self._monotonic_ms() < self._gather_until_ms
        ):
            self._turns += 1
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if due and batch is not None:
            self._busy = self._packer.take()
            self._announced = 0
            passing("append.handing_over")
            if here:
                self.writer.write_here(batch)
            else:
                self.writer.submit(batch)
            passing("append.handed_over")

    def _is_being_taken(self, batch: WriteBatch) -> bool:
        """Offers the group's new messages; returns whether the group waits for the record that some were taken."""
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
        """Handles a batch of a replicated store that is written and not yet synced: copies may get it meanwhile."""
        state = self._state
        if state.failure is None and self._left is None:
            self._stats.written_end = batch.end
            self.recent.keep(batch)
            self.on_written(batch.end)

    def complete(self, batch: WriteBatch, error: Exception | None) -> None:
        """Handles the writer's report on one batch."""
        state = self._state
        if state.failure is not None or self._left is not None:  # stopped meanwhile, its futures have failed
            return
        # After any error but a full disk, which was undone (`CommitLog._undo`), the content of the disk is unknown.
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
        """Queues a written batch for its commit: the writer continues, the owner collects the copies' confirmations."""
        self.recent.keep(batch)
        # A commit may take long; for followers that come later the files have the bytes.
        batch.forget_bytes()
        self._uncommitted.append(batch)
        if self._packer.batch is not None and not self._kick_due:
            self._go_on()
        reported_end, self._stats.written_end = self._stats.written_end, batch.end
        self.on_growth()
        # With a sync per group the owner was notified before it (`written`), so that copies sync at the same time.
        if batch.end > reported_end:
            self.on_written(batch.end)
        if self._synchronous:
            self._state.synced(batch.end)
        self.commit(min(self._committed_end, batch.end))  # copies may have been faster than the sync here

    def commit(self, end: int) -> None:
        """Commits all below `end`. See `MessageStore.commit`. Once the store has stopped, nothing waits here."""
        state, stats, groups = self._state, self._stats, self._uncommitted
        if end > stats.written_end:
            raise AssertionError(f"committed up to {end}, but this log is written up to {stats.written_end} only")
        # The log that recovery found is committed too now: derived files may cover it.
        if not state.certain and end >= stats.log_end:
            state.certain = True
            self._wake_waiters()
        self._committed_end = max(self._committed_end, end)
        while groups and groups[0].end <= end:
            self._finish(groups.popleft())

    def _go_on(self) -> None:
        """Passes what has gathered to the writer's thread: written here, its senders would be answered before those of
        the group that is being completed.
        """
        self._begin_to_gather()
        self._kick_due = True
        self._kick(may_write=False)

    def _finish(self, batch: WriteBatch) -> None:
        """Makes the messages of a safe batch consumable and answers its senders."""
        passing("answer.before")
        touched = batch.touched
        # Before the answers: a sender that then reads must find its own message.
        for queue, end in touched.items():
            queue.max_offset = end
        self._state.dirty.update(dict.fromkeys(touched))
        # In the same step as the timers: a snapshot in between would cover the log's end without its timers.
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
        """Answers `count` senders in this turn and the rest later: the first ones fill the next group before the last
        are answered, so that the writer writes while the loop packs.
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

    def _refuse(self, entries: Sequence[object]) -> None:
        """Raises the error that says why nothing is accepted."""
        state = self._state
        state.stats.refused += 1
        if state.failure is not None:
            # A copy: an exception that is raised repeatedly would keep the traceback of each time.
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
        """Frees the places of a batch that found the disk full, and of later ones: nothing of them is in the log."""
        self._state.set_full(error)
        self._state.taken_back += 1
        self._last_full = error
        self._announced = 0
        groups = self._packer.take_back(batch, self._uncommitted)
        # Before the appends fail: a retry gets the same places, and must not meet deliveries of the old messages.
        self.on_taken_back([(one.topic_id, one.queue_id, one.next_offset) for group in groups for one in group.touched])
        for group in groups:
            self._stats.waiting -= group.records
            self._stats.refused += group.records
        self._wake_waiters()
        _fail(groups, error)

    def leave(self, error: Error) -> None:
        """Fails waiting appends with `error`, because the store closes. Written records stay in the log."""
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
    """Fails the senders of these groups, each with an error object of its own."""
    for group in groups:
        for future in group.futures:
            if not future.done():
                future.set_exception(copy(error))
