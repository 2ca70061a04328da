"""The two newest snapshots are kept, and the newest good one counts."""

import pytest

from evenq.errors import StoreCorrupted, StoreError
from evenq.store import snapshot
from evenq.store.disk import read_whole, write_whole
from evenq.store.memory_disk import MemoryDisk
from evenq.store.snapshot import Snapshot


def saved(*log_offsets):
    disk = MemoryDisk()
    for log_offset in log_offsets:
        snapshot.save(disk, Snapshot(log_offset, f"state {log_offset}".encode()))
    return disk


def damage(disk, name, place=-1):
    path = f"{snapshot.FOLDER}/{name:020d}"
    data = bytearray(read_whole(disk, path))
    data[place] ^= 1
    write_whole(disk, path, bytes(data))


def test_the_newest_counts_and_two_are_kept():
    disk = saved(5, 90, 1_000)
    assert disk.list(snapshot.FOLDER) == [f"{90:020d}", f"{1_000:020d}"]
    assert snapshot.load(disk, log_start=0) == Snapshot(1_000, b"state 1000")
    assert snapshot.load(MemoryDisk(), log_start=0) is None


@pytest.mark.parametrize("place", [0, 4, 8, 12, 20, -1])
def test_a_damaged_one_is_passed_over_for_the_one_before(place):
    disk = saved(90, 1_000)
    damage(disk, 1_000, place)
    assert snapshot.load(disk, log_start=0) == Snapshot(90, b"state 90")


def test_without_a_good_one_the_log_must_reach_back_to_its_beginning():
    disk = saved(90, 1_000)
    damage(disk, 90)
    damage(disk, 1_000)
    assert snapshot.load(disk, log_start=0) is None
    with pytest.raises(StoreCorrupted, match="the log before offset 4096 is gone"):
        snapshot.load(disk, log_start=4_096)


def test_a_format_of_the_future_is_refused(monkeypatch):
    monkeypatch.setattr(snapshot, "VERSION", 2)
    disk = saved(90)
    monkeypatch.setattr(snapshot, "VERSION", 1)
    with pytest.raises(StoreError, match="has format version 2"):
        snapshot.load(disk, log_start=0)
