"""The quick way and the general one find the same messages, and neither finds a damaged one."""

from __future__ import annotations

import pytest

from evenq.store.log.record import MESSAGE, STATE, pack
from evenq.store.queues.read_buffer import BUFFER_BYTES, ReadBuffer

SIZE = 88 + 10 + 3


def frame(number, *, kind=MESSAGE, topic_id=1, queue_id=2, head=10, system=3):
    return pack(
        kind=kind, flags=0, epoch=3, topic_id=topic_id, queue_id=queue_id, queue_offset=number,
        log_offset=number * SIZE, synced_offset=0, store_ms=-number, born_ms=number, tag_hash=-7,
        head=bytes([number]) * head, system=b"s" * system,
    )  # fmt: skip


def filled(frames):
    buffer = ReadBuffer()
    data = b"".join(frames)
    buffer.view[: len(data)] = data
    return buffer, [(number * SIZE, SIZE, -7) for number in range(len(frames))]


def equal_sizes(buffer, places):
    found = []
    return buffer.parse_equal_sizes(buffer.layout(SIZE), 1, 2, 0, places, found), found


def facts(messages):
    return [
        (one.topic_id, one.queue_id, one.queue_offset, one.log_offset, one.born_ms, one.store_ms, one.tag_hash,
         one.head, one.system)
        for one in messages
    ]  # fmt: skip


def test_both_ways_find_the_same():
    buffer, places = filled([frame(number) for number in range(9)])
    slow = []
    assert buffer.parse(buffer.view, 1, 2, range(9), places, range(0, 9 * SIZE, SIZE), slow)
    assert buffer._size == SIZE, "the next ones go the quick way"
    whole, quick = equal_sizes(buffer, places)
    assert whole
    assert facts(quick) == facts(slow)
    assert [one.head for one in quick] == [bytes([number]) * 10 for number in range(9)]


def test_other_lengths_in_frames_of_the_same_size_are_found_too():
    buffer, places = filled([frame(0), frame(1), frame(2, head=11, system=2), frame(3)])
    for _ in range(3):
        whole, found = equal_sizes(buffer, places)
        assert whole
        assert [(len(one.head), len(one.system)) for one in found] == [(10, 3), (10, 3), (11, 2), (10, 3)]


@pytest.mark.parametrize(
    "wrong", [frame(2, topic_id=9), frame(2, queue_id=9), frame(3), frame(2, kind=STATE), frame(2)[:-1] + b"x"]
)
def test_anything_else_ends_it_there(wrong):
    buffer, places = filled([frame(0), frame(1), wrong, frame(3)])
    for _ in range(2):
        whole, found = equal_sizes(buffer, places)
        assert not whole
        assert [one.queue_offset for one in found] == [0, 1]


def test_each_bit_of_a_frame_counts():
    buffer, places = filled([frame(0), frame(1)])
    assert equal_sizes(buffer, places)[0]
    for bit in range(SIZE * 8):
        buffer.view[SIZE + bit // 8] ^= 1 << bit % 8
        assert not equal_sizes(buffer, places)[0], bit
        buffer.view[SIZE + bit // 8] ^= 1 << bit % 8
    assert equal_sizes(buffer, places)[0]


def test_what_is_kept_is_bounded():
    buffer = ReadBuffer()
    for size in range(100, 200):
        layout = buffer.layout(size)
        assert len(layout.rooms) == len(layout.checked) == BUFFER_BYTES // size
        buffer._expect(size, 3)
    assert len(buffer._layouts) <= 16
    assert len(buffer._shapes) <= 16
