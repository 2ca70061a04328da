"""Memory as a disk of a size."""

import errno

import pytest

from evenq.store.io.memory_disk import MemoryDisk


def test_a_write_over_its_size_fails_and_changes_nothing():
    disk = MemoryDisk(10)
    file = disk.open("a", create=True)
    file.pwrite([b"12345", b"678"], 0)
    with pytest.raises(OSError, match="memory_bytes_max is reached") as caught:
        file.pwrite([b"xyz"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert (file.pread(20, 0), disk.usage().free) == (b"12345678", 2)
    file.pwrite([b"9a"], 8)
    with pytest.raises(OSError, match="memory_bytes_max is reached"):
        file.truncate(11)


def test_removing_shortening_and_replacing_give_their_bytes_back():
    disk = MemoryDisk(100)
    for name, size in (("f/a", 40), ("f/b", 30), ("g", 20)):
        disk.open(name, create=True).pwrite([bytes(size)], 0)
    assert disk.usage().free == 10
    disk.open("g").truncate(5)
    assert disk.usage().free == 25
    disk.rename("f/b", "f/a")
    assert (disk.usage().free, disk.list("f")) == (65, ["a"])
    disk.remove("f")
    disk.remove("never there")
    assert (disk.usage().free, disk.list("")) == (95, ["g"])


def test_a_hole_reads_as_zeros_and_a_missing_file_is_missing():
    disk = MemoryDisk()
    disk.open("a", create=True).pwrite([b"x"], 3)
    assert disk.open("a").pread(9, 0) == b"\0\0\0x"
    with pytest.raises(FileNotFoundError, match="b"):
        disk.open("b")


def test_it_has_one_owner():
    disk = MemoryDisk()
    disk.lock()
    with pytest.raises(BlockingIOError):
        disk.lock()
    disk.unlock()
    disk.lock()
