"""Every operation fails, one at a time: once and for ever, with EIO, ENOSPC, and after a part of a write.

The store refuses or poisons itself; whatever a kill or a power loss leaves then holds all that was acknowledged. A full
disk refuses messages, serves reads, and takes messages again when there is space.
"""

from __future__ import annotations

import errno
import random

from evenq.errors import Error, StoreFull
from evenq.store import FlushMode, StoreOptions
from evenq.testing.storage.judge import Case, Tally, crashes, judge
from evenq.testing.storage.session import Violation
from evenq.testing.storage.trace_disk import Fault, TraceDisk
from evenq.testing.storage.workload import QUEUES, Workload, message

__all__ = ["FAULTS", "count_operations", "fail_each"]

FAULTS: dict[str, Fault] = {
    "EIO once": Fault(0, errno.EIO),
    "EIO for ever": Fault(0, errno.EIO, for_ever=True),
    "EIO after half a write": Fault(0, errno.EIO, short=0.5),
    "ENOSPC once": Fault(0, errno.ENOSPC),
    "ENOSPC for ever": Fault(0, errno.ENOSPC, for_ever=True),
    "ENOSPC after half a write, for ever": Fault(0, errno.ENOSPC, for_ever=True, short=0.5),
    "read EIO once": Fault(0, errno.EIO, reads=True),
    "read EIO for ever": Fault(0, errno.EIO, for_ever=True, reads=True),
}


async def count_operations(options: StoreOptions, *, seed: int, operations: int) -> tuple[int, int]:
    """Changes and reads of the workload without a fault."""
    disk = TraceDisk()
    await Workload(disk, options, seed=seed).run(operations)
    return disk.changes, disk.reads


async def fail_each(options: StoreOptions, name: str, *, at: range, seed: int, operations: int) -> Tally:
    """Run the workload once for each operation of the range, which fails."""
    tally = Tally()
    fault = FAULTS[name]
    for number in at:
        due = Fault(number, fault.number, for_ever=fault.for_ever, short=fault.short, reads=fault.reads)
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
    disk.fault = None
    history = workload.history
    at = len(disk.ops)
    synchronous = options.flush is FlushMode.SYNC
    for left_name, left in crashes(disk.machine, None, seeds=1, rng=random.Random(fault.at)):  # noqa: S311 - a seed
        promised = synchronous or left_name.startswith("kill")
        least = history.acked(at) if promised else history.certain(at)
        tally.images += 1
        case = Case(f"{name}, {left_name}", left, least, history.tried(at), at, promised)
        try:
            await judge(case, history, options)
        except Violation as violation:
            tally.violations.append(f"{case.name}: {violation}")


async def fill_and_free(options: StoreOptions, *, at: int, seed: int) -> None:
    """A disk that is full from an operation on: reads go on; with space again, so do sends. Raises Violation."""
    disk = TraceDisk()
    workload = Workload(disk, options, seed=seed)
    workload.kills = False
    await workload.open()
    session = workload.session
    assert session is not None
    disk.fault = Fault(at, errno.ENOSPC, for_ever=True)
    for _ in range(40):
        await workload.step("many")
    if session.store.failure is not None:
        raise Violation(f"a full disk poisoned the store: {session.store.failure}")
    if session.store.full is None:
        raise Violation("the disk is full and the store takes messages")
    count = len(workload.history.groups)
    await session.compare(least=count, most=count, at=0, live=True)
    disk.fault = None
    await workload.clock.advance(options.flush_interval_ms + 1)
    try:
        session.append([message(QUEUES[0], 5_000_000, 100)], state=True)
    except Error as error:
        raise Violation(f"there is space and the store still refuses: {error}") from error
    failures = await session.settle()
    if failures:
        raise Violation(f"there is space and the store fails: {failures[0]}") from failures[0]
    count = len(workload.history.groups)
    await session.compare(least=count, most=count, at=0, live=True)
    await session.close()
