"""Records for readers that take them apart: the right frames, whole, and not a byte of anybody else's."""

import asyncio
import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenq.errors import StoreCorrupted
from evenq.store import Append, Kept
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import HEADER_BYTES, frame_at

WHOLE = Kept(head=True, system=True)
SECRET = b"another queue's body"


def frames_of(block):
    """The frames of a block, cut by its sizes."""
    data, at, found = b"".join(block.frames), 0, []
    for size in block.sizes:
        found.append(data[at : at + size])
        at += size
    assert at == len(data)
    assert len(found) == block.next_offset - block.first_offset
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 200, 200, 200, 9_000, 40_000]), min_size=1, max_size=40),
    others=st.integers(0, 3), count=st.integers(1, 60), start=st.integers(0, 39), space=st.sampled_from([1, 3_000, 1 << 20]),
    head=st.booleans(), system=st.booleans(), check=st.booleans(), every=st.integers(1, 12),
)  # fmt: skip
def test_a_block_holds_the_wanted_parts_of_the_queues_messages_and_nothing_else(
    open_store, sizes, others, count, start, space, head, system, check, every
):
    async def story():
        opened = await open_store(MemoryDisk(), segment_bytes=1 << 18)
        for number, size in enumerate(sizes):
            between = [Append(2, 0, 0, 0, SECRET * 100, b"") for _ in range(0 if number % every else others)]
            await opened.store.append([Append(1, 0, 0, 5, bytes([number]) * size, b"system %d" % number), *between])
        first = min(start, len(sizes) - 1)
        wanted = {"count_max": count, "bytes_max": space}
        block = await opened.store.read_block(1, 0, first, **wanted, kept=Kept(head=head, system=system, check=check))
        read = await opened.store.read(1, 0, first, **wanted)
        assert (block.first_offset, block.next_offset, block.max_offset) == (first, read.next_offset, len(sizes))
        assert block.checked or not check
        for frame, message in zip(frames_of(block), read.messages, strict=True):
            parts = (message.head if head else b"") + (message.system if system else b"")
            assert frame[HEADER_BYTES:] == parts
            assert int.from_bytes(frame[32:40], "big") == message.queue_offset
            assert int.from_bytes(frame[56:64], "big") == message.store_ms
            if head and system:
                assert frame_at(frame, 0, message.log_offset).head == message.head
        assert SECRET not in b"".join(block.frames)
        await opened.store.close()

    asyncio.run(story())


async def test_an_end_a_lost_beginning_and_an_unknown_queue_give_empty_or_later_blocks(open_store, message):
    opened = await open_store(MemoryDisk())
    await opened.store.append([message() for _ in range(4)])
    opened.store._queues[1, 0].min_offset = 2
    for queue_id, start, found in ((0, 4, (4, 4)), (0, 0, (2, 4)), (9, 0, (0, 0))):
        block = await opened.store.read_block(1, queue_id, start, count_max=9, bytes_max=1 << 20, kept=WHOLE)
        assert (block.first_offset, block.next_offset) == found
    await opened.store.close()


async def test_a_short_block_in_the_page_cache_needs_no_thread(open_store, tmp_path, monkeypatch):
    opened = await open_store(tmp_path, segment_bytes=1 << 20)
    await opened.store.append([Append(1, 0, 0, 0, b"%d" % number * 100, b"") for number in range(300)])
    hops = []
    run = opened.store._reads.jobs.run
    monkeypatch.setattr(opened.store._reads.jobs, "run", lambda job: hops.append(job) or run(job))
    for low in (0, 100, 200):
        block = await opened.store.read_block(1, 0, low, count_max=100, bytes_max=1 << 20, kept=WHOLE)
        assert len(frames_of(block)) == 100
    assert len(hops) in {1, 3}  # the first one opens the file; 3 where the file system cannot say what it has
    await opened.store.close()


@pytest.mark.parametrize("kept", [WHOLE, Kept(head=False, system=False)])
async def test_a_damaged_record_is_an_error_that_names_it_even_if_its_body_is_not_wanted(open_store, tmp_path, kept):
    opened = await open_store(tmp_path, segment_bytes=1 << 20)
    await opened.store.append([Append(1, 0, 0, 0, b"%d" % number * 100, b"") for number in range(10)])
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"7" * 100)] ^= 1
    log.write_bytes(data)
    with pytest.raises(StoreCorrupted, match="holds no message 7 of queue 0"):
        await opened.store.read_block(1, 0, 0, count_max=10, bytes_max=1 << 20, kept=kept)
    assert opened.store.stats.damaged_reads == 1
    block = await opened.store.read_block(1, 0, 0, count_max=7, bytes_max=1 << 20, kept=kept)
    assert block.next_offset == 7
    await opened.store.close()


@pytest.mark.parametrize("at", [0, 20, 99])
async def test_without_a_check_the_ends_of_a_run_are_checked_and_the_rest_is_told_as_unchecked(
    open_store, tmp_path, at
):
    opened = await open_store(tmp_path, segment_bytes=1 << 20)
    await opened.store.append([Append(1, 0, 0, 0, b"<%d>" % number * 100, b"") for number in range(100)])
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"<%d>" % at * 100) + 9] ^= 1
    log.write_bytes(data)
    read = opened.store.read_block(1, 0, 0, count_max=100, bytes_max=1 << 20, kept=Kept(True, True, check=False))
    if at in {0, 99}:
        with pytest.raises(StoreCorrupted, match=f"holds no message {at} of queue 0"):
            await read
    else:
        block = await read
        assert not block.checked
        assert len(frames_of(block)) == 100
    await opened.store.close()


