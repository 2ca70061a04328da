"""Where a read is answered from, and what it says of queues and files that are not there."""

from __future__ import annotations

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.log import consume_queue
from evenq.store.log.consume_queue import ENTRY_BYTES, TAIL_KEPT
from evenq.store.log.segment import path_of
from evenq.store.queues import queue_reads
from evenq.store.queues.queue_reads import EntryCheck

COUNT = 400
QUEUE = f"consumequeue/1/0/{0:020d}"


class NoDamage:
    """The log is whole: nobody needs to be asked."""

    version = 0

    async def repair(self, error: StoreCorrupted, seen: int) -> bool:
        return False


async def filled(open_store, message, disk: FaultDisk):
    """Two queues whose messages take turns; entries but the newest ones are in files only."""
    opened = await open_store(disk, cache_bytes=0)
    for number in range(COUNT):
        await opened.store.append([message(b"%d" % number), message(b"other", queue_id=1)])
    await opened.store.checkpoint()
    assert len(disk.files[QUEUE].data) == COUNT * ENTRY_BYTES
    return opened


def check(disk: FaultDisk, start: int, stop: int, *, high: int = COUNT) -> EntryCheck:
    return EntryCheck(
        disk=disk, segment_bytes=4_096, topic_id=1, queue_id=0, start=start, stop=stop, low=0, high=high
    )  # fmt: skip


async def test_each_byte_of_an_entry_is_seen_to_be_wrong_and_made_again(open_store, message):
    disk = FaultDisk()
    opened = await filled(open_store, message, disk)
    right = bytes(disk.files[QUEUE].data)
    for entry in (0, 1, 57, COUNT - 1):
        for place in range(entry * ENTRY_BYTES, (entry + 1) * ENTRY_BYTES):
            disk.files[QUEUE].data[place] ^= 1 << place % 8
            [filing] = check(disk, 0, COUNT).wrong()
            assert (filing.start, filing.end) == (entry, entry + 1)
            consume_queue.write_files(disk, filing)
            assert bytes(disk.files[QUEUE].data) == right
    assert check(disk, 0, COUNT).wrong() == []
    await opened.store.close()


async def test_runs_of_entries_and_a_file_that_ends_early_are_made_again(open_store, message):
    disk = FaultDisk()
    opened = await filled(open_store, message, disk)
    right = bytes(disk.files[QUEUE].data)
    for start, end in ((3, 90), (0, 5), (COUNT - 7, COUNT), (0, COUNT)):
        disk.files[QUEUE].data[start * ENTRY_BYTES : end * ENTRY_BYTES] = bytes((end - start) * ENTRY_BYTES)
        [filing] = check(disk, 0, COUNT).wrong()
        assert (filing.start, filing.end) == (start, end)
        consume_queue.write_files(disk, filing)
        assert bytes(disk.files[QUEUE].data) == right
    disk.files[QUEUE].truncate(60 * ENTRY_BYTES + 3)
    for filing in check(disk, 0, COUNT).wrong():
        consume_queue.write_files(disk, filing)
    assert bytes(disk.files[QUEUE].data) == right
    disk.remove(QUEUE)
    for filing in check(disk, 0, COUNT).wrong():
        consume_queue.write_files(disk, filing)
    assert bytes(disk.files[QUEUE].data) == right
    await opened.store.close()


async def test_what_the_log_does_not_tell_is_refused(open_store, message, monkeypatch):
    disk = FaultDisk()
    opened = await filled(open_store, message, disk)
    disk.files[QUEUE].data[5 * ENTRY_BYTES] ^= 1
    assert check(disk, 0, COUNT).log_files()[0] == 0
    monkeypatch.setattr(queue_reads, "SPAN_MAX", 10)
    with pytest.raises(StoreError, match="message 5 was not found up to log offset"):
        check(disk, 0, COUNT).wrong()
    monkeypatch.undo()
    disk.files[path_of(0)].data[200:4_096] = bytes(3_896)
    with pytest.raises(StoreError, match="no record begins at"):
        check(disk, 0, COUNT).wrong()
    await opened.store.close()


async def test_a_reader_of_a_store_with_copies_gets_its_messages_though_their_entries_were_damaged(open_store, message):
    disk = FaultDisk()
    opened = await filled(open_store, message, disk)
    right = bytes(disk.files[QUEUE].data)
    store = opened.store
    disk.files[QUEUE].data[57 * ENTRY_BYTES + 3] ^= 8
    with pytest.raises(StoreCorrupted):
        await store.read(1, 0, 50, count_max=20, bytes_max=1 << 20)
    assert store.stats.damaged_reads == 1
    store.repair_by(NoDamage())
    found = await store.read(1, 0, 50, count_max=20, bytes_max=1 << 20)
    assert [one.head for one in found.messages] == [b"%d" % number for number in range(50, 70)]
    assert bytes(disk.files[QUEUE].data) == bytes(disk.files[QUEUE].synced) == right
    assert store.stats.damaged_reads == 1
    for place in (0, 7, 9, COUNT - TAIL_KEPT - 1):
        disk.files[QUEUE].data[place * ENTRY_BYTES + 7] ^= 64
        assert [one.head for one in await store.read_at(1, 0, [place])] == [b"%d" % place]
        assert bytes(disk.files[QUEUE].data) == right
    disk.files[QUEUE].data[: 20 * ENTRY_BYTES] = b"\xff" * (20 * ENTRY_BYTES)
    assert len(await opened.contents()) == COUNT
    assert bytes(disk.files[QUEUE].data) == right
    await store.close()


async def test_a_queue_that_never_was_is_empty(open_store):
    opened = await open_store(FaultDisk())
    store = opened.store
    found = await store.read(1, 5, 7, count_max=9, bytes_max=99)
    assert (found.messages, found.next_offset, found.min_offset, found.max_offset) == ([], 7, 0, 0)
    assert await store.read_at(1, 5, [0, 1]) == []
    assert await store.offset_at(1, 5, 1_000) == 0
    await store.close()


async def test_only_reads_past_the_memory_count_as_cold(open_store, message):
    for cache_bytes, cold in ((1 << 20, 0), (0, 3)):
        opened = await open_store(FaultDisk(), cache_bytes=cache_bytes)
        store = opened.store
        await store.append([message(b"%d" % number) for number in range(5)])
        assert len((await store.read(1, 0, 0, count_max=9, bytes_max=99)).messages) == 5
        assert [one.head for one in await store.read_at(1, 0, [3, 9, 1])] == [b"3", b"1"]
        at = (await store.read_at(1, 0, [2]))[0].store_ms
        assert store.stats.cold_reads == cold
        assert await store.offset_at(1, 0, at + 1) == 5
        await store.close()


async def test_a_file_that_is_gone_without_reason_is_named(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, cache_bytes=0)
    await opened.store.append([message()])
    lost = disk.files.pop(f"commitlog/{0:020d}")
    with pytest.raises(StoreCorrupted, match=f"commitlog/{0:020d} cannot be read"):
        await opened.store.read(1, 0, 0, count_max=1, bytes_max=99)
    disk.files[f"commitlog/{0:020d}"] = lost
    assert len(await opened.contents()) == 1
    await opened.store.close()
