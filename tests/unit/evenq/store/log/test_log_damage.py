"""Damage in a log file is found wherever it is, and only bytes that fit there are taken in its place."""

from __future__ import annotations

import errno
from bisect import bisect_right

import pytest
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk
from evenq_proofs.made_log import MadeLog, made_log, put_log

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.memory_disk import MemoryFile
from evenq.store.log.log_damage import (
    DamagedPart,
    LogScan,
    check_records,
    count_records,
    fault_of,
    read_readable,
    read_whole_records,
    rewrite,
)
from evenq.store.log.record import HEADER_BYTES, MESSAGE, STATE, pack, pack_padding
from evenq.store.log.segment import path_of

LOG = made_log()
SEGMENT = LOG.segment_bytes


def folder(log: MadeLog = LOG) -> FaultDisk:
    disk = FaultDisk()
    put_log(disk, log)
    return disk


def parts_of(disk: FaultDisk, start: int, end: int = LOG.end) -> list[DamagedPart]:
    scan, parts = LogScan(disk, SEGMENT, start, end), []
    while not scan.done:
        part = scan.step()
        if part is not None:
            parts.append(part)
            scan.pass_over(part)
    return parts


def flip(disk: FaultDisk, place: int, bit: int = 0) -> None:
    start = place - place % SEGMENT
    disk.files[path_of(start)].data[place - start] ^= 1 << bit


def record_at(place: int) -> tuple[int, int]:
    """Begin and end of what is missing if that byte is damaged: its record, and the rest of the file if no header fits
    in there any more; that rest alone.
    """
    index = bisect_right(LOG.starts, place) - 1
    begin = LOG.starts[index]
    size = int.from_bytes(LOG.data[begin : begin + 4], "big")
    following = [*LOG.starts, LOG.end][index + 1]
    end = following if -(begin + size) % SEGMENT < HEADER_BYTES else begin + size
    return (begin, end) if place < begin + size else (begin + size, following)


def test_each_byte_of_each_file_is_of_a_part_once_it_is_damaged_and_the_part_is_one_record() -> None:
    disk = folder()
    assert all(parts_of(disk, start) == [] for start in LOG.files())
    for place in range(LOG.end):
        flip(disk, place, place % 8)
        [part] = parts_of(disk, place)
        assert (part.start, part.end) == record_at(place), place
        assert part.reason
        flip(disk, place, place % 8)


def test_a_part_reaches_over_neighbours_that_are_damaged_too_and_other_places_are_parts_of_their_own() -> None:
    disk, starts = folder(), [start for start in LOG.starts if start < SEGMENT]
    for start in (starts[2], starts[3], starts[5]):
        flip(disk, start + 50)
    first, second = parts_of(disk, 0)
    assert (first.start, first.end) == (starts[2], starts[4])
    assert (second.start, second.end) == (starts[5], starts[6])


def test_a_file_that_is_too_short_or_that_the_disk_cannot_read_in_a_place_is_damaged_there(monkeypatch) -> None:
    disk = folder()
    disk.files[path_of(SEGMENT)].truncate(SEGMENT - 700)
    [part] = parts_of(disk, SEGMENT)
    assert part.start <= 2 * SEGMENT - 700 < part.end == 2 * SEGMENT
    disk, read = folder(), MemoryFile.pread

    def unreadable(file: MemoryFile, size: int, offset: int) -> bytes:
        if file is disk.files[path_of(0)] and offset <= 300 < offset + size:
            raise OSError(errno.EIO, "a sector is gone")
        return read(file, size, offset)

    monkeypatch.setattr(MemoryFile, "pread", unreadable)
    [part] = parts_of(disk, 0)
    assert part.start <= 300 < part.end


def test_a_sector_that_is_lost_within_zeros_is_damage_although_zeros_would_be_right_there() -> None:
    """A body of zeros fits its checksum, and a padding is zeros: only the disk says that they cannot be read."""
    disk, size = FaultDisk(), 8 * BLOCK_BYTES
    first = pack(
        kind=MESSAGE, flags=0, epoch=1, topic_id=1, queue_id=0, queue_offset=0, log_offset=0, synced_offset=0, store_ms=1,
        born_ms=1, tag_hash=0, head=bytes(3 * BLOCK_BYTES), system=b"",
    )  # fmt: skip
    padding = pack_padding(len(first), size - len(first), epoch=1, synced_offset=0, store_ms=1)
    file = disk.open(path_of(0), create=True)
    file.pwrite([first, padding.ljust(size - len(first), b"\0")], 0)
    scan = LogScan(disk, size, 0, size)
    while not scan.done:
        assert scan.step() is None
    for lost, start, end in ((1, 0, len(first)), (6, len(first), size)):
        file.lose(lost * BLOCK_BYTES)
        scan, parts = LogScan(disk, size, 0, size), []
        while not scan.done:
            part = scan.step()
            if part is not None:
                parts.append((part.start, part.end))
                scan.pass_over(part)
        assert parts == [(start, end)]
        rewrite(disk, size, start, (first + padding.ljust(size - len(first), b"\0"))[start:end])
        assert not file.lost


