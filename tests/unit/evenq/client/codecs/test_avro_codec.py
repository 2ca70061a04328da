"""Avro bodies with the prefix of a schema registry."""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.client.codecs import avro_codec
from evenq.client.codecs.avro_codec import AvroCodec
from evenq.errors import BadRequest, InvalidBody, Unsupported

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}
OLD = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}
VALUE = {"number": 7, "note": "urgent"}


def test_the_wire_format_is_a_zero_the_schema_id_and_the_value() -> None:
    """Number 7 is the zigzag byte 14; a text is its length 6 as 12, and its letters. By Confluent's documentation."""
    codec = AvroCodec(ORDER, schema_id=258)
    assert codec.encode(VALUE, "orders") == b"\x00\x00\x00\x01\x02" + b"\x0e\x0curgent"
    assert codec.decode(codec.encode(VALUE, "orders"), "orders") == VALUE


def test_a_body_of_an_older_schema_is_looked_up_once_and_read_in_the_new_form() -> None:
    asked: list[int] = []

    def lookup(schema_id: int) -> str:
        asked.append(schema_id)
        return json.dumps(OLD)

    old = AvroCodec(OLD, schema_id=1).encode({"number": 7}, "orders")
    codec = AvroCodec(ORDER, schema_id=2, lookup=lookup)
    for _ in range(2):
        assert codec.decode(old, "orders") == {"number": 7, "note": ""}
    assert asked == [1]
    assert AvroCodec(lookup=lookup).decode(old, "orders") == {"number": 7}


def test_at_most_some_schemas_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_codec, "SCHEMAS_MAX", 2)
    codec = AvroCodec(lookup=lambda _: '"int"')
    for schema_id in range(5):
        assert codec.decode(struct.pack(">bI", 0, schema_id) + b"\x02", "t") == 1
    assert sorted(codec._kept) == [3, 4]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x00\x00", "begins with 00000000"),
        (b'{"number": 7}', "begins with 7b226e756d"),
        (b"\x00\x00\x00\x00\x09\x0e", "names the Avro schema 9, which is unknown: the lookup does not return it"),
        (b"\x00\x00\x00\x00\x01", "does not fit its Avro schema 1"),
        (b"\x00\x00\x00\x00\x01\x0e\x0curg", "does not fit its Avro schema 1"),
        (b"\x00\x00\x00\x00\x01\x0e\x00rest", "has 4 bytes after the value"),
        (b"\x00\x00\x00\x00\x01\x0e" + b"\xff" * 9 + b"\x01", "does not fit its Avro schema 1"),
        (b"\x00\x00\x00\x00\x01\x0e\x04\xff\xff", "does not fit its Avro schema 1"),
    ],
)
def test_a_body_that_does_not_fit_is_invalid_and_the_text_says_why(body: bytes, text: str) -> None:
    with pytest.raises(InvalidBody, match=text):
        AvroCodec(ORDER, schema_id=1, lookup=lambda _: None).decode(body, "orders")


@given(st.binary(max_size=60))
def test_bytes_decode_or_are_invalid(body: bytes) -> None:
    kinds = ["null", "string", {"type": "map", "values": "bytes"}, {"type": "array", "items": "double"}, ORDER]
    try:
        AvroCodec(kinds, schema_id=1).decode(b"\x00\x00\x00\x00\x01" + body, "t")
    except InvalidBody as error:
        text = str(error)
    else:
        text = "a body of t"
    assert text.startswith("a body of t")


def test_an_error_of_the_registry_is_not_an_invalid_body() -> None:
    def lookup(schema_id: int) -> str:
        raise ConnectionError(f"no registry for {schema_id}")

    with pytest.raises(ConnectionError):
        AvroCodec(ORDER, schema_id=1, lookup=lookup).decode(b"\x00\x00\x00\x00\x02\x0e\x00", "orders")


@pytest.mark.parametrize("value", [{"number": "7"}, {}, "text", None, {"number": 1 << 70}, {**VALUE, "other": 1}])
def test_a_value_that_does_not_fit_the_schema_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="the value for orders does not fit the Avro schema 1"):
        AvroCodec(ORDER, schema_id=1).encode(value, "orders")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs a schema"),
        ({"schema": ORDER}, "needs a schema with its schema_id, or a lookup"),
        ({"schema_id": 1}, "needs a schema"),
        ({"schema": ORDER, "schema_id": -1}, "schema_id is -1"),
        ({"schema": ORDER, "schema_id": 1 << 32}, "schema_id is 4294967296"),
        ({"schema": "{", "schema_id": 1}, "is not valid"),
        ({"schema": {"type": "record"}, "schema_id": 1}, "is not valid"),
        ({"schema": "unheard-of", "schema_id": 1}, "is not valid"),
    ],
)
def test_arguments_that_make_no_codec_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        AvroCodec(**arguments)


def test_one_that_only_decodes_says_so() -> None:
    with pytest.raises(BadRequest, match="only decodes"):
        AvroCodec(lookup=lambda _: ORDER).encode(VALUE, "orders")


def test_without_fastavro_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(Unsupported, match=r"evenq\[avro\]"):
        AvroCodec(ORDER, schema_id=1)
