"""What is cut off a log although it may have been committed is counted, and kept aside as far as there is room."""

from __future__ import annotations

import pytest

from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.copies import lost_tail
from evenq.store.copies.copy_opening import can_derive
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import Usage
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import MESSAGE, STATE, pack
from evenq.store.opening import checkpoint
from evenq.store.opening.checkpoint import Checkpoint

SEGMENT = 4096


class Roomy(MemoryDisk):
    """With as much room as a volume has."""

    free = 100 << 30

    def usage(self) -> Usage:
        return Usage(self.free * 2, self.free)


def filled(*kinds: int) -> tuple[Roomy, list[int]]:
    """A log of records of these kinds in one file, and where each ends."""
    disk, ends, data = Roomy(), [], b""
    for kind in kinds:
        data += pack(
            kind=kind, flags=0, epoch=1, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(data), synced_offset=0,
            store_ms=1, born_ms=1, tag_hash=0, head=b"x" * 50, system=b"",
        )  # fmt: skip
        ends.append(len(data))
    file = disk.open("commitlog/" + "0" * 20, create=True)
    file.pwrite([data], 0)
    file.close()
    return disk, ends


def kept(disk: MemoryDisk, name: str) -> bytes:
    file = disk.open(f"lost/{name}")
    data = file.pread(1 << 20, 0)
    file.close()
    return data


def test_what_goes_is_counted_and_kept_as_it_was() -> None:
    disk, ends = filled(MESSAGE, MESSAGE, STATE, MESSAGE)
    lost = lost_tail.keep(disk, LogPieces(disk, SEGMENT), ends[0], ends[-1])
    assert (lost.messages, lost.kept_bytes) == (2, ends[-1] - ends[0])
    assert lost.where.startswith("It is kept in ")
    log = disk.open("commitlog/" + "0" * 20)
    assert kept(disk, f"{ends[0]:020d}") == log.pread(1 << 20, ends[0])


def test_it_is_bounded_by_a_size_and_by_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, ends = filled(MESSAGE, MESSAGE, MESSAGE)
    monkeypatch.setattr(lost_tail, "BYTES_MAX", ends[1] + 1)
    lost = lost_tail.keep(disk, LogPieces(disk, SEGMENT), 0, ends[-1])
    assert (lost.messages, lost.kept_bytes) == (3, ends[1]), "whole records"
    assert f"The first {ends[1]} bytes of it are kept" in lost.where
    disk.free = lost_tail.ROOM_BYTES
    lost = lost_tail.keep(disk, LogPieces(disk, SEGMENT), 0, ends[-1])
    assert (lost.messages, lost.kept_bytes) == (3, 0)
    assert "too full" in lost.where
    assert disk.list("lost") == []


def test_the_newest_files_stay() -> None:
    disk, ends = filled(*[MESSAGE] * 7)
    for end in ends[:-1]:
        lost_tail.keep(disk, LogPieces(disk, SEGMENT), end, ends[-1])
    assert disk.list("lost") == [f"{end:020d}" for end in ends[2:-1]]
    assert len(disk.list("lost")) == lost_tail.FILES_MAX


def test_a_disk_that_cannot_keep_it_hinders_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, ends = filled(MESSAGE, MESSAGE)

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "make_folder", full)
    lost = lost_tail.keep(disk, LogPieces(disk, SEGMENT), ends[0], ends[-1])
    assert (lost.messages, lost.kept_bytes, lost.where) == (1, 0, "Nothing of it is kept.")


async def test_a_copy_keeps_its_end_aside_and_goes_on() -> None:
    leader, ends = filled(STATE, MESSAGE, MESSAGE)
    disk = Roomy()
    copy = await LogCopy.open(
        None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="b", segment_bytes=SEGMENT
    )
    await copy.append(LogPieces(leader, SEGMENT).read(0, ends[-1], 1 << 20), start=0)
    lost = await copy.keep_lost(ends[0])
    assert (lost.messages, lost.kept_bytes) == (2, ends[-1] - ends[0])
    assert await copy.can_cut(ends[0])
    await copy.truncate(ends[0])
    assert copy.end == ends[0]
    await copy.close()


def test_a_log_may_be_cut_where_a_store_could_go_on() -> None:
    """It begins at 0, nothing is derived of what goes, or an older snapshot says what was before."""
    disk = Roomy()
    assert can_derive(disk, 4096, 5000)
    checkpoint.save(disk, Checkpoint(6000, True, 0, {}, 4096))
    assert can_derive(disk, 4096, 6000)
    assert not can_derive(disk, 4096, 5999)
    assert can_derive(disk, 0, 1), "all of the log is read again"
    snapshot.save(disk, snapshot.Snapshot(5000, b"", log_start=4096))
    assert can_derive(disk, 4096, 5000)
    assert not can_derive(disk, 4096, 4999)
