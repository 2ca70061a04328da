"""A follower that replays its log is warm: a store that opens its folder reads little, and knows what it knew before."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreCorrupted, StoreFull, StorePoisoned
from evenq.runtime.clock import SystemClock
from evenq.store import Append, StoreOptions, TimerAppend
from evenq.store.copies import copy_replay
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.log_pieces import LogPieces
from evenq.store.opening import checkpoint
from evenq.store.timers import runs
from evenq.store.timers.keys import id_of
from evenq.store.timers.pending import PendingTimers

SEGMENT = 4096
FAR_MS = 1 << 50


async def follow(disk, clock=None):
    return await LogCopy.open(
        None, StoreOptions(), clock=clock or SystemClock(), disk=disk, broker_name="broker-a", segment_bytes=SEGMENT
    )


async def fetch(copy, leader, end):
    pieces = LogPieces(leader, SEGMENT)
    while copy.end < end:
        await copy.append(pieces.read(copy.end, end, 2_000), start=copy.end)
    pieces.close()
    await copy.sync()


class Leader:
    """A store whose every snapshot is kept beside it."""

    def __init__(self, opened, disk):
        self.store, self.disk, self.numbers = opened.store, disk, random.Random(5)
        self.snapshots: list[bytes] = []
        self.ends: list[int] = []
        self.timers: list[int] = []

    async def go_on(self, calls=30):
        store, numbers = self.store, self.numbers
        for _ in range(calls):
            entries = [Append(1, numbers.randrange(4), 7, 5, numbers.randbytes(40), b"s") for _ in range(3)]
            timer = TimerAppend(
                2, 0, 7, due_ms=FAR_MS + numbers.randrange(99), kind=1, born_ms=5, head=b"t", system=b""
            )
            await store.append(entries, state=b"state %d" % numbers.randrange(99), timers=[timer])
            self.timers.append(timer.log_offset)
        ended, self.timers = self.timers[::3], [one for at, one in enumerate(self.timers) if at % 3]
        await store.append([], ended=ended)

    async def save(self, payload=b"the owner's state"):
        await self.store.save_snapshot(payload)
        path = snapshot.newest_path(self.disk)
        file = self.disk.open(path)
        self.snapshots.append(file.pread(1 << 20, 0))
        file.close()
        self.ends.append(int(path.rpartition("/")[2]))


@pytest.fixture
def leading(open_store):
    async def make(disk=None):
        disk = disk or MemoryDisk()
        return Leader(await open_store(disk), disk)

    return make


async def all_of(opened):
    """What a store can tell, and the timers that are pending in it."""
    store, queues = opened.store, []
    for queue_id in range(4):
        low, high = store.queue_range(1, queue_id)
        messages = await store.read_at(1, queue_id, range(low, high))
        queues.append((low, high, [(m.log_offset, m.tag_hash, m.head) for m in messages]))
        assert len(messages) == high - low
    pending = store._timers.pending
    filed = [runs.read(store._disk, run, used, run.count) for run, used in pending.used_runs()]
    ids = {id_of(key) for keys in filed for key in keys} - pending.ended_ids()
    ids |= {id_of(key) for key in pending.below(1 << 62)}
    return queues, sorted(ids), store.last_store_ms, store.stats.log_end


async def same_as_cold(open_store, disk, leader):
    """Open the warm folder, and one with the log alone, and compare; gives the warm one's number of records read."""
    cold_disk = MemoryDisk()
    cold = await follow(cold_disk)
    await fetch(cold, leader.disk, leader.store.stats.log_end)
    await cold.close()
    warm, cold_store = await open_store(disk), await open_store(cold_disk)
    assert await all_of(warm) == await all_of(cold_store)
    assert sorted(leader.timers) == (await all_of(warm))[1]
    read, read_cold = (one.store.stats.recovered_records for one in (warm, cold_store))
    found = (read, read_cold, warm.snapshots, warm.states, cold_store.states)
    await warm.store.close()
    await cold_store.store.close()
    return found


