"""The message index: it finds what the log holds, its files are a function of the log, and damage costs a rebuild."""

from __future__ import annotations

import errno
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, FaultFile, Keep

from evenq.errors import StoreCorrupted, StoreError
from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions, TimerAppend
from evenq.store.index.message_index import PIECE_BYTES

KEYS = 17


def keys_of(_head, system):
    return system.split(b",") if system else []


async def opened(disk, *, clock=None, keys_of=keys_of, **options):
    return await MessageStore.open(
        None, StoreOptions(**{"segment_bytes": 4096, "flush": FlushMode.SYNC, **options}), clock=clock or FakeClock(),
        disk=disk, broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None, keys_of=keys_of,
    )  # fmt: skip


def one(number, topic_id=1):
    return Append(topic_id, number % 3, 0, 0, b"x" * (number * 37 % 300), b"key-%d,all" % (number % KEYS))


async def fill(store, count, start=0):
    for number in range(start, start + count):
        await store.append([one(number, 1 + number % 2)])
        if number % 10 == 0:
            await store.append_state(b"s" * 20)


def index_of(disk):
    return {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("index/")}


async def check(store, count):
    """Every message is found by its keys, newest first."""
    for topic_id in (1, 2):
        numbers = [number for number in range(count) if 1 + number % 2 == topic_id]
        found = await store.find(topic_id, b"all", count_max=count)
        assert [len(message.head) for message in found] == [number * 37 % 300 for number in reversed(numbers)]
        for key in range(KEYS):
            expected = [number * 37 % 300 for number in reversed(numbers) if number % KEYS == key]
            found = await store.find(topic_id, b"key-%d" % key, count_max=count)
            assert [len(message.head) for message in found] == expected


async def test_all_messages_are_found_from_memory_and_from_files_and_after_a_restart():
    disk = FaultDisk()
    store = await opened(disk)
    await fill(store, 150)
    await check(store, 150)
    assert await store.find(1, b"key-99") == []
    assert await store.find(3, b"all") == []
    assert await store.find(1, b"") == []
    assert store.stats.index_files == len(disk.list("index")) == store.stats.log_end // 4096
    await store.close()
    again = await opened(disk)
    assert again.stats.index_files == len(disk.list("index"))
    await check(again, 150)
    assert again.stats.index_failures == 0
    await again.close()


async def test_timers_are_not_found_before_they_fire():
    store = await opened(FaultDisk())
    timer = TimerAppend(1, 0, 0, due_ms=5, kind=1, born_ms=0, head=b"h", system=b"all")
    await store.append([], timers=[timer])
    assert await store.find(1, b"all") == []
    await store.close()


async def test_large_records_that_hold_no_message_are_passed_over_without_being_read(monkeypatch):
    size, read = 1 << 20, []
    real = FaultFile.pread

    def pread(file, count, offset):
        read.append(count)
        return real(file, count, offset)

    store = await opened(FaultDisk(), segment_bytes=64 << 20, flush_interval_ms=60_000)
    for number in range(20):
        timer = TimerAppend(1, 0, 0, due_ms=5, kind=3, born_ms=0, head=b"h", system=bytes(size))
        await store.append([one(number)] if number % 4 == 0 else [], timers=[timer])
    monkeypatch.setattr(FaultFile, "pread", pread)
    assert len(await store.find(1, b"all", count_max=99)) == 5
    assert max(read) <= PIECE_BYTES
    assert sum(read) < 20 * size // 2
    await store.close()


async def test_find_is_bounded_by_count_bytes_and_time():
    clock = FakeClock()
    store = await opened(FaultDisk(), clock=clock)
    entries = []
    for _ in range(100):
        entries.append(Append(1, 0, 0, 0, b"x" * 100, b"all,all"))
        await store.append([entries[-1]])
        clock.jump_wall(10)
    offsets = lambda found: [message.queue_offset for message in found]  # noqa: E731
    assert offsets(await store.find(1, b"all", count_max=3)) == [99, 98, 97]
    assert offsets(await store.find(1, b"all", bytes_max=250)) == [99, 98]
    assert offsets(await store.find(1, b"all", bytes_max=1)) == [99]
    begin, end = entries[20].store_ms, entries[25].store_ms
    assert offsets(await store.find(1, b"all", begin_ms=begin, end_ms=end)) == [25, 24, 23, 22, 21, 20]
    assert await store.find(1, b"all", begin_ms=entries[99].store_ms + 1) == []
    assert await store.find(1, b"all", end_ms=entries[0].store_ms - 1) == []
    await store.close()


async def test_the_index_follows_by_itself():
    disk, clock = FaultDisk(), FakeClock()
    store = await opened(disk, clock=clock)
    await fill(store, 100)
    for _ in range(200):
        await clock.advance(10)
    assert store.stats.index_end == store.stats.log_end
    assert len(disk.list("index")) == store.stats.log_end // 4096
    await store.close()


async def test_damaged_and_missing_files_are_built_anew_byte_for_byte():
    disk = FaultDisk()
    store = await opened(disk)
    await fill(store, 150)
    await check(store, 150)
    before = index_of(disk)
    paths = sorted(before)
    disk.files[paths[1]].data[4096 + 100] ^= 1
    await check(store, 150)
    assert index_of(disk) == before
    assert store.stats.index_failures == 1
    await store.close()
    disk.files[paths[0]].data[9] ^= 1
    disk.remove(paths[3])
    again = await opened(disk)
    await check(again, 150)
    assert index_of(disk) == before
    await again.close()