async def test_entries_of_another_queue_are_refused_also_without_a_check(open_store):
    opened = await open_store(MemoryDisk())
    await opened.store.append([Append(1, 0, 0, 0, b"x" * 100, b"") for _ in range(50)])
    await opened.store.append([Append(2, 0, 0, 0, SECRET, b"") for _ in range(50)])
    own, other = opened.store._queues[1, 0], opened.store._queues[2, 0]
    own.tail[:] = other.tail
    with pytest.raises(StoreCorrupted, match="holds no message 0 of queue 0"):
        await opened.store.read_block(1, 0, 0, count_max=50, bytes_max=1 << 20, kept=Kept(True, True, check=False))
    await opened.store.close()


async def test_a_block_keeps_its_frames_until_it_is_given_back_and_then_its_memory_is_used_again(open_store, tmp_path):
    opened = await open_store(tmp_path, segment_bytes=1 << 24)
    await opened.store.append([Append(1, 0, 0, 0, b"%04d" % number * 500, b"") for number in range(400)])
    rooms = opened.store._reads._reader._rooms
    kept = Kept(head=True, system=True, check=False)

    async def block(start):
        return await opened.store.read_block(1, 0, start, count_max=200, bytes_max=1 << 20, kept=kept)

    first = await block(0)
    frames = frames_of(first)
    assert not rooms
    second = await block(200)
    assert frames_of(first) == frames, "the second block was read over the first one"
    assert frames_of(second)[0][HEADER_BYTES:].startswith(b"0200")
    first.give_back()
    assert len(rooms) == 1
    assert not first.frames
    room = rooms[0]
    third = await block(100)
    assert not rooms
    assert third.frames[0].obj is room
    assert frames_of(third)[0][HEADER_BYTES:].startswith(b"0100")
    third.give_back()
    third.give_back()
    second.give_back()
    assert len(rooms) == 2, "a room that is there twice is read over"
    await opened.store.close()


async def test_a_block_that_cannot_be_read_gives_its_memory_back(open_store, tmp_path):
    opened = await open_store(tmp_path, segment_bytes=1 << 24)
    await opened.store.append([Append(1, 0, 0, 0, b"<%03d>" % number * 400, b"") for number in range(200)])
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"<000>") + 9] ^= 1
    log.write_bytes(data)
    kept = Kept(head=True, system=True, check=False)
    for _ in range(3):  # each of them on the loop, and then on the pool
        with pytest.raises(StoreCorrupted, match="holds no message 0 of queue 0"):
            await opened.store.read_block(1, 0, 0, count_max=200, bytes_max=1 << 20, kept=kept)
    rooms = opened.store._reads._reader._rooms
    known = set(map(id, rooms))
    assert known
    await opened.store.append([Append(2, 0, 0, 0, bytes(200_000), b"")])

    async def serves_again() -> bool:
        await asyncio.sleep(0.01)  # the thread of the last read holds its error until it has a turn
        gc.collect()  # what the errors' tracebacks look at
        block = await opened.store.read_block(2, 0, 0, count_max=1, bytes_max=1 << 20, kept=kept)
        return {id(piece.obj) for piece in block.frames} <= known

    async with asyncio.timeout(60):
        while not await serves_again():
            pass
    await opened.store.close()


async def test_frames_that_are_still_looked_at_stay_and_their_memory_serves_again_afterwards(open_store):
    opened = await open_store(MemoryDisk(), segment_bytes=1 << 24)
    bodies = [bytes([number]) * 50_000 for number in range(12)]
    await opened.store.append([Append(1, 0, 0, 5, body, b"") for body in bodies])
    kept = Kept(True, True, check=False)
    rooms, sent = set(), []
    for _ in range(3):  # as they leave, slowly
        for first in (0, 4, 8):
            block = await opened.store.read_block(1, 0, first, count_max=4, bytes_max=1 << 20, kept=kept)
            pieces = block.pieces()
            assert isinstance(pieces[0], memoryview)
            rooms.add(id(pieces[0].obj))
            block.give_back()
            sent.append((first, pieces))
        for first, pieces in sent:
            data = b"".join(pieces)
            assert all(data.count(body) == 1 for body in bodies[first : first + 4])
        sent.clear()
        del pieces
    assert len(rooms) == 3
    await opened.store.close()


async def test_small_frames_are_put_together_and_large_ones_are_not(open_store):
    opened = await open_store(MemoryDisk(), segment_bytes=1 << 24)
    await opened.store.append([Append(1, 0, 0, 5, bytes(200_000), b"") for _ in range(3)])
    for kept, pieces in ((Kept(False, False), 1), (Kept(True, True), 1), (Kept(True, True, check=False), 1)):
        block = await opened.store.read_block(1, 0, 0, count_max=3, bytes_max=1 << 20, kept=kept)
        assert len(block.pieces()) == pieces
        assert b"".join(block.pieces()) == b"".join(block.frames)
        assert isinstance(block.pieces()[0], memoryview) == kept.whole
    await opened.store.close()