@pytest.mark.parametrize(("pieces", "table_max"), [(200, 8), (1 << 18, 20), (1 << 18, 30_000)])
async def test_after_replays_a_store_reads_only_what_came_since(open_store, leading, monkeypatch, pieces, table_max):
    """Small tables become runs, whose numbers and contents are the follower's own."""
    monkeypatch.setattr(copy_replay, "PIECE_BYTES", pieces)
    monkeypatch.setitem(PendingTimers.__init__.__kwdefaults__, "table_max", table_max)
    leader, disk = await leading(), MemoryDisk()
    copy = await follow(disk)
    assert copy.replayed_end == 0
    for number in range(3):
        await leader.go_on()
        await leader.save(b"owner %d" % number)
        await fetch(copy, leader.disk, leader.store.stats.log_end)
        assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
        assert copy.replayed_end == leader.ends[-1]
        assert not await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader"), "nothing new"
        assert (runs.numbers(disk) != []) is (table_max < 30)
        assert len(runs.numbers(disk)) <= 20, "merged, and those that no snapshot names are gone"
    await leader.go_on(5)
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    await copy.close()
    again = await follow(disk)
    assert again.replayed_end == leader.ends[-1]
    await again.close()
    read, read_cold, snapshots, states, all_states = await same_as_cold(open_store, disk, leader)
    assert snapshots == [b"owner 2"]
    assert states == all_states[-5:]
    assert (read, read_cold > 400) == (5 * 5 + 1, True)
    await leader.store.close()


async def test_a_copy_whose_log_begins_at_a_leaders_snapshot_replays_over_it(leading):
    """The copy of a broker that was replaced after retention had deleted the first file."""
    leader, disk = await leading(), MemoryDisk()
    await leader.go_on()
    await leader.save()
    copy = await follow(disk)
    await copy.reset(SEGMENT)
    await copy.install(leader.snapshots[0], origin="leader")
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    await leader.go_on()
    await leader.save()
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    assert await copy.replay(leader.snapshots[1], committed=copy.end, origin="leader")
    assert copy.replayed_end == leader.ends[1]
    await copy.close()
    again = await follow(disk)
    assert again.replayed_end == leader.ends[1]
    assert again.stopped_clean
    await again.close()
    await leader.store.close()


async def test_nothing_is_derived_behind_what_is_committed_or_on_disk(leading):
    leader, disk = await leading(), MemoryDisk()
    copy = await follow(disk)
    await leader.go_on()
    await leader.save()
    end = leader.ends[-1]
    pieces = LogPieces(leader.disk, SEGMENT)
    await copy.append(pieces.read(0, end, 1 << 20), start=0)
    assert copy.synced_end < copy.end
    assert not await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader"), "not on disk"
    await copy.sync()
    assert not await copy.replay(leader.snapshots[-1], committed=end - 1, origin="leader"), "not committed"
    assert (disk.list("snapshot"), checkpoint.load(disk)) == ([], None)
    assert await copy.replay(leader.snapshots[-1], committed=end, origin="leader")
    assert checkpoint.load(disk).log_offset == end
    await copy.close()
    await leader.store.close()


@pytest.mark.slow
async def test_a_crash_at_any_moment_of_a_replay_leaves_a_folder_that_tells_the_same(open_store, leading, monkeypatch):
    """Every operation on the disk is the last one in turn; then what was not synced is lost, in any part."""
    monkeypatch.setattr(copy_replay, "PIECE_BYTES", 2_000)

    async def prepared():
        leader, disk = await leading(), FaultDisk()
        copy = await follow(disk)
        await leader.go_on(20)
        await leader.save(b"first")
        await fetch(copy, leader.disk, leader.store.stats.log_end)
        assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
        await leader.go_on(20)
        await leader.save(b"second")
        await leader.go_on(2)
        await fetch(copy, leader.disk, leader.store.stats.log_end)
        return leader, disk, copy

    leader, disk, copy = await prepared()
    begun = disk.operations
    assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    kinds = disk.kinds[begun:]
    await copy.close()
    await leader.store.close()
    assert len(kinds) > 20
    snapshots_seen, rng = set(), random.Random(3)
    for number, kind in enumerate(kinds):
        for keep in Keep:
            leader, disk, copy = await prepared()
            disk.cut = (begun + number, rng.choice([0, 30, 700]))
            with contextlib.suppress(StorePoisoned):
                assert not await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader"), kind
            assert disk.dead
            image = disk.crash(keep, rng)
            again = await follow(image)
            assert again.end == leader.store.stats.log_end
            assert again.replayed_end in leader.ends
            await again.close()
            _, _, snapshots, *_ = await same_as_cold(open_store, image, leader)
            snapshots_seen.update(snapshots)
            await leader.store.close()
    assert snapshots_seen == {b"first", b"second"}


async def test_a_full_disk_puts_a_replay_off(leading):
    leader, disk = await leading(), FaultDisk()
    copy = await follow(disk)
    await leader.go_on()
    await leader.save()
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    disk.bytes_max = disk.bytes_used + 100
    with pytest.raises(StoreFull, match="the copied log is not replayed now"):
        await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    assert (copy.failure, copy.replayed_end) == (None, 0)
    disk.bytes_max = 1 << 40
    assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    await copy.close()
    await leader.store.close()


