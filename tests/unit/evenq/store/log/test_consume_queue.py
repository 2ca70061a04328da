"""Entries in memory and in files (CL-7 to CL-12)."""

import errno
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import consume_queue
from evenq.store.log.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    FILE_ENTRIES,
    ConsumeQueue,
    check_files,
    file_at,
    spans,
    write_files,
)


def grown(count, *, start=0):
    queue = ConsumeQueue(1, 2, start, start)
    for offset in range(start, start + count):
        queue.tail += ENTRY.pack(offset * 100, 100, 7)
    queue.next_offset = queue.max_offset = start + count
    return queue


def test_a_file_holds_300_000_entries_of_20_bytes_and_is_named_for_its_first_byte():
    assert (ENTRY_BYTES, FILE_ENTRIES) == (20, 300_000)  # CL-8, CL-9
    assert file_at(0) == ("0" * 20, 0)
    assert file_at(299_999) == ("0" * 20, 299_999 * 20)
    assert file_at(300_001) == (f"{6_000_000:020d}", 20)


def test_a_range_is_cut_at_the_ends_of_files():
    assert list(spans(299_998, 600_001)) == [(299_998, 300_000), (300_000, 600_000), (600_000, 600_001)]
    assert list(spans(5, 5)) == []


def test_what_was_filed_is_whole_and_leaves_memory_but_for_a_few():
    queue, disk = grown(1_000), MemoryDisk()
    filing = queue.filing()
    write_files(disk, filing)
    queue.filed_up_to(filing.end)
    assert queue.filing() is None
    assert queue.tail_base == 1_000 - consume_queue.TAIL_KEPT
    assert queue.entries(999, 1_000) == ENTRY.pack(99_900, 100, 7)
    assert check_files(disk, 1, 2, 0, 1_000)


def test_files_across_a_boundary_are_written_and_checked_whole():
    disk = MemoryDisk()
    queue = grown(20, start=299_990)
    write_files(disk, queue.filing())
    assert len(disk.list("consumequeue/1/2")) == 2
    assert check_files(disk, 1, 2, 299_990, 300_010)


@pytest.mark.parametrize("kind", ["write", "sync", "sync_folder"])
def test_a_file_that_was_made_for_entries_that_failed_is_in_its_folder_for_certain_at_the_next_try(kind):
    """The entries begin within it, as those of a queue whose start was deleted."""
    disk, filing = FaultDisk(), grown(20, start=100).filing()
    disk.faults_of[kind] = errno.ENOSPC
    with pytest.raises(OSError):
        write_files(disk, filing)
    disk.faults_of.clear()
    write_files(disk, filing)
    assert check_files(disk.crash(Keep.NONE, random.Random(0)), 1, 2, 100, 120)


def test_a_shortened_or_missing_file_is_seen_and_what_is_behind_the_end_cut():
    disk = MemoryDisk()
    write_files(disk, grown(100).filing())
    assert not check_files(disk, 1, 2, 0, 101)
    assert check_files(disk, 1, 2, 0, 60)
    file = disk.open("consumequeue/1/2/" + "0" * 20)
    assert file.size() == 60 * ENTRY_BYTES
    file.truncate(60 * ENTRY_BYTES - 1)
    assert not check_files(disk, 1, 2, 0, 60)
    assert not check_files(disk, 1, 3, 0, 1)


def test_places_that_were_never_written_are_taken_back(message):
    queue = grown(10)
    queue.hot_base = 8
    queue.hot += [message(), message(), message()]
    queue.tail += ENTRY.pack(5_000, 100, 7)
    queue.next_offset = 11
    queue.take_back(10)
    assert (queue.next_offset, queue.max_offset, len(queue.tail)) == (10, 10, 10 * ENTRY_BYTES)
    assert len(queue.hot) == 2


@pytest.mark.parametrize("count", [1, 33, 200])
def test_dropped_messages_leave_the_others_in_their_places(message, count):
    queue = ConsumeQueue(1, 0)
    for number in range(count + 5):
        queue.hot.append(message(head=bytes(number)))
    for number in range(0, count, 3):
        queue.drop_before(number)
    queue.drop_before(count)
    assert queue.hot_start == count
    left = [one.head for one in queue.hot[queue.hot_start - queue.hot_base :]]
    assert left == [bytes(number) for number in range(count, count + 5)]
