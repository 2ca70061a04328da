"""Several files under one logical file."""

from __future__ import annotations

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreCorrupted
from evenq.local.partitions import CreateFailed, Partitions
from evenq.store.io.files import ReadFiles


@pytest.fixture
def disk():
    return FaultDisk()


@pytest.fixture
def partitions(disk):
    found = Partitions(disk, "deep/folder", 100, ReadFiles(disk, 4))
    for place in (0, 60, 100, 200):
        found.write(place, [b"x" * 40], 40)
    return found


def test_files_are_named_by_their_first_byte_and_found_again(disk, partitions):
    again = Partitions(disk, "deep/folder", 100, ReadFiles(disk, 4))
    again.load()
    assert (again.starts, again.end) == ([0, 100, 200], 240)
    assert again.read(90, 50) == b"x" * 10
    assert again.read(300, 1) is None
    assert again.describe(160).endswith("00000000000000000100 at byte 60")


def test_truncating_removes_whole_files_and_cuts_the_last(disk, partitions):
    partitions.truncate(120)
    assert (partitions.starts, partitions.end, partitions.size_of(100)) == ([0, 100], 120, 20)
    partitions.truncate(100)
    assert (partitions.starts, partitions.end) == ([0], 100)
    partitions.truncate(0)
    assert disk.list("deep/folder") == []


def test_old_files_go_and_the_newest_never(partitions):
    partitions.remove_before(199)
    assert partitions.starts == [100, 200]
    partitions.remove_before(10_000)
    assert partitions.starts == [200]


def test_a_sync_makes_new_files_and_folders_sure(disk, partitions):
    before = disk.kinds.count("sync")
    partitions.sync(partitions.take_unsynced())
    assert disk.kinds.count("sync") - before == 3
    assert disk.kinds.count("sync_folder") == 3  # the folder, its parent and the root
    assert partitions.take_unsynced() == ([], False)


def test_a_file_that_cannot_be_made_has_an_error_of_its_own(disk, partitions):
    disk.faults_of["create"] = 28
    with pytest.raises(CreateFailed, match="No space left"):
        partitions.write(300, [b"x"], 1)


@pytest.mark.parametrize("name", ["1", "x" * 20, "00000000000000000050", "0000000000000000010²"])
def test_a_foreign_name_is_refused(disk, partitions, name):
    disk.open(f"deep/folder/{name}", create=True)
    with pytest.raises(StoreCorrupted, match="does not belong there"):
        partitions.load()


def test_a_full_file_that_was_synced_keeps_its_length_and_an_unfinished_one_may_be_short(disk, partitions):
    disk.files[partitions.path_of(100)].truncate(39)
    partitions.check_lengths(199, lambda file_end: file_end)
    partitions.check_lengths(240, lambda file_end: file_end - 61)
    with pytest.raises(StoreCorrupted, match=r"0100 has 39 bytes where a full file has 100"):
        partitions.check_lengths(240, lambda file_end: file_end - 60)


def test_a_file_over_the_fixed_size_is_refused_wherever_it_is(disk, partitions):
    disk.files[partitions.path_of(200)].truncate(101)
    with pytest.raises(StoreCorrupted, match=r"0200 has 101 bytes"):
        partitions.check_lengths(0, lambda file_end: file_end)
