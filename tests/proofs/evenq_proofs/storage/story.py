"""One store, used in any way and compared with lists after each step: what the stateful tests drive.

Over `Session` (append calls that survive as a prefix, whole) it adds what happens within one life: reads by offset,
tag, time and key, timers that fire one by one, topics that keep shorter, longer or for ever, a disk that is full for a
while. Each step adds a short line, so a failure tells its story.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from evenq.errors import Error, StoreFull
from evenq.store import Append, FlushMode, TimerAppend
from evenq_proofs.fault_disk import Keep
from evenq_proofs.storage.history import NEVER, Group, Queue
from evenq_proofs.storage.machine import Machine
from evenq_proofs.storage.session import TIMER_QUEUE, Violation
from evenq_proofs.storage.story_reads import Kept, StorySession
from evenq_proofs.storage.story_timers import TimerStory
from evenq_proofs.storage.trace_disk import Fault, TraceDisk
from evenq_proofs.storage.workload import message

__all__ = ["Kept", "Story"]

RESERVE_BYTES = 128 << 10
ENDLESS_BYTES = 1 << 40  # a disk without a size


class Story(TimerStory):
    """All that may happen to a store."""

    def __init__(self, flush: FlushMode, kept: Kept, cache_bytes: int) -> None:
        super().__init__(flush, kept, cache_bytes)
        self.lines: list[str] = []
        self.steps = 0
        self.number = 0
        self.failed = False
        self.low: dict[Queue, int] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start on the present disk."""
        snapshot_of = (lambda: b"%d" % self.history.states) if self.kept.automatic else None
        opened = await StorySession.open(
            self.disk, self.history, self.options, clock=self.clock, topic_retention_ms=self.kept.of,
            snapshot_of=snapshot_of,
        )  # fmt: skip
        assert isinstance(opened, StorySession)
        self.session = opened
        opened.kept, opened.clean_ms = self.kept, self.wall_ms

    async def begin(self) -> None:
        """The first start."""
        await self.open()
        self._fire()

    def _fire(self) -> None:
        self.session.store.fire_timers()
        self.session.firing = True

    async def reopen(self) -> None:
        """A stop in order; with a full disk there is space again before the start."""
        await self.session.close()
        if self.disk.hit and self.killing is not None:
            return  # it was killed while it stopped
        self.killing = None
        self._spacious()
        self.disk = TraceDisk(Machine(self.disk.machine.files()))
        await self.open()
        everything = len(self.history.groups)
        await self.session.compare(least=everything, most=everything, at=0)
        await self._after_start(lossy=False)

    async def crash(self, keep: Keep, after: int) -> None:
        """Stop the machine within the `after`-th change of the disk from now on, which may come in a later step."""
        self.disk.fault = Fault(self.disk.changes + after, errno.EIO, for_ever=True, short=0.5 if after % 2 else None)
        self.killing = keep
        if not after:
            await self._crash()

    async def _crash(self) -> None:
        keep, self.killing = self.killing, None
        assert keep is not None
        self.disk.fault = self.disk.fault or Fault(self.disk.changes, errno.EIO, for_ever=True)
        await self.session.close()
        at, history, machine = self.session.at, self.history, self.disk.machine
        synced = max((offset for _, offset in history.synced), default=0)
        lossy = keep is not Keep.ALL and self.options.flush is FlushMode.ASYNC
        least = history.certain(at) if lossy else history.acked(at)
        rng = random.Random(self.number)
        if keep is Keep.ALL:
            left = machine.copy()
        else:
            left = Machine(machine.cut_power(machine.units(512), lambda _: keep is Keep.SOME and rng.random() < 0.5))
        self._spacious()
        self.disk = TraceDisk(left)
        self.history = replace(history, synced=[])
        await self.open()
        found = await self.session.compare(least=least, most=len(history.groups), at=0)
        self.lines.append(f"  {found} of {len(history.groups)} append calls are left, at least {least} are due")
        self.history = self.session.history = history.cut(found)
        if lossy:
            self.cancelled = {head: end if end <= synced else NEVER for head, end in self.cancelled.items()}
        self.low.clear()
        await self._after_start(lossy=lossy)

    async def _after_start(self, *, lossy: bool) -> None:
        high = self.session.store.queue_range(*TIMER_QUEUE)[1]
        if high < len(self.fired):
            if not lossy:
                raise Violation(f"{len(self.fired)} timers had fired, {high} messages of them are left")
            del self.fired[high:]
        await self.absorb(self.session.store.queue_range(*TIMER_QUEUE)[0])
        self._fire()

    async def end(self) -> None:
        """All timers fire, the store stops and starts once more."""
        await self.step("the end", self._end())
        await self.session.close()

    async def _end(self) -> None:
        if self.killing is not None:
            await self._crash()
        await self._free()
        await self._compare()
        await self._fire_all()
        await self.reopen()

    async def step(self, line: str, work: Awaitable[None]) -> None:
        """Do one step, then look at what it did. Raises Violation with the story."""
        self.lines.append(line)
        self.steps += 1
        try:
            try:
                await work
                await self.clock.advance(0)  # what is due now fires in the next turns
                await self.absorb(len(self.fired))
                self._check()
            except Error as error:
                if self.killing is None or not self.disk.hit:
                    raise Violation(f"{type(error).__name__}: {error}") from error
            if self.killing is not None and self.disk.hit:
                await self._crash()
        except (AssertionError, Error) as error:
            self.failed = True
            raise Violation(f"{error}\nThe story:\n" + "\n".join(self.lines)) from error

    def _check(self) -> None:
        store = self.session.store
        if store.failure is not None and self.killing is None:
            raise Violation(f"the store stopped: {store.failure}")
        for queue, low in self.low.items():
            if store.queue_range(*queue)[0] < low:
                raise Violation(f"the minimum of {queue} fell from {low} to {store.queue_range(*queue)[0]}")
        for queue in self.queues():
            self.low[queue] = store.queue_range(*queue)[0]
        self.check_pending()

    # -- appends ------------------------------------------------------------------------------------------------------

    async def append(
        self, calls: Sequence[Sequence[tuple[Queue, int]]], *, state: bool = False, delays_ms: Sequence[int] = (),
        ends: int = 0,
    ) -> None:  # fmt: skip
        """Calls in one turn of the loop, each of (queue, size) messages; the last one gets all that comes along."""
        session = self.session
        try:
            for place, call in enumerate(calls):
                last = place == len(calls) - 1
                messages = [self._message(queue, size) for queue, size in call]
                timers = [self._timer(delay_ms) for delay_ms in delays_ms] if last else []
                ended = self.pending()[:ends] if last else []
                session.append(messages, state=last and state, timers=timers, ended=ended)
        except StoreFull:
            if not self.full:
                raise
        groups = list(session.waiting)
        failures = await session.settle()
        refused = [group for group in groups if isinstance(self._error_of(group), StoreFull)]
        if refused and (not self.full or refused != groups[len(groups) - len(refused) :]):
            raise Violation(f"refused {len(refused)} of {len(groups)} calls: {failures[0]}")
        session.take_back(refused)
        if len(failures) > len(refused):
            raise next(error for error in failures if not isinstance(error, StoreFull))

    async def states(self, count: int) -> None:
        """State records alone: they go on into the reserve of a disk that refuses messages."""
        for _ in range(count):
            self.session.append([], state=True)
        groups = list(self.session.waiting)
        failures = await self.session.settle()
        hard = self.disk.fault is not None and self.disk.fault.number == errno.ENOSPC
        if failures and not hard:
            raise failures[0]
        self.session.take_back([group for group in groups if isinstance(self._error_of(group), StoreFull)])

    @staticmethod
    def _error_of(group: Group) -> BaseException | None:
        return group.future.exception() if group.future is not None else None

    def _message(self, queue: Queue, size: int) -> Append:
        self.number += 1
        return message(queue, self.number, size)

    def _timer(self, delay_ms: int) -> TimerAppend:
        plain = self._message(TIMER_QUEUE, 30)
        return TimerAppend(
            *TIMER_QUEUE, plain.tag_hash, due_ms=self.clock.now_ms() + delay_ms, kind=1, born_ms=plain.born_ms,
            head=plain.head, system=plain.system,
        )  # fmt: skip

    # -- time, space --------------------------------------------------------------------------------------------------

    async def _pass(self, jump_ms: int, advance_ms: int) -> None:
        """The wall clock jumps, then time passes."""
        self.clock.jump_wall(jump_ms)
        self.wall_ms = self.session.clean_ms = max(self.wall_ms, self.clock.now_ms() + advance_ms)
        self.may_roll()
        await self.clock.advance(advance_ms)
        self.session._note_synced()
        await self.absorb(len(self.fired))

    async def time(self, jump_ms: int, advance_ms: int) -> None:
        """Time passes; the clock may go back."""
        await self._pass(jump_ms, advance_ms)

    async def clean(self) -> None:
        """Retention now."""
        self.may_roll()
        await self._unless_full(self.session.clean())

    async def expire(self) -> None:
        """All but what is kept for ever gets old and goes; pending timers in it are written again."""
        stats = self.session.store.stats
        size = self.session.store.identity.segment_bytes
        newest = (stats.log_end - 1) // size * size
        ahead = max(self.wall_ms, self.clock.now_ms()) - self.clock.now_ms()
        for jump_ms in (ahead, 30_000, 31_000):
            await self._pass(jump_ms, 300)
        await self.session.checkpoint()
        await self.clean()
        held = [
            stored.log_offset
            for queue in self.queues()
            if self.kept.of(queue[0]) == 0
            for stored in self.stored(queue)[: 1]
        ]  # fmt: skip
        expected = min([newest, *(offset // size * size for offset in held)])
        start = stats.log_end - self.session.store.stats.log_bytes
        if self.kept.automatic and not self.full and self.killing is None and start < expected:
            raise Violation(f"all before {expected} is old and still there: the log begins at {start}")

    async def fill(self, *, hard: bool, after: int) -> None:
        """From now on the disk is full: to its reserve only, or (`hard`) no write does it any more."""
        if self.killing is not None or self.full:
            return
        self.full = True
        if hard:
            short = 0.5 if after % 2 else None
            self.disk.fault = Fault(self.disk.changes + after, errno.ENOSPC, for_ever=True, short=short)
            return
        self.disk.bytes_max = RESERVE_BYTES
        self.disk.bytes_max = self.disk.bytes_used() + RESERVE_BYTES
        await self._pass(0, self.options.flush_interval_ms + 1)
        if self.session.store.full is None and self.disk.bytes_used():
            raise Violation("the disk is full to its reserve and the store takes messages")

    def _spacious(self) -> None:
        self.full = False
        self.disk.fault = None
        self.disk.bytes_max = ENDLESS_BYTES

    async def free(self) -> None:
        """Space again: so sends resume."""
        if self.killing is None:
            await self._free()

    async def _free(self) -> None:
        if self.full:
            self._spacious()
            await self._pass(0, self.options.flush_interval_ms + 1)
            if self.session.store.full is not None:
                raise Violation(f"there is space and the store refuses: {self.session.store.full}")

    async def save(self, what: str) -> None:
        """Checkpoint, snapshot or flush."""
        session = self.session
        work = {"checkpoint": session.checkpoint, "snapshot": session.save_snapshot, "flush": session.flush}[what]
        await self._unless_full(work())

    async def _unless_full(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StoreFull:
            if not self.full:
                raise

    async def _fire_all(self) -> None:
        put = self.put()
        if put:
            await self._pass(max(0, max(timer.due_ms for timer in put.values()) - self.clock.now_ms()), 0)
        for _ in range(100):
            if not self.session.store.timers.stats.pending:
                break
            await self._pass(0, 200)
        else:
            raise Violation(f"{self.session.store.timers.stats.pending} timers are due and do not fire")
        self.check_pending()

    async def _compare(self) -> None:
        everything = len(self.history.groups)
        await self.session.compare(least=everything, most=everything, at=0, live=True)
