"""A view of a copied log shows what is before its end and nothing else, whatever the folder's files say."""

from __future__ import annotations

import random

import pytest

from evenq.errors import HaNotAvailable, StoreCorrupted
from evenq.runtime.clock import SystemClock
from evenq.store import Append, Kept, StoreOptions, TimerAppend
from evenq.store.copies import committed_view
from evenq.store.copies.committed_view import CommittedView
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.consume_queue import TAIL_KEPT
from evenq.store.log.log_pieces import LogPieces

SEGMENT = 4096
QUEUES = 3


class Leader:
    """A store, and what was put into it: where each call ends, and its state."""

    def __init__(self, opened, disk):
        self.store, self.disk, self.numbers = opened.store, disk, random.Random(3)
        self.ends = [0]
        self.states = []

    async def go_on(self, calls):
        store, numbers = self.store, self.numbers
        for _ in range(calls):
            entries = [
                Append(1, numbers.randrange(QUEUES), 7, 5, numbers.randbytes(40), b"s")
                for _ in range(numbers.randrange(4))
            ]
            timer = TimerAppend(2, 0, 7, due_ms=1 << 50, kind=1, born_ms=5, head=b"t", system=b"")
            await store.append(entries, state=b"state %d" % len(self.states), timers=[timer])
            self.ends.append(store.stats.log_end)
            self.states.append(b"state %d" % len(self.states))

    async def snapshot(self, payload):
        """Gives the file's bytes and place."""
        await self.store.save_snapshot(payload)
        path = snapshot.newest_path(self.disk)
        file = self.disk.open(path)
        data = file.pread(1 << 20, 0)
        file.close()
        return data, int(path.rpartition("/")[2])

    async def before(self, end):
        """By queue, its first offset and the heads of its messages before a log offset."""
        result = []
        for queue_id in range(QUEUES):
            low, high = self.store.queue_range(1, queue_id)
            messages = await self.store.read_at(1, queue_id, range(low, high))
            result.append([(one.queue_offset, one.head) for one in messages if one.log_offset < end])
        return result


class Follower:
    """A copy, and what its views reported of states."""

    def __init__(self, copy, disk):
        self.copy, self.disk = copy, disk
        self.states = []

    async def fetch(self, leader):
        pieces = LogPieces(leader.disk, SEGMENT)
        while self.copy.end < leader.ends[-1]:
            await self.copy.append(pieces.read(self.copy.end, leader.ends[-1], 2_000), start=self.copy.end)
        pieces.close()
        await self.copy.sync()

    async def view(self, until, *, log_bytes_max=1 << 30):
        self.states = []
        return await CommittedView.open(
            self.copy.replays, until=until, log_bytes_max=log_bytes_max,
            on_snapshot=lambda payload: self.states.append(b"= " + payload), on_state=self.states.append,
        )  # fmt: skip


@pytest.fixture
def pair(open_store):
    async def make():
        leading, following = MemoryDisk(), MemoryDisk()
        copy = await LogCopy.open(
            None, StoreOptions(), clock=SystemClock(), disk=following, broker_name="broker-a", segment_bytes=SEGMENT
        )
        return Leader(await open_store(leading), leading), Follower(copy, following)

    return make


async def shown(view):
    """All of it, read as messages and as records."""
    result = []
    for queue_id in range(QUEUES):
        low, high = view.queue_range(1, queue_id)
        position, messages, blocks = low, [], low
        while position < high:
            read = await view.read(1, queue_id, position, count_max=7, bytes_max=1 << 20, tag_hashes=None)
            assert read.max_offset == high
            assert read.next_offset > position
            messages += read.messages
            position = read.next_offset
        while blocks < high:
            kept = Kept(head=True, system=True, check=True)
            block = await view.read_block(1, queue_id, blocks, count_max=9, bytes_max=1 << 20, kept=kept)
            assert block.next_offset > blocks
            blocks = block.next_offset
            block.give_back()
        assert (position, blocks) == (high, high)
        result.append([(one.queue_offset, one.head) for one in messages])
    return result


