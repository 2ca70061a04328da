"""One call may hold messages, timers, ends of timers and state: all of it is there or nothing."""

import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import BadRequest, BodyTooLarge, Error, StoreFull
from evenq.store import Append, TimerAppend
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import MESSAGE, PADDING, STATE, TIMER, TIMER_END, frame_at, timer_ids_of, timer_of
from evenq.store.log.segment import path_of

SEGMENT_BYTES = 4096


def timer(head=b"later", *, kind=1, due_ms=9_000, tag_hash=-3):
    return TimerAppend(1, 2, tag_hash, due_ms=due_ms, kind=kind, born_ms=5, head=head, system=b"sys")


def frames(disk):
    """Every frame of the log, in order."""
    found = []
    for name in disk.list("commitlog"):
        start, position = int(name), 0
        data = bytes(disk.files[path_of(start)].data)
        while (frame := frame_at(data, position, start + position)) is not None and frame.kind != PADDING:
            found.append(frame)
            position += frame.size
    return found


async def test_a_group_lies_in_the_log_in_order_and_only_its_messages_are_consumable(open_store, message):
    disk = MemoryDisk()
    opened = await open_store(disk)
    later, entry = timer(), message()
    await opened.store.append([entry], state=b"state", timers=[later, timer(kind=7)], ended=[11, 12])
    found = frames(disk)
    assert [frame.kind for frame in found] == [MESSAGE, TIMER, TIMER, TIMER_END, STATE]
    assert [frame.flags & 1 for frame in found] == [1, 1, 1, 1, 0]
    assert timer_ids_of(found[3]) == (11, 12)
    back = timer_of(found[1])
    assert (back.log_offset, back.store_ms) == (later.log_offset, later.store_ms)
    assert (back.tag_hash, back.due_ms, back.kind, back.born_ms) == (-3, 9_000, 1, 5)
    assert timer_of(found[2]).kind == 7
    assert await opened.contents() == [b"head"]
    assert opened.store.queue_range(1, 2) == (0, 0)
    assert (opened.store.stats.messages, opened.store.stats.timers, opened.store.stats.states) == (1, 3, 1)
    assert opened.store.stats.waiting == 0
    await opened.store.close()
    again = await open_store(disk)
    assert (await again.contents(), again.states) == ([b"head"], [b"state"])
    await again.store.close()


@pytest.mark.parametrize(
    ("bad", "kind"),
    [(timer(kind=256), BadRequest), (timer(due_ms=1 << 63), BadRequest), (timer(bytes(5_000)), BodyTooLarge)],
)
async def test_a_group_that_cannot_be_packed_leaves_nothing(open_store, message, bad, kind):
    disk = MemoryDisk()
    opened = await open_store(disk)
    good, first = message(), timer()
    with pytest.raises(kind):
        opened.store.append([good], timers=[first, bad], ended=[1])
    assert (good.queue_offset, first.log_offset, opened.store.stats.waiting) == (-1, -1, 0)
    await opened.store.append([message(b"next")], timers=[first])
    assert [frame.kind for frame in frames(disk)] == [MESSAGE, TIMER]
    await opened.store.close()


async def test_ends_and_state_use_the_reserve_but_timers_do_not(open_store):
    opened = await open_store(MemoryDisk())
    opened.store._state.set_full(StoreFull("the disk is full"))
    with pytest.raises(StoreFull):
        opened.store.append([], timers=[timer()])
    await opened.store.append([], state=b"s", ended=[1])
    opened.store._state.set_full(None)
    await opened.store.close()


def numbers(disk):
    """Which calls each kind of record tells of."""
    found = {MESSAGE: [], TIMER: [], TIMER_END: [], STATE: []}
    for frame in frames(disk):
        found[frame.kind] += timer_ids_of(frame) if frame.kind == TIMER_END else [int(frame.head.partition(b":")[0])]
    return found


async def attempt(open_store, disk, acked):
    """Mixed calls until the disk fails."""
    try:
        opened = await open_store(disk)
    except Error:
        return
    rng = random.Random(3)
    try:
        for number in range(1, 12):
            name = b"%d:" % number
            body = name + bytes(rng.choice([0, 100, 900]))
            entries = [Append(1, n, 0, 0, body, b"") for n in range(2)]
            timers = [timer(name), timer(body)]
            await opened.store.append(entries, state=name, timers=timers, ended=[number])
            acked.add(number)
            if number % 2:
                await opened.clock.advance(500)  # so that the next file is prepared
    except Error:
        pass
    finally:
        await opened.store.close()


async def test_a_crash_at_any_operation_leaves_whole_groups(open_store):
    plain, acked = FaultDisk(), set()
    await attempt(open_store, plain, acked)
    assert len(acked) == 11
    assert {"preallocate", "rename"} <= set(plain.kinds)
    for number in range(plain.operations):
        disk, acked = FaultDisk(), set()
        disk.cut = (number, random.Random(number).choice([0, 50, 200, 700, 1_500]))
        await attempt(open_store, disk, acked)
        for keep in (Keep.ALL, Keep.NONE, Keep.SOME):
            image = disk.crash(keep, random.Random(number))
            opened = await open_store(image)
            left = numbers(image)
            whole = left[STATE]
            assert acked <= set(whole), "an acknowledged group is lost"
            assert left[TIMER_END] == whole, "half a group"
            assert left[MESSAGE] == left[TIMER] == [n for n in whole for _ in range(2)], "half a group"
            await opened.store.close()