def test_records_that_begin_or_end_within_a_lost_block_are_not_written() -> None:
    """The system would have to read the rest of it, the write would fail, and a write that fails stops the store."""
    disk = FaultDisk()
    file = disk.open(path_of(0), create=True)
    file.pwrite([b"-" * (4 * BLOCK_BYTES)], 0)
    file.lose(BLOCK_BYTES)
    for start, end in ((BLOCK_BYTES + 1, 3 * BLOCK_BYTES), (0, 2 * BLOCK_BYTES - 1)):
        with pytest.raises(StoreError, match=r"from .*at byte 4096 .* on cannot be read, so no part of them"):
            rewrite(disk, 4 * BLOCK_BYTES, start, b"x" * (end - start))
    assert bytes(file.data) == b"-" * (4 * BLOCK_BYTES)
    for start, end in ((BLOCK_BYTES, 2 * BLOCK_BYTES), (BLOCK_BYTES - 1, 2 * BLOCK_BYTES + 1), (7, 4 * BLOCK_BYTES)):
        file.lose(BLOCK_BYTES)
        rewrite(disk, 4 * BLOCK_BYTES, start, b"x" * (end - start))
        assert file.pread(end - start, start) == b"x" * (end - start)


def test_what_lies_before_a_lost_sector_is_read_and_it_is_tried_twice_at_most(monkeypatch) -> None:
    disk, data = FaultDisk(), bytes(range(256)) * 96
    file = disk.open("f", create=True)
    file.pwrite([data], 0)
    assert read_readable(file, len(data) + 9, 0) == (data, None)
    for block in range(2, 6):
        file.lose(block * BLOCK_BYTES)
    failed = 0
    read = FaultDisk.fail

    def counted(disk: FaultDisk, number: int) -> None:
        nonlocal failed
        failed += 1
        read(disk, number)

    monkeypatch.setattr(FaultDisk, "fail", counted)
    for start in (0, 5, BLOCK_BYTES, 2 * BLOCK_BYTES - 1, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1):
        failed = 0
        readable, error = read_readable(file, len(data) - start, start)
        assert readable == data[start : max(start, 2 * BLOCK_BYTES)]
        assert error is not None
        assert error.errno == errno.EIO
        assert failed == 2


def test_nothing_at_or_behind_the_end_is_looked_at() -> None:
    disk, end = folder(), LOG.starts[5]
    for place in range(end, SEGMENT):
        flip(disk, place)
    assert parts_of(disk, 0, end) == []
    assert LogScan(disk, SEGMENT, SEGMENT, end).done


def test_whole_records_of_another_order_are_no_damage_of_a_disk() -> None:
    disk = folder()
    odd = pack(
        kind=9, flags=0, epoch=1, topic_id=0, queue_id=0, queue_offset=0, log_offset=0, synced_offset=0, store_ms=1,
        born_ms=1, tag_hash=0, head=b"", system=b"",
    )  # fmt: skip
    disk.files[path_of(0)].data[: len(odd)] = odd
    with pytest.raises(StoreError, match=r"commitlog/0+ at byte 0 .* kind 9"):
        LogScan(disk, SEGMENT, 0, LOG.end).step()


# -- what comes from another copy -------------------------------------------------------------------------------------


def epoch_at(log_offset: int) -> int:
    return max((epoch for epoch, start in LOG.epochs if start <= log_offset), default=0)


def fault(data: bytes, part: DamagedPart, *, known: bool = True) -> str:
    return fault_of(
        data, part, segment_bytes=SEGMENT, epoch_at=epoch_at if known else lambda _: 0,
        epochs=LOG.epochs if known else (),
    )  # fmt: skip


def part_of(start: int, end: int, *, before: int = 0, after: int = 0) -> DamagedPart:
    return DamagedPart(start=start, end=end, reason="", epoch_before=before, epoch_after=after)


