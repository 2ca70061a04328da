"""One store, used in any way and compared with lists after each step: what the stateful tests drive.

Over `Session` (append calls that survive as a prefix, whole) it adds what happens within one life: reads by offset,
tag, time and key, timers that fire one by one, topics that keep shorter, longer or for ever, a disk that is full for a
while. Each step adds a short line, so a failure tells its story.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace

from evenq.errors import Error, StoreError, StoreFull
from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, StoredMessage, StoreOptions, TimerAppend
from evenq.store.fault_disk import Keep
from evenq.testing.storage.history import NEVER, Group, History, Queue
from evenq.testing.storage.machine import Machine
from evenq.testing.storage.session import OPTIONS, READ_MAX, TIMER_QUEUE, Session, Violation, keys_of
from evenq.testing.storage.trace_disk import Fault, TraceDisk
from evenq.testing.storage.workload import message

__all__ = ["Kept", "Story"]

USUAL_MS = 20_000
RESERVE_BYTES = 128 << 10
STORY_OPTIONS = replace(
    OPTIONS, retention_ms=USUAL_MS, snapshot_log_bytes=24_000, snapshot_interval_ms=1_000, disk_used_max_ratio=1e-6,
    disk_clean_ratio=1.0, disk_force_ratio=1.0,
)  # fmt: skip
ENDLESS_BYTES = 1 << 40  # a disk without a size


@dataclass(frozen=True, slots=True)
class Kept:
    """For how long topics keep their messages, ms; 0 for ever."""

    by_topic: tuple[tuple[int, int], ...] = ((2, 5_000), (7, 60_000), (9, 60_000))
    automatic: bool = True
    """Whether the store takes snapshots by itself."""

    def of(self, topic_id: int) -> int | None:
        """None: as the store says."""
        return dict(self.by_topic).get(topic_id)


class StorySession(Session):
    """A session whose messages expire by topic. `clean_ms`: the latest wall time seen."""

    kept = Kept()
    clean_ms = 0

    def expired_before(self, queue: Queue, at: int) -> int:
        del at
        kept_ms = self.kept.of(queue[0])
        kept_ms = USUAL_MS if kept_ms is None else kept_ms
        return self.clean_ms - kept_ms if kept_ms else 0


class Story:
    """The store, its disk, its clock and the lists."""

    def __init__(self, flush: FlushMode, kept: Kept, cache_bytes: int) -> None:
        self.options: StoreOptions = replace(STORY_OPTIONS, flush=flush, cache_bytes=cache_bytes)
        self.kept = kept
        self.clock = FakeClock()
        self.wall_ms = self.clock.now_ms()
        """The latest that the wall clock ever showed."""
        self.disk = TraceDisk()
        self.history = History()
        self.lines: list[str] = []
        self.steps = 0
        self.number = 0
        self.killing: Keep | None = None
        """The machine is about to stop in the middle of something; this much will be left."""
        self.full = False
        self.failed = False
        self.fired: list[StoredMessage] = []
        self.cancelled: dict[bytes, int] = {}
        """Head of a timer to the log's end when its cancellation was answered; NEVER if it was not answered."""
        self.rolled: set[bytes] = set()
        """Timers that retention may have given another id."""
        self.low: dict[Queue, int] = {}
        self.session: StorySession

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
        rng = random.Random(self.number)  # noqa: S311 - a seed
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
        await self._absorb(self.session.store.queue_range(*TIMER_QUEUE)[0])
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
                await self._absorb(len(self.fired))
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
        self._check_pending()

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
                ended = self._pending()[:ends] if last else []
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

    # -- timers -------------------------------------------------------------------------------------------------------

    def _put(self) -> dict[bytes, TimerAppend]:
        return {timer.head: timer for group in self.history.groups for timer in group.timers}

    def _ended(self) -> set[bytes]:
        """Ended for certain."""
        listed = {head for group in self.history.groups for head in group.ended}
        return listed | {head for head, log_end in self.cancelled.items() if log_end != NEVER}

    def _unsure(self) -> set[bytes]:
        """Perhaps ended, perhaps not."""
        return {head for head, log_end in self.cancelled.items() if log_end == NEVER} - self._ended()

    def _pending(self) -> list[TimerAppend]:
        """Pending for certain, not due yet, and under their first id; the next one due first."""
        gone = self._ended() | self._unsure() | self.rolled | {stored.head for stored in self.fired}
        return sorted(
            (timer for head, timer in self._put().items() if head not in gone and timer.due_ms > self.wall_ms),
            key=lambda timer: timer.due_ms,
        )

    async def cancel(self, index: int) -> None:
        """One that was put, whatever became of it."""
        put = list(self._put().values())
        if not put:
            return
        timer = put[index % len(put)]
        due = timer.head in {pending.head for pending in self._pending()}
        before = self.cancelled.get(timer.head)
        self.cancelled.setdefault(timer.head, NEVER)
        try:
            done = await self.session.store.cancel_timers([timer.log_offset])
        except StoreFull:
            if self.disk.fault is None:
                raise
            if before is None:
                del self.cancelled[timer.head]
            return
        if done:
            if timer.head in {stored.head for stored in self.fired} | self._ended():
                raise Violation(f"{timer!r} was cancelled, but it was not pending")
            self.cancelled[timer.head] = self.session.store.stats.log_end
        elif due:
            raise Violation(f"{timer!r} is pending and cannot be cancelled")
        elif before is None:
            del self.cancelled[timer.head]

    async def _absorb(self, start: int) -> None:
        """Look at the timers that fired: once each, not early, none that was cancelled."""
        low, high = self.session.store.queue_range(*TIMER_QUEUE)
        if low > len(self.fired) and start >= len(self.fired):
            raise Violation(f"messages {len(self.fired)} to {low} of fired timers are gone before anyone saw them")
        if start >= high:
            return
        result = await self.session.store.read(*TIMER_QUEUE, max(start, low), count_max=10_000, bytes_max=READ_MAX)
        put, ended = self._put(), self._ended()
        seen = {stored.head for stored in self.fired}
        for stored in result.messages:
            if stored.queue_offset < len(self.fired):
                _same(stored, self.fired[stored.queue_offset])
                continue
            timer = put.get(stored.head)
            if timer is None or stored.system != timer.system or stored.tag_hash != timer.tag_hash:
                raise Violation(f"{stored!r} is no timer's")
            if stored.head in seen or stored.head in ended:
                raise Violation(f"{timer!r} fired {'again' if stored.head in seen else 'although it was ended'}")
            if self.wall_ms < timer.due_ms or stored.store_ms < timer.due_ms:
                raise Violation(f"{timer!r} fired early, at {self.wall_ms}")
            seen.add(stored.head)
            self.fired.append(stored)

    def _check_pending(self) -> None:
        gone = self._ended() | {stored.head for stored in self.fired}
        left = self._put().keys() - gone
        least = len(left - self._unsure())
        found = self.session.store.timers.stats.pending
        if not least <= found <= len(left) and self.killing is None:
            raise Violation(f"{found} timers are pending, {least} to {len(left)} should be")

    async def _fire_all(self) -> None:
        put = self._put()
        if put:
            await self._pass(max(0, max(timer.due_ms for timer in put.values()) - self.clock.now_ms()), 0)
        for _ in range(100):
            if not self.session.store.timers.stats.pending:
                break
            await self._pass(0, 200)
        else:
            raise Violation(f"{self.session.store.timers.stats.pending} timers are due and do not fire")
        self._check_pending()

    # -- time, space --------------------------------------------------------------------------------------------------

    async def _pass(self, jump_ms: int, advance_ms: int) -> None:
        """The wall clock jumps, then time passes."""
        self.clock.jump_wall(jump_ms)
        self.wall_ms = self.session.clean_ms = max(self.wall_ms, self.clock.now_ms() + advance_ms)
        self._may_roll()
        await self.clock.advance(advance_ms)
        self.session._note_synced()  # noqa: SLF001 - one room
        await self._absorb(len(self.fired))

    def _may_roll(self) -> None:
        old = self.wall_ms - USUAL_MS
        self.rolled |= {head for head, timer in self._put().items() if timer.store_ms < old}

    async def time(self, jump_ms: int, advance_ms: int) -> None:
        """Time passes; the clock may go back."""
        await self._pass(jump_ms, advance_ms)

    async def clean(self) -> None:
        """Retention now."""
        self._may_roll()
        await self._unless_full(self.session.clean())

    async def expire(self) -> None:
        """All but what is kept for ever gets old and goes; pending timers in it are written again."""
        stats = self.session.store.stats
        newest = (stats.log_end - 1) // self.options.segment_bytes * self.options.segment_bytes
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
        expected = min(
            [newest, *(offset // self.options.segment_bytes * self.options.segment_bytes for offset in held)]
        )
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

    # -- reading ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """All that anything was stored in."""
        found = {(m.topic_id, m.queue_id) for group in self.history.groups for m in group.messages}
        return sorted(found | ({TIMER_QUEUE} if self.fired else set()))

    def all_of(self, queue: Queue) -> Sequence[StoredMessage]:
        """What was ever stored in a queue."""
        if queue == TIMER_QUEUE:
            return self.fired
        return [m for group in self.history.groups for m in group.messages if (m.topic_id, m.queue_id) == queue]

    def stored(self, queue: Queue) -> Sequence[StoredMessage]:
        """What is there of it."""
        return self.all_of(queue)[self.session.store.queue_range(*queue)[0] :]

    async def _compare(self) -> None:
        everything = len(self.history.groups)
        await self.session.compare(least=everything, most=everything, at=0, live=True)

    async def read(self, queue: Queue, start: int, count_max: int, bytes_max: int, tags: frozenset[int] | None) -> None:
        """One read against the list; `start` may be anywhere."""
        store, everything = self.session.store, self.all_of(queue)
        low, high = store.queue_range(*queue)
        if high != len(everything):
            raise Violation(f"{queue} ends at {high}, {len(everything)} messages were stored")
        result = await store.read(*queue, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tags)
        begin = max(start, low)
        matching = [n for n in range(begin, high) if tags is None or everything[n].tag_hash in tags]
        found = [stored.queue_offset for stored in result.messages]
        assert found == matching[: len(found)], f"found {found} of {matching} from {start}"
        for stored in result.messages:
            _same(stored, everything[stored.queue_offset])
        assert len(found) <= count_max
        size = sum(len(stored.head) + len(stored.system) for stored in result.messages)
        assert size <= bytes_max or len(found) == 1, f"{size} bytes are over {bytes_max}"
        assert all(n in found for n in matching if n < result.next_offset), "a message was skipped"
        assert result.next_offset > begin or begin >= high or not count_max, f"no way on from {begin}"
        assert (result.min_offset, result.max_offset) == (low, high)

    async def read_at(self, queue: Queue, offsets: Sequence[int]) -> None:
        """Chosen offsets, some outside."""
        low, high = self.session.store.queue_range(*queue)
        found = await self.session.store.read_at(*queue, offsets)
        wanted = [offset for offset in offsets if low <= offset < high]
        assert [stored.queue_offset for stored in found] == wanted
        for stored in found:
            _same(stored, self.all_of(queue)[stored.queue_offset])

    async def offset_at(self, queue: Queue, index: int, delta_ms: int) -> None:
        """By the time of some message, or near it."""
        everything = self.all_of(queue)
        low, high = self.session.store.queue_range(*queue)
        at_ms = (everything[index % len(everything)].store_ms if everything else self.wall_ms) + delta_ms
        wanted = next((n for n in range(low, high) if everything[n].store_ms >= at_ms), high)
        found = await self.session.store.offset_at(*queue, at_ms)
        assert found == wanted, f"{queue} at {at_ms} is {found}, it should be {wanted}"

    async def find(self, topic_id: int, number: int, begin: int, end: int, count_max: int) -> None:
        """By key, between the times of two messages."""
        key = b"k%d" % number if number < 7 else b"sys%d" % number
        queues = [queue for queue in self.queues() if queue[0] == topic_id]
        times = [m.store_ms for queue in queues for m in self.all_of(queue)] or [self.wall_ms]
        begin_ms, end_ms = times[begin % len(times)], times[end % len(times)]
        matching = [
            stored
            for queue in queues
            for stored in self.stored(queue)
            if key in keys_of(stored.head, stored.system) and begin_ms <= stored.store_ms <= end_ms
        ]
        matching.sort(key=lambda stored: -stored.log_offset)
        try:
            found = await self.session.store.find(
                topic_id, key, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max, bytes_max=READ_MAX
            )
        except StoreError:
            if not self.full:
                raise
            return
        places = [stored.log_offset for stored in found]
        wanted = [stored.log_offset for stored in matching[:count_max]]
        assert places == wanted, f"{key!r} of {topic_id} in {begin_ms}..{end_ms} finds {places}, not {wanted}"


def _same(stored: StoredMessage, due: StoredMessage) -> None:
    for name in StoredMessage.__slots__:
        if getattr(stored, name) != getattr(due, name):
            raise Violation(f"{stored!r} has {name} {getattr(stored, name)!r}, {getattr(due, name)!r} was stored")
