"""Every single bit of a log is looked at, and every fault is distinguished."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.store.log.frame_walk import AnnouncedEpochs, Fault, FrameWalk
from evenq.store.log.record import HEADER_BYTES, MAGIC, PREFIX, REST, VERSION, pack, pack_padding

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
        (_framed(version=9), Fault.FOREIGN, "the record has format version 9; this program reads version 1"),
        (_framed(kind=9), Fault.FOREIGN, "the record is of kind 9, which this program does not support"),
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


# -- the epochs that a leader announces -------------------------------------------------------------------------------


def _led(sizes):
    """A log, the table of its leaders (epoch, end of the log before it), and where its groups end. `sizes` are those of
    each epoch's records; an epoch without any began and its leader's first record did not come.
    """
    data, table, boundaries = bytearray(), [], [0]
    for epoch, records in enumerate(sizes, 1):
        table.append((epoch, len(data)))
        for size in records:
            rest = SEGMENT - len(data) % SEGMENT
            if rest < HEADER_BYTES:
                data += bytes(rest)
                boundaries.append(len(data))
            elif HEADER_BYTES + size > rest:
                data += pack_padding(len(data), rest, epoch=epoch, synced_offset=0, store_ms=7).ljust(rest, b"\0")
                boundaries.append(len(data))
            data += pack(
                kind=2, flags=0, epoch=epoch, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(data),
                synced_offset=0, store_ms=8, born_ms=8, tag_hash=0, head=bytes(size), system=b"",
            )  # fmt: skip
            boundaries.append(len(data))
    return bytes(data), table, boundaries


def _announced(table, start, end):
    """What the core of the leader says of the records [start, end)."""
    before = [epoch for epoch, offset in table if offset < start]
    return AnnouncedEpochs(before[-1] if before else 0, [one for one in table if start <= one[1] < end])


def _taken(data, table, start, end, *, last):
    walk = FrameWalk(start, segment_bytes=SEGMENT, epoch=last)
    assert walk.take(memoryview(data)[start:end], start) is None, walk.reason
    assert walk.is_whole(end), walk.reason
    return walk, walk.is_as_announced(_announced(table, start, end), last=last, start=start)


EPOCHS = st.lists(st.lists(st.integers(0, SEGMENT - HEADER_BYTES), min_size=1, max_size=5), min_size=2, max_size=6)


@settings(max_examples=150, deadline=None)
@given(sizes=EPOCHS, seed=st.integers(0, 1 << 30))
def test_pieces_of_a_leaders_log_have_the_epochs_that_it_announces(sizes, seed):
    data, table, boundaries = _led(sizes)
    rng, start, last = random.Random(seed), rng_start(seed, boundaries), 0
    while start < len(data):
        end = rng.choice([one for one in boundaries if one > start])
        walk, whole = _taken(data, table, start, end, last=last)
        assert whole, walk.reason
        last = walk.epochs[-1][0] if walk.epochs else last
        start = end


def rng_start(seed, boundaries):
    """Where a copy begins: at 0, or where a snapshot ends."""
    return random.Random(~seed).choice([0, 0, *boundaries[:-1]])


@settings(max_examples=150, deadline=None)
@given(sizes=EPOCHS, seed=st.integers(0, 1 << 30))
def test_bytes_with_other_epochs_than_the_leader_announced_are_refused(sizes, seed):
    """Of an older log, for example, whose frames are whole and at their place."""
    data, table, _ = _led(sizes)
    rng = random.Random(seed)
    which = rng.randrange(1, len(table))
    epoch, offset = table[which]
    plain = FrameWalk(0, segment_bytes=SEGMENT)
    plain.take(memoryview(data), 0)
    first = plain.epochs[which][1]
    early = first - HEADER_BYTES
    said = [(epoch, first + 1), None]  # later, or nothing
    said += [(epoch, early)] if early > table[which - 1][1] else []
    said += [(epoch + 1, offset)] if which == len(table) - 1 else []
    chosen = rng.choice(said)
    table[which : which + 1] = [] if chosen is None else [chosen]
    walk, whole = _taken(data, table, 0, len(data), last=0)
    assert not whole
    assert f"epoch {epoch}" in walk.reason or f"epoch {epoch + 1}" in walk.reason
    assert walk.position >= early


def test_records_from_before_the_leaders_table_are_taken_with_any_epochs():
    data, table, boundaries = _led([[5], [6, 7], [8], [9]])
    walk, whole = _taken(data, table[3:], 0, len(data), last=0)
    assert whole, walk.reason
    walk, whole = _taken(data, [], 0, boundaries[2], last=0)
    assert whole, walk.reason
    walk, whole = _taken(data, [(3, table[3][1])], 0, len(data), last=0)
    assert not whole
    assert walk.reason == "no record of epoch 3, which the leader has from there on"


def test_an_epoch_whose_first_record_did_not_come_has_only_the_rest_of_a_file():
    first = SEGMENT - HEADER_BYTES - 40  # 40 bytes are left in the file
    data, table, boundaries = _led([[first], [5], [6]])
    assert boundaries[2] == SEGMENT
    walk, whole = _taken(data, table, 0, SEGMENT, last=0)
    assert (whole, walk.epochs, walk.boundary) == (True, [(1, 0)], SEGMENT)
    walk, whole = _taken(data, table, SEGMENT, len(data), last=1)  # epoch 2 is announced no more, but is the one before
    assert (whole, [epoch for epoch, _ in walk.epochs]) == (True, [2, 3])
    skipped = [(1, 0), (2, SEGMENT - 40), (3, SEGMENT)]  # a copy that had only the zeros of epoch 2 was elected
    other = data[:SEGMENT] + _led([[first], [], [6]])[0][SEGMENT:]
    walk, whole = _taken(other, skipped, 0, len(other), last=0)
    assert whole, walk.reason


def test_a_group_that_goes_on_is_not_whole():
    data, _ = _log([10, 10, 10])  # the second and the third are one
    walk = FrameWalk(0, segment_bytes=SEGMENT)
    end = 2 * (HEADER_BYTES + 10)
    assert walk.take(memoryview(data)[:end], 0) is None
    assert not walk.is_whole(end)
    assert walk.reason == "its group continues after the received bytes"