async def test_a_file_that_does_not_fit_the_log_is_built_anew():
    disks = [FaultDisk(), FaultDisk()]
    for disk, size in zip(disks, (10, 77), strict=True):
        store = await opened(disk)
        for _ in range(400):
            await store.append([Append(1, 0, 0, 0, b"x" * size, b"all")])
        await store.find(1, b"all")
        await store.close()
    before = index_of(disks[0])
    second = sorted(before)[1]
    disks[0].files[second] = disks[1].files[second]
    again = await opened(disks[0])
    assert len(await again.find(1, b"all", count_max=1000)) == 400
    assert index_of(disks[0]) == before
    await again.close()


async def test_a_full_disk_costs_no_append_and_the_index_goes_on_when_there_is_room():
    disk, clock = FaultDisk(), FakeClock()
    store = await opened(disk, clock=clock)
    disk.faults_of["rename"] = errno.ENOSPC
    await fill(store, 300)
    with pytest.raises(StoreError, match="bytes behind because its files cannot be written"):
        await store.find(1, b"all")
    assert store.failure is None
    assert store.stats.index_failures > 0
    assert disk.list("index") in ([], ["00000000000000000000.new"])
    disk.faults_of.clear()
    await check(store, 300)
    assert store.failure is None
    await store.close()


async def test_damage_in_the_log_is_said_and_the_next_file_of_the_log_is_indexed():
    disk = FaultDisk()
    store = await opened(disk, cache_bytes=0)
    entries = [Append(1, 0, 0, 0, b"x" * 100, b"all") for _ in range(100)]
    for entry in entries:
        await store.append([entry])
    disk.files["commitlog/00000000000000000000"].data[entries[3].log_offset + 5] ^= 1  # its magic
    found = await store.find(1, b"all", count_max=200)
    whole = [entry.queue_offset for entry in entries if entry.log_offset >= 4096 or entry.queue_offset < 3]
    assert [message.queue_offset for message in found] == whole[::-1]
    assert store.stats.index_failures == 1
    disk.files["commitlog/00000000000000004096"].data[200] ^= 1  # the body of a message that is indexed
    with pytest.raises(StoreCorrupted, match="holds no message at log offset"):
        await store.find(1, b"all", count_max=200)
    assert store.failure is None
    await store.close()


async def test_a_mistake_in_the_owners_key_function_costs_those_keys_only():
    def picky(head, system):
        if system == b"bad":
            raise KeyError("bad")
        return keys_of(head, system)

    store = await opened(FaultDisk(), keys_of=picky)
    await store.append([Append(1, 0, 0, 0, b"", system) for system in (b"bad", b"good", b"bad")])
    assert len(await store.find(1, b"good")) == 1
    assert store.stats.index_failures == 2
    await store.close()


async def test_messages_that_retention_let_go_are_not_found_and_their_files_go():
    disk, clock = FaultDisk(), FakeClock()
    store = await MessageStore.open(
        None, StoreOptions(segment_bytes=4096, flush=FlushMode.SYNC, retention_ms=1000, retention_hour=-1),
        clock=clock, disk=disk, broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
        snapshot_of=lambda: b"", keys_of=keys_of,
    )  # fmt: skip
    await fill(store, 100)
    await store.find(1, b"all")
    clock.jump_wall(5000)
    await fill(store, 10, 100)
    await store.clean()
    start = int(disk.list("commitlog")[0])
    assert start > 0
    found = await store.find(1, b"all", count_max=1000)
    low, high = store.queue_range(1, 0)
    offsets = [message.queue_offset for message in found if message.queue_id == 0]
    assert offsets == list(range(high - 1, low - 1, -1))
    assert all(message.log_offset >= start for message in found)
    assert all(int(name) >= start for name in disk.list("index"))
    await store.close()


async def test_a_store_without_keys_says_so():
    store = await opened(FaultDisk(), keys_of=None)
    with pytest.raises(StoreError, match="open it with keys_of"):
        await store.find(1, b"all")
    await store.close()


@pytest.mark.parametrize("keep", list(Keep))
async def test_killed_at_any_change_of_the_index_it_comes_back_the_same(keep):
    """CL-15: log, then kill at each change that follows while the index is built; after a restart the bytes are those
    of an index that was never disturbed.
    """
    whole = FaultDisk()
    plain = await opened(whole, keys_of=None)
    await fill(plain, 60)
    await plain.close()
    undisturbed = whole.crash(Keep.ALL, random.Random(0))
    store = await opened(undisturbed)
    begun = undisturbed.operations
    await check(store, 60)
    ended = undisturbed.operations
    expected = index_of(undisturbed)
    await store.close()
    assert ended - begun > 15
    for number in range(begun, ended):
        disk = whole.crash(Keep.ALL, random.Random(0))
        disk.cut = (number, 2000)
        store = await opened(disk)
        try:
            await check(store, 60)
        except StoreError:
            assert disk.dead
        left = disk.crash(keep, random.Random(number))
        await store.close()
        again = await opened(left)
        await check(again, 60)
        assert index_of(left) == expected, number
        await again.close()
