"""A start takes the timers from the snapshot's manifest, or from the whole log when that cannot be."""

from __future__ import annotations

import errno

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreError
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import TIMER, TIMER_END, TimerFields, frame_at, pack, pack_timer_ids
from evenq.store.timers import manifest, runs
from evenq.store.timers.loading import TimerLoader
from evenq.store.timers.pending import PendingTimers


def frame(kind, log_offset, *, due_ms=0, head=b""):
    fields = TimerFields(due_ms, 0, 1)
    packed = pack(
        kind=kind, flags=fields.flags, epoch=1, topic_id=1, queue_id=0, queue_offset=fields.queue_offset_field,
        log_offset=log_offset, synced_offset=0, store_ms=0, born_ms=0, tag_hash=fields.tag_hash_field, head=head,
        system=b"",
    )  # fmt: skip
    return frame_at(packed, 0, log_offset)


def small():
    return PendingTimers(table_max=10, ahead=512, runs_max=2)


def load(disk, section, log_offset=0, log_start=0):
    return TimerLoader(disk, section=section, log_offset=log_offset, log_start=log_start, pending=small())


def saved(disk):
    loader = load(disk, None)
    for number in range(45):
        loader.apply(frame(TIMER, number, due_ms=100 + number))
    loader.apply(frame(TIMER_END, 45, head=pack_timer_ids([3, 44])))
    return manifest.pack(loader.pending.freeze())


def test_a_manifest_and_the_log_behind_it_are_all_pending_timers():
    disk = MemoryDisk()
    loader = load(disk, saved(disk), 46)
    assert loader.start == 46
    loader.apply(frame(TIMER, 45, due_ms=1))  # before the snapshot: not again
    loader.apply(frame(TIMER, 46, due_ms=1))
    loader.apply(frame(TIMER_END, 47, head=pack_timer_ids([4])))
    assert len(loader.pending) == 43
    assert loader.pending.memory_count < 45 + 2, "a full table was written while the log was read"


def test_a_copied_snapshot_names_no_timers_so_they_come_from_the_log_and_nothing_is_damaged(caplog):
    disk = MemoryDisk()
    there = runs.numbers(disk) if saved(disk) else []
    loader = load(disk, manifest.TIMERS_UNKNOWN, 46, 40)
    assert (loader.start, loader.unneeded) == (40, set(there))
    loader.apply(frame(TIMER, 45, due_ms=1))
    assert loader.pending.lowest_id() == 45
    assert caplog.messages == []


@pytest.mark.parametrize("damage", ["section", "run", "missing"])
def test_damage_means_reading_the_whole_log(damage, caplog):
    disk = MemoryDisk()
    section = saved(disk)
    name = next(iter(disk.files))
    if damage == "section":
        section = section[:-1]
    elif damage == "run":
        disk.files[name].data[40] ^= 1
    else:
        disk.remove(name)
    loader = load(disk, section, 46, log_start=5)
    assert loader.start == 5
    assert len(loader.pending) == 0
    assert "rebuilding the timers from the log: " in caplog.text
    loader.apply(frame(TIMER, 5, due_ms=9))
    loader.apply(frame(TIMER_END, 6, head=pack_timer_ids([2])))  # what it ended went with the log before it
    assert len(loader.pending) == 1
    assert loader.unneeded == set(runs.numbers(disk))


def test_a_manifest_of_another_version_is_refused():
    disk = MemoryDisk()
    section = bytearray(saved(disk))
    section[11] = 9
    section[4:8] = manifest.crc32c(bytes(section[8:])).to_bytes(4, "big")
    with pytest.raises(StoreError, match="version 9"):
        load(disk, bytes(section), 46)


def test_a_full_disk_keeps_all_in_memory():
    disk = FaultDisk()
    disk.faults_of["write"] = errno.ENOSPC
    loader = load(disk, None)
    for number in range(45):
        loader.apply(frame(TIMER, number, due_ms=100 + number))
    assert len(loader.pending) == 45
    assert len(loader.pending.due(1_000, 100)) == 45
