"""Promises of semantics.md section 5 that show in how the store uses its files; `test_store.py` has the others."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreCorrupted
from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.io.memory_disk import MemoryDisk, MemoryFile
from evenq.store.log.consume_queue import ENTRY_BYTES
from evenq.store.log.record import HEADER_BYTES

HEAD = 10_000
"""Bytes of a message: no member reads over such a gap."""


class WatchedDisk(MemoryDisk):
    """Notes (kind, path, offset, bytes) of each read and write."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def open(self, path, *, create=False):
        if create and path not in self.files:
            self.files[path] = WatchedFile(self, path)
        return super().open(path)

    def of(self, kind, folder):
        return [call[1:] for call in self.calls if call[0] == kind and call[1].startswith(folder)]


class WatchedFile(MemoryFile):
    __slots__ = ("path",)

    def __init__(self, disk, path):
        super().__init__(disk)
        self.path = path

    def pwrite(self, parts, offset):
        self.disk.calls.append(("write", self.path, offset, sum(map(len, parts))))
        super().pwrite(parts, offset)

    def pread(self, size, offset):
        self.disk.calls.append(("read", self.path, offset, size))
        return super().pread(size, offset)


async def opened(disk, **options):
    return await MessageStore.open(
        None, StoreOptions(**{"segment_bytes": 1 << 18, "flush": FlushMode.SYNC, **options}), clock=FakeClock(),
        disk=disk, broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip


def one(topic_id=1, queue_id=0, head=b"x"):
    return Append(topic_id, queue_id, 0, 0, head, b"")


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_cl_3_the_log_is_written_strictly_forward_whatever_queue_a_message_is_for(flush):
    disk = WatchedDisk()
    store = await opened(disk, segment_bytes=4096, flush=flush)
    futures = [store.append([one(1 + n % 3, n % 7, b"x" * (n % 200))]) for n in range(150)]
    await asyncio.gather(*futures)
    writes = disk.of("write", "commitlog/")
    places = [(int(path[-20:]) + offset, size) for path, offset, size in writes]
    assert len({path for path, _, _ in writes}) > 3
    assert places[0][0] == 0
    for (before, size), (after, _) in itertools.pairwise(places):
        end = before + size
        rest = -end % 4096  # too short for padding: the next file begins behind it
        assert after == (end + rest if rest < HEADER_BYTES else end)
    await store.close()


async def test_cl_7_consume_queue_files_are_appended_strictly_forward():
    disk = WatchedDisk()
    store = await opened(disk)
    for count in (1, 7, 3, 200, 2):
        await store.append([one(1, number % 2) for number in range(2 * count)])
        await store.checkpoint()
    for queue_id in range(2):
        end = 0
        for path, offset, size in disk.of("write", f"consumequeue/1/{queue_id}/"):
            assert (path[-20:], offset) == (f"{0:020d}", end)
            end += size
        assert end == 213 * ENTRY_BYTES
    await store.close()


async def test_cl_11_a_read_takes_its_entries_and_then_its_messages_and_never_scans_the_log():
    disk = WatchedDisk()
    store = await opened(disk, cache_bytes=1)
    for number in range(300):  # the newest entries stay in memory
        await store.append([one(1, queue_id, b"%d-%d." % (queue_id, number) + bytes(HEAD)) for queue_id in (2, 3)])
    await store.checkpoint()
    disk.calls.clear()
    found = await store.read(1, 3, 40, count_max=3, bytes_max=1 << 20)
    assert [message.head.partition(b".")[0] for message in found.messages] == [b"3-40", b"3-41", b"3-42"]
    assert disk.of("read", "consumequeue/") == [(f"consumequeue/1/3/{0:020d}", 40 * ENTRY_BYTES, 3 * ENTRY_BYTES)]
    wanted = [(message.log_offset, HEADER_BYTES + len(message.head)) for message in found.messages]
    assert [(int(path[-20:]) + place, size) for path, place, size in disk.of("read", "commitlog/")] == wanted
    await store.close()


def flipped(disk, number):
    """The file and the position of a message's record, and a bit of its body is wrong."""
    (path,) = [path for path in disk.files if path.startswith("commitlog/")]
    data = disk.files[path].data
    body = data.index(b"body-%d" % number)
    data[body + 5] ^= 1
    return rf"{path} at byte {body - HEADER_BYTES} "


async def test_cl_16_a_restart_checks_the_bodies_it_finds_and_refuses_damage():
    disk = FaultDisk()
    store = await opened(disk)
    for number in range(10):
        await store.append([one(head=b"body-%d" % number)])
    whole, damaged, torn = (disk.crash(Keep.ALL, random.Random(1)) for _ in range(3))
    await store.close()
    again = await opened(whole)
    assert again.queue_range(1, 0) == (0, 10)
    await again.close()
    with pytest.raises(StoreCorrupted, match=flipped(damaged, 4)):  # records behind it say that it was on disk
        await opened(damaged)
    flipped(torn, 9)  # nothing says so of the last one: a torn tail
    again = await opened(torn)
    assert (again.queue_range(1, 0), again.stats.recovered_cut_bytes) == ((0, 9), HEADER_BYTES + len(b"body-9"))
    await again.close()


async def test_cl_16_a_body_before_the_snapshot_that_a_start_begins_from_is_checked_when_it_is_read():
    disk = FaultDisk()
    store = await opened(disk)
    for number in range(10):
        await store.append([one(head=b"body-%d" % number)])
    await store.save_snapshot(b"state")
    await store.close()
    found = disk.crash(Keep.ALL, random.Random(1))
    flipped(found, 4)
    again = await opened(found)
    result = await again.read(1, 0, 3, count_max=1, bytes_max=1_000)
    assert [message.head for message in result.messages] == [b"body-3"]
    with pytest.raises(StoreCorrupted, match=r"holds no message 4 of queue 0"):
        await again.read(1, 0, 4, count_max=1, bytes_max=1_000)
    await again.close()
