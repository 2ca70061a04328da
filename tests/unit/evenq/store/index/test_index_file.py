"""An index file gives back every entry newest first, shows any damage, and refuses what it does not know."""

from __future__ import annotations

from array import array
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.errors import StoreError
from evenq.store.index import index_file
from evenq.store.index.index_file import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Damaged,
    IndexFile,
    key_hash,
    load_all,
    lookup,
    pack_page,
)
from evenq.store.io.memory_disk import MemoryDisk


def write(disk, entries, block_start=0):
    """A file of (hash, log offset) pairs."""
    entries = sorted(entries)
    pages = [
        pack_page(
            block_start, array("Q", [number for pair in entries[first : first + PAGE_ENTRIES] for number in pair])
        )
        for first in range(0, len(entries), PAGE_ENTRIES)
    ]
    header = IndexFile(len(entries), block_start, block_start, block_start + 1000, 5, 9)
    index_file.write(disk, header, pages)
    return header


def find(disk, header, wanted):
    return list(lookup(disk.open(header.path), header, wanted))


_EVEN = st.integers(0, (1 << 64) - 1)
_CLUMPS = st.sampled_from([0, 1, 7, 1 << 63, (1 << 64) - 2, (1 << 64) - 1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(_EVEN, _CLUMPS, _CLUMPS), max_size=40), st.integers(1, 60), st.lists(_EVEN, max_size=5)
)  # fmt: skip
def test_a_lookup_finds_all_entries_of_a_hash_and_no_others_newest_first(hashes, repeats, others):
    disk = MemoryDisk()
    entries = [(number, place) for place, number in enumerate(hashes * repeats)]
    header = write(disk, entries)
    expected = defaultdict(list)
    for number, place in reversed(entries):
        expected[number].append(place)
    for number in [*hashes, *others, 0, (1 << 64) - 1]:
        assert find(disk, header, number) == expected[number]


def test_a_lookup_among_many_keys_takes_about_one_read():
    disk = MemoryDisk()
    keys = [b"order-%07d" % number for number in range(50_000)]
    header = write(disk, [(key_hash(3, key), place) for place, key in enumerate(keys)])
    file = disk.open(header.path)
    reads = []
    plain = file.pread

    class Counting:
        def pread(self, size, offset):
            reads.append(size)
            return plain(size, offset)

    for number in range(0, 50_000, 500):
        assert number in list(lookup(Counting(), header, key_hash(3, keys[number])))
    assert len(reads) <= 110
    assert max(reads) <= 3 * PAGE_BYTES


def test_keys_of_two_topics_and_keys_alike_have_different_hashes():
    numbers = {key_hash(topic_id, b"%08d" % number) for topic_id in range(1, 5) for number in range(10_000)}
    assert len(numbers) == 40_000
    assert key_hash(1, b"order-1") == 0x46C4745B25E2A4A4  # for ever: files hold it


def test_a_flipped_byte_in_a_page_is_seen():
    disk = MemoryDisk()
    header = write(disk, [(number << 50, number) for number in range(300)])
    for place in (PAGE_BYTES, PAGE_BYTES + 5, PAGE_BYTES + 700, 2 * PAGE_BYTES - 1):
        data = disk.files[header.path].data
        data[place] ^= 1
        with pytest.raises(Damaged):
            find(disk, header, 1 << 50)
        data[place] ^= 1
    assert find(disk, header, 1 << 50) == [1]


def test_files_with_a_bad_header_a_wrong_size_or_a_foreign_name_are_removed():
    disk = MemoryDisk()
    headers = [write(disk, [(1, 1)], block_start) for block_start in (1000, 2000, 3000, 4000, 5000)]
    disk.files[headers[1].path].data[20] ^= 1
    disk.files[headers[2].path].truncate(PAGE_BYTES)
    disk.rename(headers[3].path, "index/00000000000000009000")
    disk.open("index/00000000000000006000.new", create=True)
    assert load_all(disk, log_start=0, log_end=1 << 30) == [headers[0], headers[4]]
    assert disk.list("index") == ["00000000000000001000", "00000000000000005000"]


def test_files_before_the_log_or_behind_its_end_are_removed():
    disk = MemoryDisk()
    headers = [write(disk, [(1, 1)], block_start) for block_start in (0, 1000, 2000)]
    assert load_all(disk, log_start=1000, log_end=2999) == [headers[1]]
    assert disk.list("index") == ["00000000000000001000"]


def test_a_version_of_a_newer_program_is_refused(monkeypatch):
    disk = MemoryDisk()
    with monkeypatch.context() as patched:
        patched.setattr(index_file, "VERSION", 2)
        write(disk, [(1, 1)])
    with pytest.raises(StoreError, match="format version 2; this program reads version 1"):
        load_all(disk, log_start=0, log_end=1 << 30)
    assert disk.list("index")
