"""What the next start makes of a machine after a crash: all that was promised, whole append calls only, right bytes,
and a store that goes on.

`judge` opens, compares, appends to every queue, stops, opens again, compares again. `judge_again` also crashes the
start itself at each of its own operations.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace

from evenq.errors import Error
from evenq.store import FlushMode, StoreOptions
from evenq_proofs.storage.history import History
from evenq_proofs.storage.machine import Machine, Op
from evenq_proofs.storage.session import Session, Violation
from evenq_proofs.storage.trace_disk import TraceDisk
from evenq_proofs.storage.workload import QUEUES, message


@dataclass(frozen=True, slots=True)
class Case:
    """One machine to judge."""

    name: str
    """Says how to make it again."""
    machine: Machine
    least: int
    most: int
    at: int
    promised: bool = True
    """Whether an acknowledgement was a promise: not so in ASYNC mode when the power goes."""
    rotten: int = 0
    """Timers at most whose frames are damaged: those need not fire, but the store must say so."""

    @property
    def turn(self) -> int:
        """0 to 11, by the name: which of the dearer looks this one gets."""
        return zlib.crc32(self.name.encode()) % 12


@dataclass(slots=True)
class Tally:
    """What a campaign saw."""

    images: int = 0
    points: int = 0
    """Places at which a process was stopped or an operation failed; each leaves one or more images."""
    mutations: int = 0
    """Images with damage."""
    refused: int = 0
    """Images at which the store stopped with a named error, where it may."""
    seconds: float = 0.0
    damaged: Counter[str] = field(default_factory=Counter)
    """Mutations by kind of file."""
    violations: list[str] = field(default_factory=list)
    """Each begins with the name of its case and a colon."""

    def add(self, other: Tally) -> None:
        self.images += other.images
        self.points += other.points
        self.mutations += other.mutations
        self.refused += other.refused
        self.seconds += other.seconds
        self.damaged += other.damaged
        self.violations += other.violations


def chosen(name: str, only: str) -> bool:
    """Whether a case is looked at: `only` is empty, its name, or names something within it or around it."""
    parts = zip(name.split(", "), only.split(", "), strict=False)
    return not only or all(one == other for one, other in parts)


async def judge(
    case: Case, history: History, options: StoreOptions, *, go_on: bool = True, may_refuse: bool = False
) -> tuple[int, list[Op]] | None:
    """How many append calls are there, and what the start did to the disk. Raises Violation. With `may_refuse` None
    for a store that stops with a named error.
    """
    disk = TraceDisk(case.machine)
    seen = replace(history, synced=[])  # what this start says belongs to its own future
    try:
        session = await Session.open(disk, seen, options)
        started = list(disk.ops)
    except Error as error:
        if may_refuse and _names_a_file(error):
            return None
        raise Violation(f"the store refuses to open: {error}") from error
    try:
        found = await session.compare(least=case.least, most=case.most, at=case.at)
        await session.check_timers(found, case.at, promised=case.promised)
        if not go_on:
            return found, started
        if case.turn == 3:
            await session.compare_found(found, case.at)
        if case.turn == 0:
            await session.compare_timers(found, case.at, promised=case.promised, rotten=case.rotten)
        after = history.cut(found)
        if case.turn % 2:  # the others stop as they started
            await append_everywhere(session, after)
    except Error as error:
        if may_refuse and _names_a_file(error):
            return None
        raise Violation(f"the store fails after it opened: {error}") from error
    finally:
        with contextlib.suppress(Error):
            await session.close()
    try:
        again = await Session.open(disk, after, options)
    except Error as error:
        raise Violation(f"the store refuses to open a second time: {error}") from error
    try:
        await again.compare(least=len(after.groups), most=len(after.groups), at=case.at)
        await again.check_timers(len(after.groups), case.at, promised=case.promised)
        if case.turn == 1:
            await again.compare_timers(len(after.groups), case.at, promised=case.promised, rotten=case.rotten)
    except Error as error:
        if may_refuse and _names_a_file(error):
            return None
        raise Violation(f"reading fails at the second start: {error}") from error
    finally:
        await again.close()
    return found, started


async def append_everywhere(session: Session, after: History) -> None:
    """The store takes messages in every queue and state records; a snapshot holds them."""
    session.history = after
    for number, queue in enumerate(QUEUES):
        session.append([message(queue, 1_000_000 + number, 100)], state=number == 1)
    failures = await session.settle()
    if failures:
        raise Violation(f"appending after the crash fails: {failures[0]}") from failures[0]


def _names_a_file(error: Error) -> bool:
    return "trace:" in str(error)


async def judge_again(case: Case, history: History, options: StoreOptions, *, seeds: int = 1, only: str = "") -> Tally:
    """Crash the start of this machine at each of its operations, and judge what the start after that finds."""
    tally = Tally()
    base = case.machine.copy()
    result = await judge(case, history, options, go_on=False)
    assert result is not None
    found, ops = result
    machine = base.copy()
    certain = min(case.least, history.certain(case.at))
    for number in range(len(ops) + 1):
        done = number == len(ops)
        least = found if done else case.least
        for name, left in crashes(machine, ops[number] if not done else None, seeds=seeds, rng=random.Random(number)):
            kept = name.startswith("kill") or options.flush is FlushMode.SYNC or done
            again = Case(
                f"{case.name}, start cut at {number} {name}", left, least if kept else certain, case.most, case.at,
                case.promised and kept,
            )  # fmt: skip
            if not chosen(again.name, only):
                continue
            tally.images += 1
            tally.points += name.startswith("kill")
            try:
                await judge(again, history, options, go_on=False)
            except Violation as violation:
                tally.violations.append(f"{again.name}: {violation}")
        if not done:
            machine.apply(ops[number])
    return tally


def crashes(machine: Machine, op: Op | None, *, seeds: int, rng: random.Random) -> list[tuple[str, Machine]]:
    """The machine after a crash within `op`: killed, and without power with nothing, and with any part, of what was
    not synced.
    """
    found: list[tuple[str, Machine]] = []
    for label, cut in cuts(op, rng):
        killed = machine.copy()
        if cut is not None:
            killed.apply(cut)
        found.append((f"kill {label}", killed))
    torn = found[-1][1]  # the last class has most in it
    units = torn.units(512)
    if units:
        found.append(("power none", Machine(torn.cut_power(units, lambda _: False))))
        for seed in range(seeds):
            chosen = _choice(len(units), rng)
            found.append((f"power {seed}", Machine(torn.cut_power(units, chosen.__contains__))))
    return found


def _choice(count: int, rng: random.Random) -> set[int]:
    share = rng.choice([0.1, 0.5, 0.5, 0.9])
    return {index for index in range(count) if rng.random() < share}


def cuts(op: Op | None, rng: random.Random) -> list[tuple[str, Op | None]]:
    """Ways to stop within an operation: nothing of it, and for a write each class of its last byte."""
    found: list[tuple[str, Op | None]] = [("before", None)]
    if op is not None and op[0] == "write":
        kind, number, place, data = op
        found += [(f"byte {stop}", (kind, number, place, data[:stop])) for stop in byte_classes(data, rng)]
    return found


def byte_classes(data: bytes, rng: random.Random) -> list[int]:
    """Where a write may stop: 1 byte, in a header, behind it, in a body, all but 1, all; for its first and its last
    frame and any other.
    """
    starts = [0]
    position = 0
    while position + 88 <= len(data) and data[position + 4 : position + 8] == b"EvL1":
        size = int.from_bytes(data[position : position + 4], "big")
        if size < 88:
            break
        position += size
        if position < len(data):
            starts.append(position)
    picked = {starts[0], starts[-1], rng.choice(starts)}
    stops: set[int] = set()
    for start in picked:
        end = next((other for other in starts if other > start), len(data))
        stops |= {start, start + 1, start + 44, start + 88, (start + 88 + end) // 2, end - 1, end}
    return sorted(stop for stop in stops if 0 < stop <= len(data))
