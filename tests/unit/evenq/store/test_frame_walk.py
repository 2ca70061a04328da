"""Every single bit of a log is looked at, and every fault is distinguished."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.store.frame_walk import Fault, FrameWalk
from evenq.store.record import HEADER_BYTES, MAGIC, PREFIX, REST, VERSION, pack, pack_padding

SEGMENT = 512


def _log(sizes, *, epoch=1):
    """Groups of one record, two in every third, with padding and zeros where they must be."""
    data, boundaries = bytearray(), [0]
    for number, size in enumerate(sizes):
        rest = SEGMENT - len(data) % SEGMENT
        if HEADER_BYTES + size > rest:
            data += pack_padding(len(data), rest, epoch=epoch, synced_offset=0, store_ms=7).ljust(rest, b"\0")
            boundaries += [] if number and (number - 1) % 3 == 1 else [len(data)]
        data += pack(
            kind=2, flags=number % 3 == 1, epoch=epoch, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(data),
            synced_offset=0, store_ms=8, born_ms=8, tag_hash=0, head=bytes(size), system=b"",
        )  # fmt: skip
        boundaries += [] if number % 3 == 1 else [len(data)]
    return bytes(data), boundaries


SIZES = st.lists(st.integers(0, SEGMENT - HEADER_BYTES), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 1 << 30))
def test_a_whole_log_is_taken_in_any_pieces_and_its_end_is_a_boundary(sizes, seed):
    data, boundaries = _log(sizes)
    rng, walk = random.Random(seed), FrameWalk(0, segment_bytes=SEGMENT)
    while walk.position < len(data):
        piece = rng.randint(1, len(data))
        fault = walk.take(memoryview(data)[walk.position : walk.position + piece], walk.position)
        if fault is not None:
            assert fault is Fault.CUT
            assert walk.lacks > 0
            fault = walk.take(memoryview(data)[walk.position : walk.position + walk.lacks], walk.position)
            assert fault in {None, Fault.CUT}, walk.reason
        assert walk.boundary == max(boundary for boundary in boundaries if boundary <= walk.position)
    assert walk.epochs == [(1, 0)]
    assert walk.last_store_ms in {7, 8}


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 1 << 30))
def test_a_flipped_bit_is_never_taken(sizes, seed):
    data, _ = _log(sizes)
    place = random.Random(seed).randrange(8 * len(data))
    flipped = bytearray(data)
    flipped[place // 8] ^= 1 << place % 8
    walk = FrameWalk(0, segment_bytes=SEGMENT, epoch=1)
    assert walk.take(memoryview(flipped), 0) is not None
    assert walk.position <= place // 8
    assert walk.reason


def test_the_rest_of_a_file_that_no_header_fits_in_is_zeros():
    data, boundaries = _log([SEGMENT - HEADER_BYTES - 40, 3])
    assert SEGMENT - 40 in boundaries
    assert SEGMENT in boundaries
    walk = FrameWalk(0, segment_bytes=SEGMENT)
    assert walk.take(memoryview(data), 0) is None
    for place in range(SEGMENT - 40, SEGMENT):
        flipped = bytearray(data)
        flipped[place] = 1
        walk = FrameWalk(0, segment_bytes=SEGMENT)
        assert walk.take(memoryview(flipped), 0) is Fault.BROKEN
        assert (walk.boundary, walk.reason) == (
            SEGMENT - 40,
            "the rest of a file, too short for a record, is not zeros",
        )


def _framed(*, version=VERSION, kind=2, epoch=1, head=10, claimed=10):
    """A frame whose checksum fits, whatever it says."""
    rest = REST.pack(version, kind, 0, epoch, 0, 0, 0, 0, 0, 0, 0, 0, claimed, 0)
    body = rest + bytes(head)
    return PREFIX.pack(12 + len(body), MAGIC, crc32c(body)) + body


@pytest.mark.parametrize(
    ("frame", "fault", "reason"),
    [
        (_framed(version=9), Fault.FOREIGN, "the record has format version 9; this program knows version 1"),
        (_framed(kind=9), Fault.FOREIGN, "the record is of kind 9, which this program does not know"),
        (_framed(epoch=0), Fault.DISORDER, "the record has epoch 0 behind epoch 0: epochs never fall"),
        (_framed(claimed=9), Fault.BROKEN, "the record's lengths do not add up to its size"),
        (_framed(kind=3), Fault.BROKEN, f"a padding of {HEADER_BYTES + 10} bytes where {SEGMENT} are left in the file"),
        (_framed(head=SEGMENT, claimed=SEGMENT), Fault.BROKEN, "there is no record of this place"),
        (_framed()[:50], Fault.CUT, "the bytes end in the middle of a record"),
    ],
    ids=["version", "kind", "no epoch", "lengths", "padding", "too long", "cut"],
)
def test_each_fault_has_its_reason(frame, fault, reason):
    walk = FrameWalk(0, segment_bytes=SEGMENT)
    assert walk.take(memoryview(frame), 0) is fault
    assert walk.reason == reason
    assert walk.position == walk.boundary == 0


def test_where_a_file_may_end_a_paddings_header_is_enough():
    data, _ = _log([200, 300])
    paddings = [
        at for at in range(len(data)) if data[at : at + 88] == data[at : at + 4] + data[4:8] + data[at + 8 : at + 88]
    ]
    cut = memoryview(data)[: 288 + HEADER_BYTES]
    assert paddings
    strict, lenient = (FrameWalk(0, segment_bytes=SEGMENT, short_padding=short) for short in (False, True))
    assert (strict.take(cut, 0), strict.boundary) == (Fault.CUT, 288)
    assert (lenient.take(cut, 0), lenient.boundary) == (None, SEGMENT)
