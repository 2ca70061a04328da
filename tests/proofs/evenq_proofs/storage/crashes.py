"""Crash enumeration: a recorded workload is cut at each disk operation and each byte class of the last write, with and
without power; and the starts after that are cut again.

`alice` takes the windows between syncs apart: all subsets of what was not synced, at a grain, up to a cap.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from evenq.store import FlushMode
from evenq_proofs.storage.judge import Case, Tally, chosen, crashes, judge, judge_again
from evenq_proofs.storage.machine import Image, Machine
from evenq_proofs.storage.session import Violation
from evenq_proofs.storage.workload import Trace

GO_ON_EVERY = 4  # of the images of a window, this number of also take appends and a second start


def crash_everywhere(trace: Trace, *, operations: range, seeds: int) -> Iterator[Case]:
    """Cases at the operations of a range, with `seeds` random choices of what an outage keeps."""
    machine = Machine()
    for number in range(len(trace.ops) + 1):
        op = trace.ops[number] if number < len(trace.ops) else None
        if number in operations:
            for name, left in crashes(machine, op, seeds=seeds, rng=random.Random(number)):
                yield _case(trace, number, f"cut at {number} {op[0] if op else 'end'} {name}", left)
        if op is not None:
            machine.apply(op)


def _case(trace: Trace, number: int, name: str, left: Machine) -> Case:
    history = trace.history
    promised = trace.options.flush is FlushMode.SYNC or " kill" in name
    least = history.acked(number) if promised else history.certain(number)
    return Case(name, left, least, history.tried(number), number, promised)


async def crash_all(trace: Trace, *, operations: range, seeds: int, only: str = "") -> Tally:
    """Judge them all."""
    tally = Tally()
    for case in crash_everywhere(trace, operations=operations, seeds=seeds):
        if not chosen(case.name, only):
            continue
        tally.images += 1
        tally.points += " kill" in case.name
        try:
            await judge(case, trace.history, trace.options)
        except Violation as violation:
            tally.violations.append(f"{case.name}: {violation}")
    return tally


async def crash_again(trace: Trace, *, operations: range, seeds: int, only: str = "") -> Tally:
    """Crash, and crash the start that follows at each of its operations."""
    tally = Tally()
    for case in crash_everywhere(trace, operations=operations, seeds=1):
        if not chosen(case.name, only):
            continue
        try:
            tally.add(await judge_again(case, trace.history, trace.options, seeds=seeds, only=only))
        except Violation as violation:
            tally.violations.append(f"{case.name}: {violation}")
    return tally


async def alice(trace: Trace, *, operations: range, grain: int, cap: int, only: str = "") -> Tally:
    """Before each sync in a range of operations: every subset of what is unsynced, at most `cap` of them."""
    tally = Tally()
    machine = Machine()
    for number, op in enumerate(trace.ops):
        if number in operations and op[0] in {"sync", "sync_folder", "sync_all"}:
            for count, (name, image) in enumerate(subsets(machine, grain, cap, random.Random(number))):
                case = _case(trace, number, f"window at {number} grain {grain} {name}", Machine(image))
                if not chosen(case.name, only):
                    continue
                tally.images += 1
                tally.points += count == 0
                try:
                    await judge(case, trace.history, trace.options, go_on=count % GO_ON_EVERY == 0)
                except Violation as violation:
                    tally.violations.append(f"{case.name}: {violation}")
        machine.apply(op)
    return tally


def subsets(machine: Machine, grain: int, cap: int, rng: random.Random) -> Iterator[tuple[str, Image]]:
    """Different images that a power loss may leave, with the subset's name (a number in hexadecimal)."""
    units = machine.units(grain)
    count = len(units)
    chosen: Iterator[int]
    if 1 << count <= cap:
        chosen = iter(range(1 << count))
    else:
        everything = (1 << count) - 1
        prefixes = [(1 << n) - 1 for n in range(count + 1)]
        without = [everything ^ (1 << n) for n in range(count)]
        alone = [1 << n for n in range(count)]
        chosen = itertools.islice(itertools.chain(prefixes, without, alone, _random(count, rng)), cap)
    seen: set[int] = set()
    for mask in chosen:
        image = machine.cut_power(units, lambda index, mask=mask: bool(mask >> index & 1))  # type: ignore[misc]  # a default as a binding
        print_of = hash(frozenset(image.items()))
        if print_of not in seen:
            seen.add(print_of)
            yield f"{mask:x} of {count}", image


def _random(count: int, rng: random.Random) -> Iterator[int]:
    while True:
        mask = rng.getrandbits(count)
        yield mask | rng.getrandbits(count) if rng.random() < 0.3 else mask
