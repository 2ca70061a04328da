"""The two newest snapshots are kept, and the newest good one counts."""

import pytest
from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.disk import read_whole, write_whole
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.snapshot import Snapshot


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
    monkeypatch.setattr(snapshot, "VERSION", 3)
    disk = saved(90)
    monkeypatch.setattr(snapshot, "VERSION", 2)
    with pytest.raises(StoreError, match="has format version 3"):
        snapshot.load(disk, log_start=0)


def test_all_three_sections_come_back():
    disk = MemoryDisk()
    whole = Snapshot(90, b"owner", {(1, 0): (5, 9), (7, 3): (2, 2)}, b"timers", log_start=64, last_store_ms=123)
    snapshot.save(disk, whole)
    assert snapshot.load(disk, log_start=64) == whole


def test_any_flipped_or_missing_byte_of_the_only_one_is_seen():
    disk = MemoryDisk()
    snapshot.save(disk, Snapshot(90, b"owner", {(1, 0): (5, 9)}, b"timers"))
    path = f"snapshot/{90:020d}"
    data = read_whole(disk, path)
    for place in range(len(data)):
        write_whole(disk, path, data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :])
        assert snapshot.load(disk, log_start=0) is None, place
        write_whole(disk, path, data[:place])
        assert snapshot.load(disk, log_start=0) is None, place


def test_version_1_is_still_read():
    disk = MemoryDisk()
    body = (1).to_bytes(4, "big") + (90).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"owner"
    disk.open(f"snapshot/{90:020d}", create=True).pwrite(
        [snapshot.MAGIC.to_bytes(4, "big"), crc32c(body).to_bytes(4, "big"), body], 0
    )
    assert snapshot.load(disk, log_start=0) == Snapshot(90, b"owner")


def test_one_from_before_the_logs_beginning_is_of_no_use():
    disk = saved(90, 1_000)
    damage(disk, 1_000)
    with pytest.raises(StoreCorrupted, match="the log before offset 100 is gone"):
        snapshot.load(disk, log_start=100)
    snapshot.drop_before(disk, 1_000)
    assert disk.list(snapshot.FOLDER) == [f"{1_000:020d}"]
