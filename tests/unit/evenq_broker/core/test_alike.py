"""Messages of a batch that are like its first one are stored exactly as the long way stores them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from evenq_broker.core.alike import learn, spans
from evenq_broker.core.validation import Limits, checked
from hypothesis import given
from hypothesis import strategies as st

from evenq.model import MessageType, TopicConfig
from evenq.store import Append
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

LIMITS = Limits(body_bytes_max=300, properties_max=16, properties_bytes_max=1024, store_host="127.0.0.1:8081")
TOPIC = TopicConfig(name="orders", topic_id=7, message_type=MessageType.MIXED)
Change = Callable[[definition_pb2.Message], object]


def message(number: int = 0, body: bytes = b"body", **system: object) -> definition_pb2.Message:
    made = definition_pb2.Message(topic=definition_pb2.Resource(name="orders"), body=body)
    fields = made.system_properties
    fields.message_id, fields.born_host = f"01{number:032X}", "client-1"
    fields.message_type, fields.body_encoding = definition_pb2.NORMAL, definition_pb2.IDENTITY
    set_ms(fields.born_timestamp, 1_700_000_000_123 + number)
    for name, value in system.items():
        setattr(fields, name, value)
    return made


def fields_of(stored: Append) -> tuple[object, ...]:
    return stored.topic_id, stored.queue_id, stored.tag_hash, stored.born_ms, stored.head, stored.system


def taken(first: definition_pb2.Message, second: definition_pb2.Message) -> tuple[bytes, Append] | None:
    """What the pattern of `first` makes of `second`; a match is held against the long way."""
    request = service_pb2.SendMessageRequest(messages=[first, second]).SerializeToString()
    places = spans(request, 2)
    assert places is not None
    parsed = service_pb2.SendMessageRequest.FromString(request).messages
    pattern = learn(request[slice(*places[0])], checked(parsed[0], TOPIC, LIMITS, now_ms=1), LIMITS)
    found = pattern.stored(request, *places[1]) if pattern is not None else None
    if found is not None:
        assert found[0] == parsed[1].system_properties.message_id.encode()
        assert fields_of(found[1]) == fields_of(checked(parsed[1], TOPIC, LIMITS, now_ms=1))
    return found


@given(st.binary(min_size=1, max_size=300), st.integers(0, 100), st.sampled_from(["", "tag"]), st.integers(0, 5))
def test_a_message_like_the_first_is_stored_as_the_long_way_does(
    body: bytes, number: int, tag: str, queue: int
) -> None:
    same: dict[str, object] = {"queue_id": queue, **({"tag": tag} if tag else {})}
    assert taken(message(**same), message(number, body, **same)) is not None


@given(st.lists(st.integers(0, 20), min_size=2, max_size=2), st.lists(st.text(max_size=3), min_size=2, max_size=2))
def test_whatever_matches_is_right(queues: list[int], tags: list[str]) -> None:
    first, second = (
        message(number, queue_id=queue, born_host=tag)
        for number, (queue, tag) in enumerate(zip(queues, tags, strict=True))
    )
    taken(first, second)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one.topic, "name", "others"),
        lambda one: setattr(one.topic, "resource_namespace", "space"),
        lambda one: setattr(one.system_properties, "tag", "x"),
        lambda one: one.system_properties.keys.append("k"),
        lambda one: one.user_properties.update({"a": "b"}),
        lambda one: setattr(one.system_properties, "message_group", "g"),
        lambda one: setattr(one.system_properties, "receipt_handle", "h"),
        lambda one: setattr(one.system_properties, "message_id", " " * 34),
        lambda one: setattr(one.system_properties, "message_id", ""),
        lambda one: setattr(one, "body", b""),
        lambda one: setattr(one, "body", b"x" * 301),
        lambda one: setattr(one.system_properties, "body_encoding", definition_pb2.GZIP),
        lambda one: setattr(one.system_properties, "message_type", definition_pb2.FIFO),
        lambda one: setattr(one.system_properties.body_digest, "checksum", "AB"),
    ],
)
def test_a_message_that_differs_takes_the_long_way(change: Change) -> None:
    other = message(1)
    change(other)
    assert taken(message(), other) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.user_properties.update({"a": "b"}),
        lambda one: setattr(one.system_properties, "message_group", "g"),
        lambda one: setattr(one.system_properties, "receipt_handle", "h"),
        lambda one: setattr(one.system_properties, "delivery_attempt", 77),
        lambda one: setattr(one.system_properties, "trace_context", "00-1"),
        lambda one: one.system_properties.ClearField("born_timestamp"),
        lambda one: setattr(one.system_properties, "message_id", "é" * 200),
    ],
)
def test_no_pattern_is_learned_from_a_message_of_another_kind(change: Change) -> None:
    first = message()
    change(first)
    if first.system_properties.message_group:
        first.system_properties.message_type = definition_pb2.FIFO
    assert taken(first, first) is None


def test_a_request_that_holds_more_than_messages_has_no_places() -> None:
    request = service_pb2.SendMessageRequest(messages=[message()]).SerializeToString()
    assert spans(request + b"\x78\x01", 1) is None
    assert spans(request, 2) is None
    assert spans(request, 1) == [(3, len(request))] or len(request) < 0x82


def test_a_pattern_fits_a_later_request_whatever_its_id_birth_and_body() -> None:
    request = service_pb2.SendMessageRequest(messages=[message()]).SerializeToString()
    places = spans(request, 1)
    assert places is not None
    pattern = learn(request[slice(*places[0])], checked(message(), TOPIC, LIMITS, now_ms=1), LIMITS)
    assert pattern is not None
    later = service_pb2.SendMessageRequest(messages=[message(5, b"other"), message(6, tag="x")]).SerializeToString()
    ends = spans(later, 2)
    assert ends is not None
    assert [pattern.fits(later, start) for start, _ in ends] == [True, False]