@pytest.mark.parametrize("piece_bytes", [100, 1_500, 1 << 18])
@pytest.mark.spec("HA-9")
async def test_a_view_shows_what_is_before_its_end_and_nothing_behind(pair, monkeypatch, piece_bytes):
    """At every place between two calls, beside a copy that is far ahead, before, between and after replays."""
    monkeypatch.setattr(committed_view, "PIECE_BYTES", piece_bytes)
    leader, follower = await pair()
    numbers = random.Random(9)
    for number in range(3):
        base = follower.copy.replayed_end
        known = len([one for one in leader.ends if one <= base]) - 1
        await leader.go_on(30)
        await follower.fetch(leader)
        ends = sorted(numbers.sample([end for end in leader.ends if end >= base], 8))
        view = await follower.view(ends[0])
        for end in ends:
            await view.advance(end)
            assert view.end == end
            assert await shown(view) == await leader.before(end)
            states = leader.states[known : leader.ends.index(end)]
            assert follower.states == [b"= owner %d" % number for number in [number - 1] if base] + states
        data, place = await leader.snapshot(b"owner %d" % number)
        await view.advance(place)
        assert await follower.copy.replay(data, committed=follower.copy.end, origin="leader")
        assert view.is_current
        await view.let_filed_go()
        assert all(len(queue.tail) <= 20 * TAIL_KEPT for queue in view._queues.values())
        assert await shown(view) == await leader.before(place), "read from files now"
        await leader.go_on(5)
        await follower.fetch(leader)
        await view.advance(leader.ends[-1])
        assert await shown(view) == await leader.before(leader.ends[-1])
        view.close()
    await follower.copy.close()


async def test_entries_that_a_replay_filed_need_no_memory(pair):
    leader, follower = await pair()
    await leader.go_on(600)
    await follower.fetch(leader)
    view = await follower.view(leader.ends[-1])
    before = sum(len(queue.tail) for queue in view._queues.values())
    data, _ = await leader.snapshot(b"owner")
    assert await follower.copy.replay(data, committed=follower.copy.end, origin="leader")
    await view.let_filed_go()
    assert sum(len(queue.tail) for queue in view._queues.values()) <= QUEUES * TAIL_KEPT * 20 < before
    assert await shown(view) == await leader.before(leader.ends[-1])


@pytest.mark.parametrize("change", ["cut", "reset", "close"])
async def test_a_view_is_over_when_its_log_is_another_one(pair, change):
    leader, follower = await pair()
    await leader.go_on(40)
    await follower.fetch(leader)
    copy, view = follower.copy, await follower.view(leader.ends[20])
    assert view.is_current
    if change == "cut":
        await copy.truncate(leader.ends[30])
    elif change == "reset":
        await copy.reset(0)
    else:
        await copy.close()
    assert not view.is_current
    for asked in (
        view.read(1, 0, 0, count_max=1, bytes_max=1, tag_hashes=None),
        view.read_block(1, 0, 0, count_max=1, bytes_max=1, kept=Kept(head=True, system=True, check=True)),
        view.offset_at(1, 0, 1),
        view.advance(leader.ends[21]),
        view.let_filed_go(),
    ):
        with pytest.raises(HaNotAvailable):
            await asked
    view.close()
    view.close()


async def test_a_view_waits_until_the_copy_knows_what_its_files_tell_to_be_committed(pair):
    """A copy that has just started has a snapshot and does not know yet what is committed."""
    leader, follower = await pair()
    await leader.go_on(40)
    await follower.fetch(leader)
    data, place = await leader.snapshot(b"owner")
    assert await follower.copy.replay(data, committed=follower.copy.end, origin="leader")
    with pytest.raises(HaNotAvailable, match="has no committed offset yet"):
        await follower.view(leader.ends[20])
    view = await follower.view(place)
    assert follower.states == [b"= owner"]
    assert await shown(view) == await leader.before(place)


async def test_a_log_that_is_too_long_behind_its_last_replay_is_not_shown(pair):
    leader, follower = await pair()
    await leader.go_on(40)
    await follower.fetch(leader)
    with pytest.raises(HaNotAvailable, match="too much"):
        await follower.view(leader.ends[-1], log_bytes_max=leader.ends[-1] - 1)
    await follower.view(leader.ends[-1], log_bytes_max=leader.ends[-1])


