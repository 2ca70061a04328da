"""Names of commit-log files, and which one holds an offset (CL-2, CL-4)."""

import pytest

from evenq.errors import StoreCorrupted
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import segment

SIZE = 4_096


def disk_with(*names):
    disk = MemoryDisk()
    for name in names:
        disk.open(f"{segment.FOLDER}/{name}", create=True)
    return disk


@pytest.mark.parametrize(
    ("offset", "place"), [(0, (0, 0)), (4_095, (0, 4_095)), (4_096, (4_096, 0)), (9_000, (8_192, 808))]
)
def test_an_offset_is_in_the_file_that_begins_before_it(offset, place):
    assert segment.segment_of(offset, SIZE) == place


def test_a_file_is_named_for_its_first_byte_in_20_digits():
    assert segment.path_of(1 << 30) == "commitlog/00000000001073741824"
    assert segment.starts(disk_with(f"{4_096:020d}", f"{8_192:020d}"), SIZE) == [4_096, 8_192]
    assert segment.starts(MemoryDisk(), SIZE) == []


@pytest.mark.parametrize("name", ["5", "notes.txt", f"{5:020d}", f"{0:021d}"])
def test_a_foreign_file_is_named(name):
    with pytest.raises(StoreCorrupted, match=f"{name} is not a commit-log file"):
        segment.starts(disk_with(name), SIZE)


def test_a_missing_file_is_named():
    with pytest.raises(StoreCorrupted, match=f"{4_096:020d} is missing in the middle"):
        segment.starts(disk_with(f"{0:020d}", f"{8_192:020d}"), SIZE)
