"""Messages survive the wire."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.client.rpc.messages import decode, encode, repeated
from evenq.errors import MessageCorrupted
from evenq.model import Message
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

text = st.text(min_size=1, max_size=8)


@given(
    body=st.binary(min_size=1, max_size=300),
    tag=st.none() | text,
    keys=st.lists(text, max_size=3),
    properties=st.dictionaries(text, text, max_size=3),
    group=st.none() | text,
)
def test_what_is_sent_is_what_is_read(
    body: bytes, tag: str | None, keys: list[str], properties: dict[str, str], group: str | None
) -> None:
    message = Message(topic="t", body=body, tag=tag, keys=tuple(keys), properties=properties, message_group=group)
    wire = v2.Message.FromString(encode(message, message_id="id", born_ms=1_700_000_000_123, born_host="h"))
    got = decode(wire, broker_name="b")
    assert (got.body, got.tag, got.keys, got.properties, got.message_group) == (
        body,
        tag,
        tuple(keys),
        properties,
        group,
    )
    assert (got.message_id, got.born_ms, got.delivery_attempt) == ("id", 1_700_000_000_123, 1)
    assert wire.system_properties.message_type == (v2.NORMAL if group is None else v2.FIFO)


def encoded(**properties: str) -> v2.Message:
    message = Message(topic="t", body=b"b", properties=properties)
    return v2.Message.FromString(encode(message, message_id="id", born_ms=1, born_host="h"))


def test_a_traceparent_is_the_trace_context_of_the_protocol_too() -> None:
    context = f"00-{1:032x}-{2:016x}-01"
    wire = encoded(traceparent=context, k="v")
    assert wire.system_properties.trace_context == context
    got = decode(wire, broker_name="b")
    assert (got.trace_context, got.properties) == (context, {"traceparent": context, "k": "v"})


@pytest.mark.parametrize("text", ["", "x", f"00-{1:032x}-{2:016x}-01\n", f"00-{1:032X}A-{2:016x}-01"])
def test_what_is_no_traceparent_stays_a_property(text: str) -> None:
    wire = encoded(traceparent=text)
    assert not wire.system_properties.HasField("trace_context")
    got = decode(wire, broker_name="b")
    assert (got.trace_context, got.properties) == (None, {"traceparent": text})


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_repeated_fields_are_written_as_protobuf_would(bodies: list[bytes]) -> None:
    request = service_pb2.SendMessageRequest(messages=[v2.Message(body=body) for body in bodies])
    assert repeated(1, [v2.Message(body=body).SerializeToString() for body in bodies]) == request.SerializeToString()


@pytest.mark.parametrize("packed", [gzip.compress(b"hello"), zlib.compress(b"hello")], ids=["gzip", "zlib"])
def test_compressed_bodies_are_unpacked_in_both_readings_of_gzip(packed: bytes) -> None:
    wire = v2.Message(body=packed)
    wire.system_properties.body_encoding = v2.GZIP
    assert decode(wire, broker_name="b").body == b"hello"
    wire.body = b"garbage"
    with pytest.raises(MessageCorrupted):
        decode(wire, broker_name="b")
