"""Every operation fails, one at a time: once and for ever, with EIO, ENOSPC, after a part of a write, and a sync that
forgets what it did not write.

The store refuses or poisons itself; whatever a kill or a power loss leaves then holds all that was acknowledged, also
when the power goes after the next start: what that start served and acknowledged is there. A full disk refuses
messages, serves reads, and takes messages again when there is space.
"""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import replace

from evenq.errors import Error, StoreFull
from evenq.store import FlushMode, StoreOptions
from evenq_proofs.storage.history import History
from evenq_proofs.storage.judge import Case, Tally, append_everywhere, chosen, crashes, judge
from evenq_proofs.storage.machine import Machine
from evenq_proofs.storage.session import Session, Violation
from evenq_proofs.storage.trace_disk import Fault, TraceDisk
from evenq_proofs.storage.workload import QUEUES, Workload, message

FILLING = ["many", "timer", "burst", "checkpoint", "mixed", "snapshot", "cancel", "many", "time", "clean"] * 4

FAULTS: dict[str, Fault] = {
    "EIO once": Fault(0, errno.EIO),
    "EIO for ever": Fault(0, errno.EIO, for_ever=True),
    "EIO after half a write": Fault(0, errno.EIO, short=0.5),
    "ENOSPC once": Fault(0, errno.ENOSPC),
    "ENOSPC for ever": Fault(0, errno.ENOSPC, for_ever=True),
    "ENOSPC after half a write, for ever": Fault(0, errno.ENOSPC, for_ever=True, short=0.5),
    "EIO forgets": Fault(0, errno.EIO, forgets=True),
    "read EIO once": Fault(0, errno.EIO, reads=True),
    "read EIO for ever": Fault(0, errno.EIO, for_ever=True, reads=True),
}


async def count_operations(options: StoreOptions, name: str, *, seed: int, operations: int) -> int:
    """Places of the workload at which a fault may come."""
    disk = TraceDisk()
    workload = Workload(disk, options, seed=seed)
    workload.kills = False
    await workload.run(operations)
    fault = FAULTS[name]
    return disk.reads if fault.reads else disk.syncs if fault.forgets else disk.changes


async def fail_each(
    options: StoreOptions, name: str, *, at: range, seed: int, operations: int, only: str = ""
) -> Tally:
    """Run the workload once for each operation of the range, which fails."""
    tally = Tally()
    fault = FAULTS[name]
    for number in at:
        if not chosen(f"{name} at {number}", only):
            continue
        tally.points += 1
        due = replace(fault, at=number)
        try:
            await _fail(options, due, f"{name} at {number}", tally, seed=seed, operations=operations)
        except Violation as violation:
            tally.violations.append(f"{name} at {number}: {violation}")
        except Exception as error:  # noqa: BLE001 - anything but an error of ours is a violation
            tally.violations.append(f"{name} at {number}: {error!r} is no error of ours")
    return tally


async def _fail(options: StoreOptions, fault: Fault, name: str, tally: Tally, *, seed: int, operations: int) -> None:
    disk = TraceDisk()
    disk.fault = fault
    workload = Workload(disk, options, seed=seed)
    workload.kills = False  # a kill is a fault of its own
    await workload.run(operations)
    tally.images += 1
    if disk.hit and isinstance(workload.failure, StoreFull):
        tally.refused += 1
    check_stopped(workload)
    disk.fault = None
    history = workload.history
    at = len(disk.ops)
    synchronous = options.flush is FlushMode.SYNC
    for left_name, left in crashes(disk.machine, None, seeds=1, rng=random.Random(fault.at)):
        promised = synchronous or left_name.startswith("kill")
        least = history.acked(at) if promised else history.certain(at)
        tally.images += 1
        case = Case(f"{name}, {left_name}", left, least, history.tried(at), at, promised)
        try:
            if left_name.startswith("kill"):
                await _start_and_lose_power(replace(case, machine=left.copy()), history, options)
            await judge(case, history, options)
        except Violation as violation:
            tally.violations.append(f"{case.name}: {violation}")


