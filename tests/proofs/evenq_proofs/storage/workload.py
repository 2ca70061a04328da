"""The same mixture of store operations each time: appends of one and of many calls, state records, mixed groups,
snapshots, checkpoints, syncs, time, clean stops, kills.

Messages are small beside the log's files, so files roll often; sizes lie around the borders that matter (nothing, a
sector, more than the cache). With a faulty disk the workload goes on after a refusal and stops at a poisoned store.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from evenq.errors import Error, StoreFull
from evenq.runtime.clock import FakeClock
from evenq.store import Append, StoreOptions, TimerAppend
from evenq_proofs.storage.history import Group, History, Queue
from evenq_proofs.storage.machine import Op
from evenq_proofs.storage.session import OPTIONS, TIMER_QUEUE, Session, Violation
from evenq_proofs.storage.trace_disk import Fault, TraceDisk

QUEUES: tuple[Queue, ...] = ((1, 0), (1, 1), (2, 0), (7, 3))
SIZES = (0, 1, 30, 30, 200, 200, 420, 600, 1500)
STEPS = {
    "one": 30, "many": 14, "burst": 14, "state": 10, "mixed": 10, "timer": 12, "cancel": 4,
    "checkpoint": 4, "snapshot": 5, "flush": 3,
    "time": 6, "clean": 3, "reopen": 3, "kill": 2,
}  # fmt: skip


def message(queue: Queue, number: int, size: int) -> Append:
    """The n-th message of a workload: its bytes follow from its number and size."""
    head = b"%d:" % number + bytes([number % 251]) * size
    return Append(*queue, number * 7919 % 5 - 2, 1_000 + number, head, b"sys%d" % number)


@dataclass(slots=True)
class Trace:
    """One finished workload."""

    ops: list[Op]
    history: History
    options: StoreOptions


class Workload:
    """Runs operations on one disk, over stops and starts."""

    def __init__(
        self, disk: TraceDisk, options: StoreOptions = OPTIONS, *, seed: int = 1, sizes: Sequence[int] = SIZES
    ) -> None:
        self.sizes = sizes
        self.disk = disk
        self.options = options
        self.rng = random.Random(seed)
        self.history = History()
        self.clock = FakeClock()
        self.number = 0
        self.session: Session | None = None
        self.failure: BaseException | None = None
        self.opened_at = 0
        """Operations before the latest start."""
        self.fires = True
        self.kills = True
        """Whether some steps kill the store."""

    async def run(self, operations: int, *, kill: bool = False) -> None:
        """Do this number of operations, or as many as the disk lets through; the store is closed at the end."""
        kinds, weights = list(STEPS), list(STEPS.values())
        try:
            await self.open()
            for _ in range(operations):
                await self.step(self.rng.choices(kinds, weights)[0])
        except Error as error:
            self.failure = error
        finally:
            if self.session is not None:
                if kill:
                    self.disk.fault = Fault(self.disk.changes, errno.EIO, for_ever=True)
                await self.session.close()

    async def open(self) -> None:
        self.session = None
        self.opened_at = len(self.disk.ops)
        self.session = await Session.open(self.disk, self.history, self.options, clock=self.clock)
        if self.fires:
            self.session.store.fire_timers()
            self.session.firing = True

    async def step(self, kind: str) -> None:
        session = self.session
        assert session is not None
        match kind:
            case "cancel":
                timers = [timer for group in self.history.groups for timer in group.timers]
                if timers:
                    await self._unless_full(session.cancel(self.rng.choice(timers[-12:])))
            case "one" | "many" | "burst" | "state" | "mixed" | "timer":
                await self._append(session, kind)
            case "checkpoint":
                await session.checkpoint()
            case "snapshot":
                await self._unless_full(session.save_snapshot())
            case "flush":
                await session.flush()
            case "time":
                duration_ms = self.rng.choice([1, 500, 600, 5_500])
                self._expire(duration_ms)
                await self.clock.advance(duration_ms)
                session._note_synced()
            case "clean":
                self._expire(0)
                await self._unless_full(session.clean())
            case "reopen":
                await session.close()
                await self.open()
            case "kill" if not self.kills:
                pass
            case "kill":
                self.disk.fault = Fault(self.disk.changes, errno.EIO, for_ever=True)
                await session.close()
                self.disk.fault = None
                await self.open()
            case _:
                raise AssertionError(kind)

    async def _append(self, session: Session, kind: str) -> None:
        rng = self.rng
        try:
            for _ in range(rng.randint(2, 5) if kind == "burst" else 1):
                if kind == "state" or (kind == "burst" and rng.random() < 0.2):
                    session.append([], state=True)
                else:
                    count = 1 if kind in {"one", "timer"} else rng.choice([1, 2, 3, 8])
                    messages = [self._message() for _ in range(count)]
                    timers = [self._timer() for _ in range(rng.choice([1, 2, 6, 12]))] if kind == "timer" else []
                    session.append(messages, state=kind == "mixed", timers=timers)
        except StoreFull as error:
            self.failure = error
        groups = list(session.waiting)
        failures = await session.settle()
        if failures:
            self._judge_failures(session, groups, failures)

    def _judge_failures(self, session: Session, groups: list[Group], failures: list[BaseException]) -> None:
        refused = [group for group in groups if group.future is not None and _is_full(group)]
        if refused and refused != groups[len(groups) - len(refused) :]:
            raise Violation("a call was stored behind one that was refused")
        session.take_back(refused)
        self.failure = failures[0]
        for error in failures:
            if not isinstance(error, StoreFull):
                raise error

    def _expire(self, duration_ms: int) -> None:
        """Retention may work from here on."""
        assert self.session is not None
        if self.options.retention_ms:
            self.history.expired.append(
                (self.session.at, self.clock.now_ms() + duration_ms - self.options.retention_ms)
            )

    async def _unless_full(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StoreFull as error:
            self.failure = error

    def _timer(self) -> TimerAppend:
        plain = self._message()
        due_ms = self.clock.now_ms() + self.rng.choice([0, 1, 700, 5_000, 30_000, 3_600_000])
        return TimerAppend(
            *TIMER_QUEUE, plain.tag_hash, due_ms=due_ms, kind=1, born_ms=plain.born_ms, head=plain.head,
            system=plain.system,
        )  # fmt: skip

    def _message(self) -> Append:
        self.number += 1
        return message(self.rng.choice(QUEUES), self.number, self.rng.choice(self.sizes))


def _is_full(group: Group) -> bool:
    return group.future is not None and isinstance(group.future.exception(), StoreFull)


async def record(
    options: StoreOptions = OPTIONS, *, seed: int = 1, operations: int = 200, lies: frozenset[str] = frozenset(),
    sizes: Sequence[int] = SIZES, kill: bool = False,
) -> Trace:  # fmt: skip
    """Run the workload on a disk that works, or one that `lies`. `kill`: at the end the store is killed, not closed."""
    disk = TraceDisk()
    disk.lies = lies
    workload = Workload(disk, options, seed=seed, sizes=sizes)
    await workload.run(operations, kill=kill)
    if workload.failure is not None:
        raise workload.failure
    return Trace(disk.ops, workload.history, options)
