"""Bugs that the enumeration found, each with the smallest case that shows it."""

from __future__ import annotations

import errno

import pytest
from evenq_proofs.storage.history import History
from evenq_proofs.storage.machine import Machine
from evenq_proofs.storage.session import TIMER_QUEUE, Session
from evenq_proofs.storage.small_parts import small_parts
from evenq_proofs.storage.trace_disk import Fault, TraceDisk
from evenq_proofs.storage.workload import QUEUES, message

from evenq.errors import StorePoisoned
from evenq.store import TimerAppend
from evenq.store.log.consume_queue import ENTRY_BYTES
from evenq.store.log.record import HEADER_BYTES

FIRST = "commitlog/00000000000000000000"


async def test_a_file_whose_padding_a_kill_cut_short_is_made_whole_before_a_checkpoint_vouches_for_it():
    assert ENTRY_BYTES == 20
    history, disk = History(), TraceDisk()
    session = await Session.open(disk, history)
    for number in range(2):
        session.append([message(QUEUES[0], number, 5_000)])
    await session.settle()
    image = disk.machine.files()
    await session.close()
    left = {"identity": image["identity"], FIRST: image[FIRST][: 88 + 5_000 + 20 + 88]}  # a padding's header only
    history = history.cut(1)
    disk = TraceDisk(Machine(left))
    disk.machine.inodes[1].pending.append((0, left[FIRST]))  # and none of it synced
    disk.machine.inodes[1].synced = b""
    session = await Session.open(disk, history)
    assert await session.compare(least=1, most=1, at=0) == 1
    machine = disk.machine.copy()
    await session.close()
    for found in (disk.machine, Machine(machine.cut_power(machine.units(512), lambda _: False))):
        again = await Session.open(TraceDisk(found), history)
        assert await again.compare(least=1, most=1, at=0) == 1
        await again.close()


async def test_a_disk_too_full_to_make_the_next_file_refuses_and_goes_on():
    history, disk = History(), TraceDisk()
    session = await Session.open(disk, history)
    for number in range(20):
        disk.fault = Fault(disk.changes, errno.ENOSPC, for_ever=True)
        refused = session.append([message(QUEUES[0], number, 1_000)], state=True)
        failures = await session.settle()
        assert "no space left" in str(failures[0])
        history.groups.remove(refused)
        history.states -= 1
        assert session.store.failure is None
        disk.fault = None
        await session.clock.advance(600)
        session.append([message(QUEUES[0], number, 1_000)], state=True)
        assert not await session.settle()
    assert await session.compare(least=20, most=20, at=0, live=True) == 20
    await session.close()
    again = await Session.open(TraceDisk(Machine(disk.machine.files())), history)
    assert await again.compare(least=20, most=20, at=0) == 20
    await again.close()


async def test_messages_before_a_damaged_place_in_a_file_of_the_log_are_found_by_key():
    history, disk = History(), TraceDisk()
    session = await Session.open(disk, history)
    for number in range(3):
        session.append([message(QUEUES[0], number * 7, 3_500)])  # two in the first file, one in the second
    await session.settle()
    await session.save_snapshot()  # so that a start does not read that place
    await session.close()
    image = disk.machine.files()
    for path in [path for path in image if path.startswith("index/")]:
        del image[path]
    last = history.groups[1].messages[0]
    image[FIRST] = image[FIRST][: last.log_offset + HEADER_BYTES + len(last.head) + len(last.system) + 40]
    again = await Session.open(TraceDisk(Machine(image)), history)
    await again.compare(least=3, most=3, at=0)
    await again.compare_found(3, 0)
    await again.close()


async def test_a_timer_that_fired_from_a_file_cannot_be_cancelled():
    with small_parts():
        session = await Session.open(TraceDisk(), History())
        now_ms = session.clock.now_ms()
        timers = [
            TimerAppend(*TIMER_QUEUE, 0, due_ms=now_ms + 1_000 * n, kind=1, born_ms=1, head=b"%d" % n, system=b"sys1")
            for n in range(1, 9)
        ]  # more than memory takes
        session.append([message(QUEUES[0], 1, 10)], timers=timers)
        await session.settle()
        session.store.fire_timers()
        await session.clock.advance(1_500)
        stats = session.store.timers.stats
        assert (stats.runs, stats.fired, stats.pending) == (1, 1, 7)
        ids = [timer.log_offset for timer in timers]
        assert await session.store.cancel_timers(ids[:2]) == ids[1:2]
        assert session.store.timers.stats.pending == 6
        await session.close()


@pytest.mark.parametrize("size", [10, 808, 5_000])
async def test_what_a_failed_sync_forgot_is_written_again_before_it_is_served(size):
    history, disk = History(), TraceDisk()
    session = await Session.open(disk, history)
    session.append([message(QUEUES[0], 1, 3_000)])
    await session.settle()
    disk.fault = Fault(disk.syncs, errno.EIO, forgets=True)
    session.append([message(QUEUES[0], 2, size)])
    (failure,) = await session.settle()
    assert isinstance(failure, StorePoisoned)
    await session.close()
    disk = TraceDisk(disk.machine.copy())  # another process on the same system: it sees what is not on disk
    session = await Session.open(disk, history)
    assert await session.compare(least=1, most=2, at=0) == 2
    session.append([message(QUEUES[0], 3, 10)])
    assert not await session.settle()
    left = Machine(disk.machine.cut_power(disk.machine.units(512), lambda _: False))
    await session.close()
    session = await Session.open(TraceDisk(left), history)
    assert await session.compare(least=3, most=3, at=0) == 3
    await session.close()
