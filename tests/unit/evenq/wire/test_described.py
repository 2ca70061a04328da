"""Bodies that are decoded by descriptors of a user."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2, descriptor_pb2

from evenq.errors import BadRequest
from evenq.wire.described import described


def descriptors(**fields: int) -> bytes:
    """A set with `google.protobuf.Any`, and a message `a.M` with fields of these types."""
    files = descriptor_pb2.FileDescriptorSet()
    any_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="a.proto", package="a", syntax="proto3", dependency=["google/protobuf/any.proto"])
    kind = file.message_type.add(name="M")
    for number, (name, type_number) in enumerate(fields.items(), 1):
        kind.field.add(name=name, number=number, type=type_number, label=1)
    any_field = kind.field.add(name="any", number=15, type=11, label=1, type_name=".google.protobuf.Any")
    assert any_field.number == 15
    return files.SerializeToString()


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def test_fields_and_unknown_fields_are_written_as_text() -> None:
    text, whole = described(b"\x0a\x02hi\x38\x05", descriptors(name=9), " .a.M ", characters_max=1_000)
    assert (text, whole) == ('name: "hi"\n7: 5\n', True)


def test_a_text_ends_at_its_limit() -> None:
    body = b"\x0a" + varint(5_000) + b"x" * 5_000
    text, whole = described(body, descriptors(name=9), "a.M", characters_max=100)
    assert (len(text), whole) == (100, False)


def test_messages_inside_any_end_at_a_limit() -> None:
    inner = b""
    for _ in range(3_000):
        name = b"x/a.M"
        packed = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(inner)) + inner
        inner = b"\x7a" + varint(len(packed)) + packed
    try:
        text, _ = described(inner, descriptors(name=9), "a.M", characters_max=65_536)
    except BadRequest:
        return
    assert len(text) <= 65_536


def test_any_with_content_that_is_not_valid_is_refused_or_written_as_bytes() -> None:
    packed = b"\x0a\x05x/a.M\x12\x02\x0a\xff"
    with pytest.raises(BadRequest, match=r"cannot be shown as a\.M"):
        described(b"\x7a" + varint(len(packed)) + packed, descriptors(name=9), "a.M", characters_max=1_000)


def test_many_names_of_messages_are_not_all_named() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="m.proto")
    for number in range(100):
        file.message_type.add(name=f"M{number}")
    with pytest.raises(BadRequest, match="and 80 more"):
        described(b"", files.SerializeToString(), "nothing", characters_max=10)
