"""Frames made by hand are what protobuf would have made."""

from __future__ import annotations

import pytest
from evenq_broker.core.state.frames import (
    OK_STATUS,
    delayed_entry,
    delivered,
    delivery_frame,
    delivery_frames,
    extra_fields,
    field,
    half_entry,
    near,
    varint,
    varint_field,
)
from hypothesis import given
from hypothesis import strategies as st

from evenq.store import Append, StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 40, (1 << 63) - 1, -1])
def test_varints_are_protobufs(value: int) -> None:
    queue = definition_pb2.SystemProperties(queue_offset=value)
    assert b"\x70" + varint(value) == queue.SerializeToString()
    assert varint_field(14, value) == queue.SerializeToString()


def test_a_delivery_appends_its_fields_to_what_was_stored() -> None:
    message = definition_pb2.Message(body=b"body", user_properties={"k": "v"})
    message.topic.name = "t"
    stored = definition_pb2.SystemProperties(message_id="id", tag="red", queue_id=9)
    extra = extra_fields(3, 1 << 33, 1_700_000_000_123, "handle", 4, 61_500)
    made = definition_pb2.Message.FromString(
        delivered(Append(1, 3, 0, 0, message.SerializeToString(), stored.SerializeToString()), extra=extra)
    )
    system = made.system_properties
    assert (made.body, made.topic.name, dict(made.user_properties)) == (b"body", "t", {"k": "v"})
    assert (system.message_id, system.tag, system.queue_id, system.queue_offset) == ("id", "red", 3, 1 << 33)
    assert (system.receipt_handle, system.delivery_attempt) == ("handle", 4)
    assert (system.store_timestamp.seconds, system.store_timestamp.nanos) == (1_700_000_000, 123_000_000)
    assert (system.invisible_duration.seconds, system.invisible_duration.nanos) == (61, 500_000_000)


def test_a_pulled_message_has_its_place_and_no_handle() -> None:
    made = definition_pb2.Message.FromString(delivered(Append(1, 0, 0, 0, b"", b""), extra=extra_fields(0, 0, 1_000)))
    assert made.system_properties.HasField("queue_offset")
    assert not made.system_properties.HasField("receipt_handle")
    assert not made.system_properties.HasField("delivery_attempt")


@pytest.mark.parametrize("value", [0, 1, 127, 128, 129, 255, 256, 16_383, 16_384, 1 << 40, (1 << 63) - 1])
def test_numbers_near_each_other_are_varints_too(value: int) -> None:
    assert near(value) == varint(value)


@pytest.mark.parametrize("invisible_ms", [None, 1, 61_500])
@pytest.mark.parametrize("size", [0, 10, 200, 20_000])
def test_a_frame_of_a_delivery_is_the_field_around_the_message(size: int, invisible_ms: int | None) -> None:
    stored = Append(1, 300, 0, 0, b"h" * size, b"s" * size)
    stored.queue_offset, stored.store_ms = 70_000, 1_700_000_000_123
    handle = "e1.broker-a." + "0f" * 49
    frame, length = delivery_frame(stored, handle.encode(), 129, invisible_ms)
    message = delivered(stored, extra=extra_fields(300, 70_000, stored.store_ms, handle, 129, invisible_ms))
    assert (frame, length) == (field(2, message), len(message))


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 1 << 40), st.sampled_from([0, 1_000, 1_763_885_000_123, 1_763_885_000_124]),
        st.sampled_from([b"", b"h" * 60, b"h" * 127, b"h" * 1_100, b"h" * 20_000]),
        st.sampled_from([b"", b"s" * 40, b"s" * 128, b"s" * 17_000]), st.integers(1, 300),
    ),
    max_size=5,
)  # fmt: skip


@given(MESSAGES, st.integers(0, 1 << 21), st.integers(1, 200), st.sampled_from([None, 1, 30_000, 43_200_001]))
def test_frames_that_are_made_together_are_those_made_one_by_one(
    messages: list[tuple[int, int, bytes, bytes, int]], queue_id: int, attempt: int, invisible_ms: int | None
) -> None:
    stored = [StoredMessage(1, queue_id, at, 0, 0, ms, 0, head, system) for at, ms, head, system, _ in messages]
    handles = [b"e" * length for *_, length in messages]
    frames, size = delivery_frames(stored, handles, attempt, invisible_ms)
    each = [delivery_frame(one, handle, attempt, invisible_ms) for one, handle in zip(stored, handles, strict=True)]
    assert frames == [frame for frame, _ in each]
    assert size == sum(length for _, length in each)


def test_an_entry_has_the_message_id_and_the_handle_of_its_kind() -> None:
    answer = service_pb2.SendMessageResponse.FromString(
        OK_STATUS + delayed_entry(b"one", "d1.a.00") + half_entry(b"two", "t1.a.00")
    )
    assert answer.status.code == definition_pb2.OK
    assert [entry.status.code for entry in answer.entries] == [definition_pb2.OK] * 2
    delayed, half = answer.entries
    assert (delayed.message_id, delayed.recall_handle, delayed.transaction_id) == ("one", "d1.a.00", "")
    assert (half.message_id, half.recall_handle, half.transaction_id) == ("two", "", "t1.a.00")