@pytest.mark.parametrize("change", ["truncate", "reset", "close"])
async def test_a_replay_is_given_up_when_the_log_changes_under_it(open_store, leading, monkeypatch, change):
    monkeypatch.setattr(copy_replay, "PIECE_BYTES", 500)
    leader, disk = await leading(), MemoryDisk()
    copy = await follow(disk)
    await leader.go_on()
    await leader.save()
    await leader.go_on(3)
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    replay = asyncio.ensure_future(copy.replay(leader.snapshots[-1], committed=leader.ends[0], origin="leader"))
    for _ in range(3):  # its first step is done in the first turn, the others come after pauses
        await asyncio.sleep(0)
    assert not replay.done()
    if change == "truncate":
        await copy.truncate(leader.ends[0])
    elif change == "reset":
        await copy.reset(0)
    else:
        await copy.close()
    assert not await replay
    assert (disk.list("snapshot"), checkpoint.load(disk)) == ([], None)
    await copy.close()
    await leader.store.close()


async def test_damage_in_the_log_and_a_snapshot_of_another_log_are_refused_by_place(leading):
    leader, other, disk = await leading(), await leading(), MemoryDisk()
    copy = await follow(disk)
    for one in (leader, other):
        await one.go_on()
        await one.store.append([Append(1, 9, 7, 5, b"one more", b"")] * (1 + (one is other)))
        await one.save()
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    saved = replace(snapshot.parsed(other.snapshots[-1], ""), log_offset=leader.ends[-1])
    snapshot.save(other.disk, saved)
    file = other.disk.open(f"snapshot/{saved.log_offset:020d}")
    with pytest.raises(
        StoreCorrupted, match=r"snapshot at .* has 2 as the next offset of queue 9 of topic 1, the log here has 1"
    ):
        await copy.replay(file.pread(1 << 20, 0), committed=copy.end, origin="leader")
    file.close()
    known = {key: span for key, span in saved.queues.items() if key != (1, 9)}
    snapshot.save(other.disk, replace(saved, queues=known))
    file = other.disk.open(f"snapshot/{saved.log_offset:020d}")
    with pytest.raises(StoreCorrupted, match=r"has 0 as the next offset of queue 9 of topic 1, the log here has 1"):
        await copy.replay(file.pread(1 << 20, 0), committed=copy.end, origin="leader")
    disk.files["commitlog/00000000000000004096"].data[2_000] ^= 1
    with pytest.raises(StoreCorrupted, match=r"0000000000004096 at byte \d+ \(log offset .* is damaged"):
        await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    with pytest.raises(StoreCorrupted, match="leader: 10 bytes are not a whole snapshot"):
        await copy.replay(leader.snapshots[-1][:10], committed=copy.end, origin="leader")
    assert copy.failure is None, "the copy itself goes on"
    await copy.close()
    await leader.store.close()
    await other.store.close()


async def test_a_warm_copy_can_let_its_first_files_go(open_store, leading):
    leader, disk = await leading(), MemoryDisk()
    copy = await follow(disk)
    await leader.go_on(100)
    await leader.save()
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    assert not await copy.trim(2 * SEGMENT), "nothing says which messages would go"
    assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    assert await copy.trim(2 * SEGMENT)
    assert min(map(int, disk.list("commitlog"))) == copy.start == 2 * SEGMENT
    await leader.go_on()
    await leader.save(b"behind")
    await fetch(copy, leader.disk, leader.store.stats.log_end)
    assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    await copy.close()
    opened = await open_store(disk)
    low, high = opened.store.queue_range(1, 0)
    assert 0 < low < high == leader.store.queue_range(1, 0)[1]
    assert opened.snapshots == [b"behind"]
    await opened.store.close()
    await leader.store.close()


@pytest.mark.parametrize("ahead", ["checkpoint", "snapshot"])
async def test_a_start_reads_from_where_both_checkpoint_and_snapshot_reach(leading, ahead):
    """A store that leads writes its checkpoint oftener than its snapshot; a crash may leave either ahead."""
    leader, disk = await leading(), MemoryDisk()
    copy = await follow(disk)
    for _ in range(2):
        await leader.go_on()
        await leader.save()
        await fetch(copy, leader.disk, leader.store.stats.log_end)
        if copy.replayed_end == 0:
            assert await copy.replay(leader.snapshots[-1], committed=copy.end, origin="leader")
    first, second = leader.ends
    saved = checkpoint.load(disk)
    if ahead == "checkpoint":
        checkpoint.save(disk, replace(saved, log_offset=second))
    else:
        checkpoint.save(disk, replace(saved, log_offset=first - 1))
    assert copy_replay.replayed_end(disk, log_start=0) == (first if ahead == "checkpoint" else first - 1)
    await copy.close()
    await leader.store.close()
