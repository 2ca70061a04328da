"""The keys of a message are those that protobuf would read, whatever the bytes look like."""

from __future__ import annotations

from evenq_broker.core.state.frames import field, varint, varint_field
from evenq_broker.core.state.keys import MESSAGE_ID_TAG, keys_of, message_id_of
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

_TEXT = st.text(max_size=20)
_NUMBER = st.integers(0, (1 << 64) - 1)
_PIECE = st.one_of(
    _TEXT.map(lambda text: field(1, text.encode())),
    _TEXT.map(lambda text: field(2, text.encode())),
    _TEXT.map(lambda text: field(3, text.encode())),
    st.text("é0", min_size=60, max_size=200).map(lambda text: field(2, text.encode())),
    st.tuples(st.sampled_from([5, 6, 13, 14, 16, 22, 99, 5000]), _NUMBER).map(lambda pair: varint_field(*pair)),
    st.tuples(st.integers(23, 1 << 20), st.binary(max_size=150)).map(lambda pair: field(*pair)),
    st.binary(min_size=4, max_size=4).map(lambda data: varint(77 << 3 | 5) + data),
    st.binary(min_size=8, max_size=8).map(lambda data: varint(78 << 3 | 1) + data),
    st.just(varint(79 << 3 | 3) + varint_field(1, 5) + field(2, b"inside a group") + varint(79 << 3 | 4)),
)


def _by_protobuf(system: bytes) -> list[bytes] | None:
    try:
        properties = definition_pb2.SystemProperties.FromString(system)
    except DecodeError:
        return None
    return [key.encode() for key in dict.fromkeys([*properties.keys, properties.message_id]) if key]


def test_keys_come_first_then_the_message_id_and_each_once():
    properties = definition_pb2.SystemProperties(tag="t", keys=["a", "b", "a", ""], message_id="b", born_host="h")
    assert keys_of(b"any head", properties.SerializeToString()) == [b"a", b"b"]
    assert keys_of(b"", definition_pb2.SystemProperties(message_id="id").SerializeToString()) == [b"id"]
    assert keys_of(b"", b"") == []


def test_the_message_id_is_found_whatever_it_stands_behind():
    properties = definition_pb2.SystemProperties(tag="t", keys=["b", "a"], message_id="b", body_encoding=1)
    assert message_id_of(properties.SerializeToString()) == b"b"
    assert (
        message_id_of(definition_pb2.SystemProperties(keys=["k" * 200], message_id="id").SerializeToString()) == b"id"
    )
    assert message_id_of(definition_pb2.SystemProperties(keys=["k"]).SerializeToString()) == b""
    assert message_id_of(b"") == b""


@given(st.lists(_PIECE, max_size=12))
def test_the_message_id_is_that_of_protobuf_or_the_first_one_of_several(pieces):
    system = b"".join(pieces)
    read = definition_pb2.SystemProperties.FromString(system).message_id.encode()
    assert message_id_of(system) in {read, *(piece[2:] for piece in pieces if piece[0] == MESSAGE_ID_TAG)}


@given(st.lists(_PIECE, max_size=12))
def test_any_order_of_fields_known_or_not_reads_as_in_protobuf(pieces):
    system = b"".join(pieces)
    assert keys_of(b"", system) == _by_protobuf(system)


@given(st.lists(_PIECE, min_size=1, max_size=6), st.data())
def test_bytes_cut_short_give_no_keys_where_protobuf_refuses_them(pieces, data):
    system = b"".join(pieces)
    cut = system[: data.draw(st.integers(0, len(system) - 1))]
    assert keys_of(b"", cut) == (_by_protobuf(cut) or [])


@given(st.binary(max_size=40))
@example(b"\x12")
@example(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x0f")
@example(b"\x00\x00")
@example(b"\x1b" * 300)
def test_any_bytes_are_read_without_an_error(data):
    found = keys_of(b"", data)
    expected = _by_protobuf(data)
    if expected is not None:
        assert found == expected