async def test_damage_in_the_log_is_said_and_not_shown(pair):
    leader, follower = await pair()
    await leader.go_on(40)
    await follower.fetch(leader)
    file = follower.disk.open("commitlog/" + "0" * 20)
    file.pwrite([b"\xff"], 1_000)
    file.close()
    with pytest.raises(StoreCorrupted):
        await follower.view(leader.ends[-1])


async def as_of_a_store(open_store, disk):
    """What a store that opens the folder has: ranges, and the messages of each queue."""
    opened = await open_store(disk)
    result = {}
    for queue_id in (*range(QUEUES), 5):
        low, high = opened.store.queue_range(1, queue_id)
        messages = await opened.store.read_at(1, queue_id, range(low, high))
        result[queue_id] = (low, high, [one.head for one in messages])
    await opened.store.close()
    return result


async def as_of_a_view(view):
    result = {}
    for queue_id in (*range(QUEUES), 5):
        low, high = view.queue_range(1, queue_id)
        read = await view.read(1, queue_id, low, count_max=1_000, bytes_max=1 << 20, tag_hashes=None)
        result[queue_id] = (low, high, [one.head for one in read.messages])
    return result


@pytest.mark.parametrize("lost", [None, "checkpoint", "consumequeue"])
async def test_a_folder_that_led_is_shown_as_a_store_would_open_it(open_store, pair, lost):
    """Its checkpoint is ahead of its snapshot, or is no use any more; state is reported from the snapshot on, once."""
    leader, _ = await pair()
    await leader.go_on(40)
    await leader.store.append([Append(1, 5, 7, 5, b"five", b"")])
    await leader.snapshot(b"owner")
    known = len(leader.states)
    await leader.go_on(40)
    end = leader.ends[-1]
    await leader.store.close()
    if lost:
        leader.disk.remove(lost)
        if lost == "checkpoint":
            leader.disk.remove("consumequeue")
    copy = await LogCopy.open(
        None, StoreOptions(), clock=SystemClock(), disk=leader.disk, broker_name="broker-a", segment_bytes=SEGMENT
    )
    follower = Follower(copy, leader.disk)
    folder = sorted(leader.disk.list("consumequeue/1"))
    view = await follower.view(end)
    assert follower.states == [b"= owner", *leader.states[known:]]
    found = await as_of_a_view(view)
    in_memory = sum(len(queue.tail) for queue in view._queues.values()) // 20
    assert (in_memory == 0) is (lost is None), "what files have is not kept"
    assert sorted(leader.disk.list("consumequeue/1")) == folder, "a view writes nothing"
    view.close()
    await copy.close()
    assert found == await as_of_a_store(open_store, leader.disk)
    assert found[5][2] == [b"five"]


@pytest.mark.parametrize("lost", [None, "consumequeue"])
async def test_a_log_whose_begin_went_is_shown_as_a_store_would_open_it(open_store, pair, lost):
    """Queues whose messages are all gone keep their numbers, and go on behind them."""
    leader, follower = await pair()
    for number in range(3):
        await leader.store.append([Append(1, 5, 7, 5, b"gone %d" % number, b"")])
    await leader.go_on(100)
    data, _ = await leader.snapshot(b"owner")
    await leader.go_on(5)
    await follower.fetch(leader)
    assert await follower.copy.replay(data, committed=follower.copy.end, origin="leader")
    before = await follower.view(leader.ends[-1])
    assert await follower.copy.trim(2 * SEGMENT)
    assert not before.is_current
    before.close()
    if lost:
        follower.disk.remove(lost)
    view = await follower.view(leader.ends[-1])
    assert view.queue_range(1, 5) == (3, 3)
    await leader.store.append([Append(1, 5, 7, 5, b"new", b"")])
    leader.ends.append(leader.store.stats.log_end)
    await follower.fetch(leader)
    await view.advance(leader.ends[-1])
    found = await as_of_a_view(view)
    view.close()
    again = await follower.view(leader.ends[-1])
    assert await as_of_a_view(again) == found
    again.close()
    await follower.copy.close()
    assert found == await as_of_a_store(open_store, follower.disk)
    assert found[5] == (3, 4, [b"new"])
    assert found[0][0] > 0
