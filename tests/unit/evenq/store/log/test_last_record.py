"""The last record below a place of a log is found backwards, by one small read, or none is named."""

from __future__ import annotations

from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import last_record
from evenq.store.log.last_record import LOOK_BYTES_MAX, crc_of_record_at, record_before
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, STATE, pack, pack_padding
from evenq.store.log.segment import path_of

SEGMENT = 4 << 20


def frame(at: int, head: bytes) -> bytes:
    return pack(
        kind=STATE, flags=0, epoch=3, topic_id=0, queue_id=0, queue_offset=0, log_offset=at, synced_offset=0,
        store_ms=1, born_ms=1, tag_hash=0, head=head, system=b"",
    )  # fmt: skip


def written(data: bytes, segment_bytes: int = SEGMENT) -> MemoryDisk:
    """A log of these bytes; its last file is longer, as one is whose space was set aside."""
    disk = MemoryDisk(1 << 30)
    disk.make_folder("commitlog")
    for start in range(0, len(data), segment_bytes):
        piece = data[start : start + segment_bytes]
        disk.open(path_of(start), create=True).pwrite([piece + bytes(segment_bytes - len(piece))], 0)
    return disk


def log_of(*heads: bytes) -> tuple[bytes, list[int]]:
    """A log of records with these contents, and where each ends."""
    data, ends = b"", []
    for head in heads:
        data += frame(len(data), head)
        ends.append(len(data))
    return data, ends


def crc_of(data: bytes, start: int) -> int:
    return int.from_bytes(data[start + 8 : start + 12], "big")


def test_the_record_that_ends_at_a_place_is_named_by_its_begin_and_checksum() -> None:
    data, ends = log_of(b"one", b"", bytes(3_000), bytes(50_000), bytes(900_000), b"last")
    disk = written(data)
    for start, end in zip([0, *ends], ends, strict=False):
        assert record_before(disk, SEGMENT, end) == (start, crc_of(data, start))


def test_another_byte_of_the_last_record_is_another_checksum() -> None:
    one, ends = log_of(b"same", b"first disk")
    other, _ = log_of(b"same", b"other disk")
    assert len(one) == len(other)
    mine, theirs = (record_before(written(data), SEGMENT, ends[1]) for data in (one, other))
    assert mine is not None
    assert theirs is not None
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    assert record_before(written(one), SEGMENT, ends[0]) == record_before(written(other), SEGMENT, ends[0])


def test_no_record_is_named_within_one_or_where_the_log_begins_or_is_not() -> None:
    data, ends = log_of(bytes(300), bytes(300))
    disk = written(data)
    for place in (
        0,
        1,
        ends[0] - 1,
        ends[0] + 1,
        ends[0] + HEADER_BYTES,
        ends[1] + 1,
        SEGMENT,
        SEGMENT + 1,
        9 * SEGMENT,
    ):
        assert record_before(disk, SEGMENT, place) is None


def test_damage_is_no_other_record() -> None:
    """It is repaired from another copy, and must not look like another history."""
    data, ends = log_of(b"before", b"y" * 500)
    for place in (*range(ends[0], ends[0] + 12), ends[0] + HEADER_BYTES + 7, ends[1] - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        assert record_before(written(bytes(damaged)), SEGMENT, ends[1]) is None


def test_a_record_over_the_limit_is_not_named() -> None:
    data, ends = log_of(b"before", bytes(LOOK_BYTES_MAX - HEADER_BYTES), bytes(LOOK_BYTES_MAX - HEADER_BYTES + 1))
    disk = written(data)
    assert record_before(disk, SEGMENT, ends[1]) == (ends[0], crc_of(data, ends[0]))
    assert record_before(disk, SEGMENT, ends[2]) is None


def test_contents_that_look_like_a_record_are_none() -> None:
    """Only one of this very place whose checksum fits counts; a client cannot choose both."""
    inner = frame(0, b"of another place")
    data, ends = log_of(b"before", MAGIC_BYTES * 100, inner, inner + MAGIC_BYTES)
    disk = written(data)
    for start, end in zip([0, *ends], ends, strict=False):
        assert record_before(disk, SEGMENT, end) == (start, crc_of(data, start))


def test_the_end_of_a_file_is_a_padding_or_zeros_behind_the_last_record() -> None:
    small = 4_096
    for rest in (HEADER_BYTES + 500, HEADER_BYTES, HEADER_BYTES - 1, 1):
        data = frame(0, bytes(small - rest - HEADER_BYTES))
        start = len(data) if rest >= HEADER_BYTES else 0
        data += pack_padding(len(data), rest, epoch=3, synced_offset=0, store_ms=1)
        data += bytes(small - len(data))
        assert record_before(written(data, small), small, small) == (start, crc_of(data, start))


def test_a_record_of_a_later_version_and_a_disk_that_cannot_be_read_name_none(monkeypatch) -> None:
    data, ends = log_of(b"one")
    disk = written(data)
    monkeypatch.setattr(last_record, "frame_at", lambda *_: (_ for _ in ()).throw(last_record.StoreError("version 2")))
    assert record_before(disk, SEGMENT, ends[0]) is None
    monkeypatch.undo()

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "open", broken)
    assert record_before(disk, SEGMENT, ends[0]) is None


def test_the_record_that_begins_at_a_place_has_a_checksum_or_none() -> None:
    data, ends = log_of(b"one", b"", bytes(3_000), bytes(900_000), bytes(LOOK_BYTES_MAX), b"last")
    starts = [0, *ends[:-1]]
    disk = written(data)
    for start in [*starts[:4], starts[5]]:
        assert crc_of_record_at(disk, SEGMENT, start) == crc_of(data, start)
    assert crc_of_record_at(disk, SEGMENT, starts[4]) is None, "over the limit"
    for place in (1, ends[0] - 1, ends[-1], SEGMENT, 7 * SEGMENT):
        assert crc_of_record_at(disk, SEGMENT, place) is None
    flipped = bytearray(data)
    flipped[ends[2] - 1] ^= 1
    assert crc_of_record_at(written(bytes(flipped)), SEGMENT, starts[2]) is None
    assert crc_of_record_at(written(bytes(flipped)), SEGMENT, starts[3]) == crc_of(data, starts[3])