def record(log_offset: int, epoch: int, size: int, kind: int = MESSAGE) -> bytes:
    return pack(
        kind=kind, flags=0, epoch=epoch, topic_id=1, queue_id=0, queue_offset=1, log_offset=log_offset,
        synced_offset=0, store_ms=1, born_ms=1, tag_hash=5, head=bytes(size - HEADER_BYTES), system=b"",
    )  # fmt: skip


def test_the_right_bytes_fit_every_part_of_every_file() -> None:
    edges = [*LOG.starts, *range(SEGMENT, LOG.end, SEGMENT), LOG.end]
    for start in LOG.files():
        inside = sorted({edge for edge in edges if start <= edge <= start + SEGMENT})
        for index, first in enumerate(inside):
            for last in inside[index + 1 :]:
                assert fault(LOG.data[first:last], part_of(first, last)) == ""


def test_no_other_bytes_fit() -> None:
    first, second, third = LOG.starts[1:4]
    part, right = part_of(first, third), LOG.data[first:third]
    assert fault(LOG.data[first:second], part) == "", "the first records of a part"
    assert "in the middle of a record" in fault(right[:-1], part)
    assert "bytes came where" in fault(right + b"\0", part)
    assert "bytes came where" in fault(b"", part)
    for place in range(len(right)):
        wrong = bytearray(right)
        wrong[place] ^= 0x10
        assert "at log offset" in fault(bytes(wrong), part)
    assert "there is no record of this place" in fault(LOG.data[: third - first], part)
    assert "at log offset" in fault(record(first, 1, third - first - 100) + bytes(100), part)


def test_records_of_another_epoch_do_not_fit_even_if_all_else_does() -> None:
    epoch, began = LOG.epochs[1]
    size = LOG.starts[LOG.starts.index(began) + 1] - began
    part = part_of(began, began + size)
    assert "epoch 1 where epoch 2 wrote" in fault(record(began, epoch - 1, size), part)
    assert "epoch 3 where epoch 2 wrote" in fault(record(began, epoch + 1, size, STATE), part)
    assert fault(record(began, epoch, size, STATE), part) == ""
    # What the table has forgotten, the neighbours tell.
    assert "behind a record of epoch 4" in fault(record(0, 3, 200), part_of(0, 200, before=4), known=False)
    assert "before a record of epoch 2" in fault(record(0, 3, 200), part_of(0, 200, after=2), known=False)
    # An epoch that begins inside must be there.
    before = LOG.starts[LOG.starts.index(began) - 1]
    whole = part_of(before, began + size)
    assert fault(LOG.data[before : began + size], whole) == ""
    assert "epoch 2, which begins at" in fault(record(before, 1, whole.size), whole)


def test_records_are_counted_and_given_only_if_they_are_whole() -> None:
    disk, starts = folder(), LOG.starts
    assert count_records(LOG.data[: starts[4]], 0, segment_bytes=SEGMENT) == 4
    assert count_records(bytes(9), SEGMENT - 9, segment_bytes=SEGMENT) == 1
    assert read_whole_records(disk, SEGMENT, starts[1], starts[3]) == LOG.data[starts[1] : starts[3]]
    with pytest.raises(StoreCorrupted, match="no record of this place"):
        read_whole_records(disk, SEGMENT, starts[1] + 1, starts[3])
    assert read_whole_records(disk, SEGMENT, starts[1], starts[3] - 1) == LOG.data[starts[1] : starts[2]]
    flip(disk, starts[2] + 90)
    assert read_whole_records(disk, SEGMENT, starts[1], starts[3]) == LOG.data[starts[1] : starts[2]]
    with pytest.raises(StoreCorrupted, match="checksum") as caught:
        read_whole_records(disk, SEGMENT, starts[2], starts[3])
    assert caught.value.log_offset == starts[2]
    with pytest.raises(FileNotFoundError):
        read_whole_records(disk, SEGMENT, 100 * SEGMENT, 100 * SEGMENT + 100)
    check_records(LOG.data[: starts[4]], 0, segment_bytes=SEGMENT)
    with pytest.raises(StoreCorrupted):
        check_records(LOG.data[: starts[4] - 1], 0, segment_bytes=SEGMENT)


def test_what_is_written_lies_in_place_and_is_synced() -> None:
    disk, starts = folder(), LOG.starts
    flip(disk, starts[2] + 7)
    rewrite(disk, SEGMENT, starts[2], LOG.data[starts[2] : starts[3]])
    file = disk.files[path_of(0)]
    assert bytes(file.data) == bytes(file.synced) == LOG.data[:SEGMENT]
    with pytest.raises(FileNotFoundError):
        rewrite(disk, SEGMENT, 100 * SEGMENT, b"x")
