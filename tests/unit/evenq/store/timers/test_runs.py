"""Run files come back whole or are refused with file and byte."""

from __future__ import annotations

import pytest

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.timers import runs
from evenq.store.timers.keys import key_of
from evenq.store.timers.runs import HEADER, RunWriter, crc32c, holds, read, verify

KEYS = [key_of(10 + n // 3, 1_000 + n, 1) for n in range(1_300)]


@pytest.fixture
def disk():
    disk = MemoryDisk()
    writer = RunWriter(disk, 7)
    writer.add(KEYS[:700])
    writer.add([])
    writer.add(KEYS[700:])
    writer.finish()
    return disk


def test_a_run_is_read_back_block_by_block(disk):
    run = verify(disk, 7, count=1_300)
    assert (run.count, run.lowest_id, len(run.firsts)) == (1_300, 1_000, 3)
    assert read(disk, run, 0, 512) == KEYS[:512]
    assert read(disk, run, 512, 4_096) == KEYS[512:]
    assert [key for piece in runs.entries(disk, run) for key in piece] == KEYS


def test_one_entry_is_found_without_reading_the_rest(disk):
    run = verify(disk, 7)
    assert all(holds(disk, run, key) for key in KEYS[::97])
    assert not holds(disk, run, key_of(10, 5, 1))
    assert not holds(disk, run, key_of(9, 1_000, 1))
    assert not holds(disk, run, key_of(9_999, 1_000, 1))


def test_an_entry_that_is_used_up_is_not_found(disk):
    run = verify(disk, 7)
    for used in (1, 511, 512, 513, 1_299):
        assert not holds(disk, run, KEYS[used - 1], used=used)
        assert holds(disk, run, KEYS[used], used=used)


def test_any_changed_missing_or_extra_byte_is_seen_and_named(disk):
    data = disk.files[runs.path_of(7)].data
    whole = bytes(data)
    for place in [*range(28), *range(28, len(whole), 611), len(whole) - 1]:
        data[place] ^= 0x41
        with pytest.raises(StoreError, match="00000000000000000007"):
            verify(disk, 7)
        data[place] ^= 0x41
    for size in (0, 5, 28, 100, len(whole) - 1):
        data[:] = whole[:size]
        with pytest.raises(StoreCorrupted, match="timers/00000000000000000007"):
            verify(disk, 7)
    data[:] = whole + b"x"
    with pytest.raises(StoreCorrupted, match="entries in"):
        verify(disk, 7)
    with pytest.raises(StoreCorrupted, match="is missing"):
        verify(disk, 8)


def test_a_run_that_is_not_the_one_of_the_manifest_is_refused(disk):
    with pytest.raises(StoreCorrupted, match="1300 entries where 1299 entries"):
        verify(disk, 7, count=1_299)


def test_an_unknown_version_is_refused_by_name(disk):
    rest = HEADER.pack(runs.MAGIC, 0, 9, 1_300, 1_000)[8:]
    disk.files[runs.path_of(7)].data[:28] = HEADER.pack(runs.MAGIC, crc32c(rest), 9, 1_300, 1_000)
    with pytest.raises(StoreError, match="format version 9; this program reads version 1"):
        verify(disk, 7)
