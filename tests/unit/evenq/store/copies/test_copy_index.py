"""A follower files the message index of what it has replayed, and the next leader finds it done."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.runtime.clock import SystemClock
from evenq.store import Append, StoreOptions
from evenq.store.copies.copy_index import BLOCKS_MAX, CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.index import message_index
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.log_pieces import LogPieces

SEGMENT, BLOCK = 4096, 1024


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(message_index, "BLOCK_BYTES", BLOCK)


def keys_of(_head, system):
    return [system]


class Pair:
    """A leader with a snapshot in the middle of its log, and a follower that has replayed up to it."""

    def __init__(self, open_store, disk):
        self.open_store, self.disk = open_store, disk
        self.keys: list[bytes] = []

    async def begin(self, messages=60, behind=6):
        leader_disk = MemoryDisk()
        leader = await self.open_store(leader_disk, keys_of=keys_of)
        await self.write(leader.store, messages)
        await leader.store.save_snapshot(b"state")
        path = snapshot.newest_path(leader_disk)
        file = leader_disk.open(path)
        data = file.pread(1 << 20, 0)
        file.close()
        await self.write(leader.store, behind)
        self.end = leader.store.stats.log_end
        self.copy = await self.follow(self.disk)
        self.leader_disk, self.data = leader_disk, data
        await self.fetch()
        await leader.store.close()
        return self.copy

    async def fetch(self):
        """The leader's log, replayed up to its snapshot."""
        pieces = LogPieces(self.leader_disk, SEGMENT)
        while self.copy.end < self.end:
            await self.copy.append(pieces.read(self.copy.end, self.end, 2_000), start=self.copy.end)
        pieces.close()
        await self.copy.sync()
        assert await self.copy.replay(self.data, committed=self.end, origin="leader")

    async def write(self, store, count):
        for _ in range(count):
            key = b"key-%d" % len(self.keys)
            self.keys.append(key)
            await store.append([Append(1, 0, 7, 5, bytes(100), key)])

    @staticmethod
    async def follow(disk):
        return await LogCopy.open(
            None, StoreOptions(), clock=SystemClock(), disk=disk, broker_name="broker-a", segment_bytes=SEGMENT
        )

    async def until_done(self, index):
        for _ in range(100):
            if await index.follow(self.copy):
                return
        raise AssertionError("it is never done")

    async def lead(self, disk=None):
        """A store opens the folder: which blocks had a file then, and every key is found."""
        opened = await self.open_store(disk or self.disk, keys_of=keys_of)
        follower = opened.store._index
        files = sorted(follower._index._filed)
        for key in self.keys:
            [found] = await opened.store.find(1, key)
            assert found.system == key
        await opened.store.close()
        return files


def whole_blocks(end):
    return list(range(0, end - end % BLOCK, BLOCK))


async def test_a_new_leader_finds_each_block_below_the_last_replay_filed(open_store):
    pair = Pair(open_store, MemoryDisk())
    copy = await pair.begin()
    index = CopyIndex(keys_of)
    assert not await index.follow(copy), "a few blocks at a time"
    assert len(pair.disk.list("index")) == BLOCKS_MAX
    await pair.until_done(index)
    replayed = copy.replayed_end
    assert replayed < pair.end
    assert [int(name) for name in pair.disk.list("index")] == whole_blocks(replayed)
    assert await index.follow(copy), "nothing new"
    await copy.close()
    assert await pair.lead() == whole_blocks(replayed)


async def test_the_files_are_those_that_a_store_makes(open_store):
    disks = []
    for builds in (True, False):
        pair = Pair(open_store, MemoryDisk())
        copy = await pair.begin()
        if builds:
            await pair.until_done(CopyIndex(keys_of))
        await copy.close()
        await pair.lead()
        disks.append({name: pair.disk.files[f"index/{name}"].pread(1 << 20, 0) for name in pair.disk.list("index")})
    first, second = disks
    shared = first.keys() & second.keys()
    assert len(shared) > 5
    assert all(first[name] == second[name] for name in shared)


@pytest.mark.slow
async def test_a_crash_at_any_moment_leaves_files_that_are_whole(open_store):
    """Every operation on the disk is the last one in turn; then what was not synced is lost, in any part."""
    pair = Pair(open_store, FaultDisk())
    await pair.begin(24)
    begun = pair.disk.operations
    await pair.until_done(CopyIndex(keys_of))
    kinds = pair.disk.kinds[begun:]
    await pair.copy.close()
    assert len(kinds) > 10
    rng = random.Random(3)
    for number, _ in enumerate(kinds):
        keep = rng.choice(list(Keep))
        pair = Pair(open_store, FaultDisk())
        await pair.begin(24)
        pair.disk.cut = (begun + number, rng.choice([0, 30, 700]))
        await CopyIndex(keys_of).follow(pair.copy)
        assert pair.disk.dead
        image = pair.disk.crash(keep, rng)
        again = await pair.follow(image)
        assert again.end == pair.end
        await again.close()
        await pair.lead(image)


@pytest.mark.parametrize("change", ["truncate", "close"])
async def test_it_is_given_up_when_the_log_changes_under_it(open_store, change):
    pair = Pair(open_store, MemoryDisk())
    copy = await pair.begin()
    index = CopyIndex(keys_of)
    following = asyncio.ensure_future(index.follow(copy))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not following.done()
    await (copy.truncate(copy.replayed_end) if change == "truncate" else copy.close())
    assert not await following
    if change == "truncate":
        pair.keys = pair.keys[:-6]
        await pair.until_done(index)
    await copy.close()
    files = await pair.lead()
    assert bool(files) is (change == "truncate")


async def test_a_log_that_was_begun_anew_is_indexed_anew(open_store):
    """A reset empties the folder, and the same place of the log may hold other records then."""
    pair = Pair(open_store, MemoryDisk())
    copy = await pair.begin()
    index = CopyIndex(keys_of)
    await pair.until_done(index)
    await copy.reset(0)
    assert pair.disk.list("index") == []
    await pair.fetch()
    await pair.until_done(index)
    assert [int(name) for name in pair.disk.list("index")] == whole_blocks(copy.replayed_end)
    await copy.close()
    await pair.lead()


async def test_a_full_disk_puts_it_off_and_the_copy_lives(open_store, caplog):
    pair = Pair(open_store, FaultDisk())
    copy = await pair.begin()
    pair.disk.bytes_max = pair.disk.bytes_used + 100
    with caplog.at_level(logging.WARNING):
        assert await CopyIndex(keys_of).follow(copy), "until the next replay"
    assert "cannot be written" in caplog.text
    assert copy.failure is None
    assert not any(map(str.isdecimal, pair.disk.list("index")))
    pair.disk.bytes_max = 1 << 40
    await pair.until_done(CopyIndex(keys_of))
    await copy.close()
    assert len(await pair.lead()) > 5


async def test_damage_in_the_log_stops_no_copy(open_store, caplog):
    """What is behind it in its file is not found by key; the copy's own checks say the rest."""
    pair = Pair(open_store, MemoryDisk())
    copy = await pair.begin()
    pair.disk.files["commitlog/" + pair.disk.list("commitlog")[0]].pwrite([b"\xff" * 200], 2_000)
    await pair.until_done(CopyIndex(keys_of))
    assert "is damaged at log offset" in caplog.text
    assert copy.failure is None
    await copy.close()
