"""Crashes and faults: what was acknowledged survives, what was not is whole or gone, and a stop says why."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, Keep

from evenq.errors import Error, StoreCorrupted, StoreError, StoreFull, StorePoisoned
from evenq.store import Append, FlushMode
from evenq.store.log.record import HEADER_BYTES


class History:
    """What was tried and what was acknowledged."""

    def __init__(self):
        self.calls = []  # [(queue id, offset, head), ...] of each append call that was taken
        self.acked = set()
        self.states = set()
        self.acked_states = set()


def _head(rng, number):
    return b"%d:" % number + bytes([number % 251]) * rng.choice([0, 30, 200, 600, 1500])


async def workload(opened, history, *, seed=1, rounds=14):
    """Mixed appends, states, snapshots and checkpoints until done or until the disk fails."""
    rng = random.Random(seed)
    store = opened.store
    number = 0
    for turn in range(rounds):
        waiting = []
        state = b"state %d" % turn
        history.states.add(state)
        for _ in range(rng.randint(1, 4)):
            entries = []
            for _ in range(rng.choice([1, 1, 2, 3])):
                entries.append(Append(1, rng.randrange(3), number, 0, _head(rng, number), b"sys"))
                number += 1
            waiting.append(store.append(entries))
            history.calls.append([(entry.queue_id, entry.queue_offset, entry.head) for entry in entries])
        calls = history.calls[-len(waiting) :]
        waiting.append(store.append_state(state))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for call, result in zip(calls, results, strict=False):
            if result is None:
                history.acked.update(call)
            elif isinstance(result, StoreFull):
                history.calls.remove(call)  # a definite failure: it must never appear
        if results[-1] is None:
            history.acked_states.add(state)
        for result in results:
            if result is not None:
                raise result
        if turn % 5 == 3:
            await store.checkpoint()
        if turn % 5 == 4:
            await store.save_snapshot(b"|".join(sorted(history.acked_states)))


async def attempt(open_store, disk, history, flush):
    """True if all of it worked."""
    try:
        opened = await open_store(disk, flush=flush)
    except Error:
        return False
    try:
        await workload(opened, history)
    except Error:
        return False
    finally:
        await opened.store.close()
    return opened.store.failure is None


async def check(open_store, disk, history, *, flush, all_acked):
    """Open what the crash left and compare it with the history."""
    opened = await open_store(disk, flush=flush)
    found = set()
    for queue_id in range(3):
        heads = await opened.contents(1, queue_id)
        found.update((queue_id, offset, head) for offset, head in enumerate(heads))
    tried = {place for call in history.calls for place in call}
    assert found <= tried, "garbage"
    for call in history.calls:
        assert found.isdisjoint(call) or found.issuperset(call), "half a call"
    states = {state for snapshot in opened.snapshots for state in snapshot.split(b"|") if state} | set(opened.states)
    assert states <= history.states
    if all_acked:
        assert history.acked <= found, "an acknowledged message is lost"
        assert history.acked_states <= states, "an acknowledged state record is lost"
    entry = Append(1, 0, 0, 0, b"after", b"")
    await opened.store.append([entry])
    assert (await opened.contents())[-1] == b"after"
    await opened.store.close()
    again = await open_store(disk, flush=flush)
    assert (await again.contents())[-1] == b"after"
    await again.store.close()


async def operations(open_store, flush):
    disk = FaultDisk()
    assert await attempt(open_store, disk, History(), flush)
    return disk


def images(disk, seed):
    rng = random.Random(seed)
    return [(keep, disk.crash(keep, rng)) for keep in (Keep.ALL, Keep.NONE, Keep.SOME, Keep.SOME)]


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_a_crash_at_any_operation_loses_nothing_acknowledged(open_store, flush):
    count = (await operations(open_store, flush)).operations
    assert count > 100
    for number in range(count):
        disk, history = FaultDisk(), History()
        disk.cut = (number, random.Random(number).choice([0, 5, 50, 400, 700]))
        assert not await attempt(open_store, disk, history, flush)
        for keep, image in images(disk, number):
            certain = flush is FlushMode.SYNC or keep is Keep.ALL
            await check(open_store, image, history, flush=flush, all_acked=certain)


@pytest.mark.slow
async def test_a_write_torn_at_any_kind_of_byte_leaves_whole_calls(open_store):
    plain = await operations(open_store, FlushMode.SYNC)
    writes = [number for number, kind in enumerate(plain.kinds) if kind == "write"]
    places = [0, 1, 3, 4, 7, 8, 11, 12, 13, 40, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1]
    places += [HEADER_BYTES + 40, 300, 511, 512, 513, 1000, 2000, 3000, 1 << 20]
    for number in writes[-12:]:
        for cut in places:
            disk, history = FaultDisk(), History()
            disk.cut = (number, cut)
            await attempt(open_store, disk, history, FlushMode.SYNC)
            for keep, image in images(disk, cut)[::2]:
                await check(open_store, image, history, flush=FlushMode.SYNC, all_acked=True)
                assert keep in Keep


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.slow
async def test_any_operation_may_fail_once_and_nothing_acknowledged_is_lost(open_store, number):
    count = (await operations(open_store, FlushMode.SYNC)).operations
    for operation in range(count):
        disk, history = FaultDisk(), History()
        disk.faults[operation] = number
        await attempt(open_store, disk, history, FlushMode.SYNC)
        for _, image in images(disk, operation):
            await check(open_store, image, history, flush=FlushMode.SYNC, all_acked=True)


async def test_a_failed_fsync_poisons_the_store_and_is_not_tried_again(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message(b"safe")])
    events = []
    opened.store.on_failure = events.append
    disk.faults_of["sync"] = errno.EIO
    future = opened.store.append([message(b"unknown")])
    state = opened.store.append_state(b"unknown")
    with pytest.raises(StorePoisoned, match="fsync failed"):
        await future
    with pytest.raises(StorePoisoned, match="restart the broker"):
        await state
    assert isinstance(opened.store.failure, StorePoisoned)
    assert events == [opened.store.failure]
    syncs = disk.kinds.count("sync")
    with pytest.raises(StorePoisoned):
        opened.store.append([message()])
    with pytest.raises(StorePoisoned):
        opened.store.append_state(b"")
    with pytest.raises(StorePoisoned):
        await opened.store.save_snapshot(b"")
    assert await opened.contents() == [b"safe"]  # reads go on, of what is certain
    await opened.store.close()
    assert disk.kinds.count("sync") == syncs


async def test_a_failed_background_sync_poisons_the_store(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, flush=FlushMode.ASYNC)
    await opened.store.append([message()])
    disk.faults_of["sync"] = errno.EIO
    await opened.clock.advance(600)
    with pytest.raises(StorePoisoned, match="fsync failed"):
        opened.store.append([message()])
    await opened.store.close()


@pytest.mark.parametrize("parts", [1, 3])
async def test_a_full_disk_refuses_and_goes_on_when_there_is_space(open_store, message, parts):
    disk = FaultDisk(bytes_max=60_000)
    opened = await open_store(disk, disk_used_max_ratio=1.0)
    sent = []

    async def fill():
        for number in range(1_000):
            heads = [b"%d.%d" % (number, part) + b"x" * 700 for part in range(parts)]
            later = b"behind %d" % number
            call = opened.store.append([message(head) for head in heads])
            results = await asyncio.gather(call, opened.store.append([message(later)]), return_exceptions=True)
            if results[0] is not None:
                assert isinstance(results[1], StoreFull)
                raise results[0]
            sent.extend([*heads, later])

    with pytest.raises(StoreFull, match="no space left"):
        await fill()
    with pytest.raises(StoreFull):
        opened.store.append([message()])
    assert await opened.contents() == sent
    assert opened.store.failure is None
    assert opened.store.stats.waiting == 0
    disk.bytes_max = 90_000
    await opened.clock.advance(500)
    entry = message(b"again")
    await opened.store.append([entry])
    assert entry.queue_offset == len(sent)
    image = disk.crash(Keep.NONE, random.Random(1))
    await opened.store.close()
    again = await open_store(image)
    assert await again.contents() == [*sent, b"again"]
    await again.store.close()


async def test_messages_are_refused_before_the_disk_is_full_and_states_go_on(open_store, message):
    disk = FaultDisk(bytes_max=100_000)
    opened = await open_store(disk, disk_used_max_ratio=0.5)
    while opened.store.full is None:
        await opened.store.append([message(b"x" * 900)])
        await opened.clock.advance(500)
    assert 50_000 <= disk.bytes_used < 60_000
    with pytest.raises(StoreFull, match=r"full, messages are refused from 50\.0%"):
        opened.store.append([message()])
    await opened.store.append_state(b"an acknowledgement")
    await opened.store.save_snapshot(b"all")
    disk.bytes_max = 200_000
    await opened.clock.advance(500)
    await opened.store.append([message()])
    await opened.store.close()


async def test_a_power_loss_in_async_mode_keeps_a_prefix(open_store, message):
    for seed in range(60):
        disk = FaultDisk()
        opened = await open_store(disk, flush=FlushMode.ASYNC)
        for number in range(8):
            await opened.store.append([message(b"early %d" % number)])
        await opened.store.flush()
        for number in range(30):
            await opened.store.append([message(b"late %d" % number + b"." * 200)])
        image = disk.crash(Keep.SOME, random.Random(seed))
        await opened.store.close()
        again = await open_store(image)
        found = await again.contents()
        assert found[:8] == [b"early %d" % number for number in range(8)]
        assert found[8:] == [b"late %d" % number + b"." * 200 for number in range(len(found) - 8)]
        await again.store.close()


async def test_a_lost_synced_record_is_corruption_not_a_torn_tail(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    for _ in range(3):
        await opened.store.append([message(b"x" * 100)])
    image = disk.crash(Keep.ALL, random.Random(1))
    await opened.store.close()
    image.files["commitlog/00000000000000000000"].data[130] ^= 1
    with pytest.raises(StoreCorrupted, match=r"commitlog/0{20} at byte 0 .*says that the log was on disk up to"):
        await open_store(image)


@pytest.mark.slow
async def test_every_flipped_byte_after_a_clean_stop_is_found(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    heads = [b"%d" % number * 40 for number in range(6)]
    for head in heads:
        await opened.store.append([message(head)])
        await opened.store.append_state(b"s")
    await opened.store.save_snapshot(b"snap")
    await opened.store.append_state(b"last")
    await opened.store.close()
    caught = 0
    for path in sorted(disk.files):
        for place in range(len(disk.files[path].data)):
            image = disk.crash(Keep.ALL, random.Random(1))
            image.files[path].data[place] ^= 0x10
            try:
                again = await open_store(image)
                assert await again.contents() == heads
                assert set(again.states) | {b"s"} == {b"s", b"last"}
                await again.store.close()
            except (StoreCorrupted, StoreError):
                caught += 1
    assert caught > 500


def test_a_lost_block_can_neither_be_read_nor_written_in_part_until_it_is_written_as_a_whole():
    disk = FaultDisk()
    file = disk.open("f", create=True)
    file.pwrite([bytes(3 * BLOCK_BYTES)], 0)
    file.sync()
    disk.sync_folder("")
    file.lose(BLOCK_BYTES + 7)
    assert file.pread(BLOCK_BYTES, 0) == file.pread(BLOCK_BYTES, 2 * BLOCK_BYTES) == bytes(BLOCK_BYTES)
    for size, place in ((1, BLOCK_BYTES), (1, 2 * BLOCK_BYTES - 1), (3 * BLOCK_BYTES, 0)):
        with pytest.raises(OSError, match="Errno 5"):
            file.pread(size, place)
    for size, place in ((BLOCK_BYTES, BLOCK_BYTES - 1), (BLOCK_BYTES, BLOCK_BYTES + 1)):
        with pytest.raises(OSError, match="Errno 5"):
            file.pwrite([bytes(size)], place)
    later = disk.crash(Keep.NONE, random.Random(1)).open("f")
    with pytest.raises(OSError, match="Errno 5"):
        later.pread(1, BLOCK_BYTES)
    later.pwrite([b"x" * (BLOCK_BYTES + 2)], BLOCK_BYTES - 1)
    assert later.pread(2, BLOCK_BYTES) == b"xx"
    later.lose(2 * BLOCK_BYTES)
    later.truncate(2 * BLOCK_BYTES)
    assert later.pread(BLOCK_BYTES, BLOCK_BYTES)[:2] == b"xx"