def check_stopped(workload: Workload) -> None:
    """A store whose log forgot something must not go on. Raises Violation."""
    stopped = workload.failure is not None or (workload.session is not None and workload.session.store.failure)
    for since, path in workload.disk.forgot:
        if path.startswith("commitlog/") and since >= workload.opened_at and not stopped:
            raise Violation(f"the sync of {path} failed, and the store goes on")


async def _start_and_lose_power(case: Case, history: History, options: StoreOptions) -> None:
    """What a start served, and what it acknowledged then, outlives a power loss."""
    disk = TraceDisk(case.machine)
    session = await Session.open(disk, replace(history, synced=[]), options)
    try:
        found = await session.compare(least=case.least, most=case.most, at=case.at)
        after = history.cut(found)
        await append_everywhere(session, after)
        await session.store.flush()
        units = disk.machine.units(512)
        left = [
            Machine(disk.machine.cut_power(units, lambda _: False)),
            Machine(disk.machine.cut_power(units, lambda index: index % 2 == 1)),
        ]
    finally:
        with contextlib.suppress(Error):
            await session.close()
    for machine in left:
        again = await Session.open(TraceDisk(machine), after, options)
        try:
            await again.compare(least=len(after.groups), most=len(after.groups), at=case.at)
            await again.check_timers(len(after.groups), case.at, promised=case.promised)
        except Violation as violation:
            raise Violation(f"the next start loses power: {violation}") from violation
        finally:
            await again.close()


async def fill_each(options: StoreOptions, *, shard: int, stride: int, seed: int, only: str = "") -> Tally:
    """The disk is full from each `stride`-th change of a workload on, and has space again later."""
    tally = Tally()
    changes = await _fill_and_free(options, None, seed=seed)
    for at in range(shard, changes, stride):
        if not chosen(f"full at {at}", only):
            continue
        tally.points += 1
        tally.images += 2
        try:
            await _fill_and_free(options, at, seed=seed)
        except Violation as violation:
            tally.violations.append(f"full at {at}: {violation}")
        except Exception as error:  # noqa: BLE001 - a store that does not go on
            tally.violations.append(f"full at {at}: {error!r}")
    return tally


async def _fill_and_free(options: StoreOptions, at: int | None, *, seed: int) -> int:
    """A disk that is full from a change on: reads go on; with space again, so do sends, and a start finds all of it.
    Returns the changes until then. Raises Violation.
    """
    disk = TraceDisk()
    workload = Workload(disk, options, seed=seed)
    workload.kills = False
    await workload.open()
    session = workload.session
    assert session is not None
    if at is not None:
        disk.fault = Fault(disk.changes + at, errno.ENOSPC, for_ever=True, short=0.5 if at % 2 else None)
    before = disk.changes
    for step in FILLING:
        await workload.step(step)
    changes = disk.changes - before
    if session.store.failure is not None:
        raise Violation(f"a full disk poisoned the store: {session.store.failure}")
    await _all_there(session)
    disk.fault = None
    await workload.clock.advance(options.flush_interval_ms + 1)
    try:
        session.append([message(QUEUES[0], 5_000_000, 100)], state=True)
    except Error as error:
        raise Violation(f"there is space and the store still refuses: {error}") from error
    failures = await session.settle()
    if failures:
        raise Violation(f"there is space and the store fails: {failures[0]}") from failures[0]
    await _all_there(session)
    left = disk.machine.copy()
    await session.close()
    history = workload.history
    for machine in (Machine(disk.machine.files()), left):  # stopped in order, and killed
        again = await Session.open(TraceDisk(machine), history, options, clock=workload.clock)
        count = len(history.groups)
        await again.compare(least=count, most=count, at=1 << 60)
        await again.check_timers(count, 1 << 59)
        await again.close()
    return changes


async def _all_there(session: Session) -> None:
    count = len(session.history.groups)
    await session.compare(least=count, most=count, at=1 << 59, live=True)
