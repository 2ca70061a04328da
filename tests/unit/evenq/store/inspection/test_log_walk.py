"""The walk gives whole records in pieces of bounded size, and goes on behind what is none."""

import random

from evenq.store.inspection.log_walk import PIECE_BYTES, Hole, LogWalk, Piece
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import segment
from evenq.store.log.record import pack

SEGMENT = 1 << 26


def log_of(*sizes):
    """A log of state records of these payload sizes, and where they begin."""
    disk, data, offsets = MemoryDisk(), bytearray(), []
    for size in sizes:
        offsets.append(len(data))
        data += pack(
            kind=2, flags=0, epoch=1, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(data), synced_offset=0,
            store_ms=1, born_ms=0, tag_hash=0, head=random.Random(size).randbytes(size), system=b"",
        )  # fmt: skip
    disk.open(segment.path_of(0), create=True).pwrite([bytes(data)], 0)
    return disk, offsets


def steps_of(disk, **options):
    return list(LogWalk(disk, SEGMENT, [0], **options).steps())


def places(steps):
    return [header[10] for step in steps if isinstance(step, Piece) for header in step.headers]


def test_records_larger_than_a_piece_come_whole():
    disk, offsets = log_of(10, PIECE_BYTES + 500, 20, 3 * PIECE_BYTES, 5)
    steps = steps_of(disk)
    assert places(steps) == offsets
    big = next(step for step in steps if step.headers[0][10] == offsets[3])
    head, system = big.payloads(big.headers[0])
    assert (head, system) == (random.Random(3 * PIECE_BYTES).randbytes(3 * PIECE_BYTES), b"")


def test_a_walk_may_begin_and_end_at_a_record():
    disk, offsets = log_of(*range(100, 200))
    assert places(steps_of(disk, begin=offsets[10], end=offsets[20])) == offsets[10:20]


def test_behind_a_hole_the_next_record_is_found_wherever_it_is():
    disk, offsets = log_of(100, 200, 3 << 20, 300, 400)
    data = disk.files[segment.path_of(0)].data
    data[offsets[1] : offsets[2] + 50] = bytes(offsets[2] + 50 - offsets[1])  # not even a length is left
    steps = steps_of(disk)
    assert places(steps) == [offsets[0], offsets[3], offsets[4]]
    (hole,) = [step for step in steps if isinstance(step, Hole)]
    assert (hole.start, hole.end, hole.last) == (offsets[1], offsets[3], False)


def test_a_length_that_claims_too_much_is_a_hole_and_is_never_read():
    disk, offsets = log_of(100, 200, 300)
    data = disk.files[segment.path_of(0)].data
    data[offsets[1] : offsets[1] + 4] = (1 << 31).to_bytes(4, "big")
    assert places(steps_of(disk)) == [offsets[0], offsets[2]]


def test_a_record_that_quotes_another_one_is_one_record():
    disk, _ = log_of(100)
    quoted = bytes(disk.files[segment.path_of(0)].data)
    disk.files.clear()
    frames = bytearray()
    for head in (quoted, quoted * 3):
        frames += pack(
            kind=2, flags=0, epoch=1, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(frames), synced_offset=0,
            store_ms=1, born_ms=0, tag_hash=0, head=head, system=b"",
        )  # fmt: skip
    second = len(frames) - len(quoted) * 3 - 88
    frames[20] ^= 1  # the first is damaged; the quotation in it has the wrong place and is no record
    disk.open(segment.path_of(0), create=True).pwrite([bytes(frames)], 0)
    assert places(steps_of(disk)) == [second]


def test_random_damage_never_stops_the_walk():
    rng = random.Random(7)
    disk, offsets = log_of(*(rng.randrange(400) for _ in range(200)))
    data = disk.files[segment.path_of(0)].data
    good = bytes(data)
    for _ in range(100):
        data[:] = good
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        steps = steps_of(disk)
        assert set(places(steps)) <= set(offsets)
        ends = [(step.start, step.end) for step in steps if isinstance(step, Hole)]
        assert all(start < end for start, end in ends)
