"""Stored records become the same rows as messages do, whatever is in them."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.columns import records as module
from evenq.columns.arrow_schema import HEAD, SYSTEM, TYPES, OutputColumn, arrow_schema
from evenq.columns.message_columns import batch_of
from evenq.columns.records import BlockRecords
from evenq.columns.verifying import RecordChecksumMismatch
from evenq.errors import InternalError
from evenq.model.queue import MessageQueue
from evenq.store.log.record import HEADER_BYTES, pack
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

QUEUE = MessageQueue("flights", "broker-a", 3)
ALL = tuple(OutputColumn(name, nullable=True) for name in TYPES)
STORED_MS = 1_700_000_000_999
FIRST = 41
UNKNOWN = b"\xfa\x3f\x02xy" + b"\xf0\x3f\x07" + b"\xf9\x3f12345678" + b"\xfd\x3f1234"  # field 1023 in every wire type
Parts = tuple[bytes, bytes]
"""Head and system properties of one message, as they are stored."""


def parts(number: int = 0, **system: Any) -> Parts:
    message = definition_pb2.Message(body=b"body %d" % number, user_properties={"n": str(number), "origin": "EWR"})
    message.topic.name = "flights"
    properties = definition_pb2.SystemProperties(message_id=f"01{number:030X}", **system)
    set_ms(properties.born_timestamp, 1_700_000_000_123 + number)
    return message.SerializeToString(), properties.SerializeToString()


def records(stored: list[Parts], *, head: bool = True, system: bool = True, **header: int) -> BlockRecords:
    """A block as a broker sends it."""
    frames = []
    for number, (one, properties) in enumerate(stored):
        frame = pack(**{
            "kind": 1, "flags": 0, "epoch": 1, "topic_id": 7, "queue_id": 3, "queue_offset": FIRST + number,
            "log_offset": 1_000 * number, "synced_offset": 0, "store_ms": STORED_MS + number, "born_ms": 6,
            "tag_hash": 0, **header, "head": one, "system": properties,
        })  # fmt: skip
        frames.append(frame[:HEADER_BYTES] + (one if head else b"") + (properties if system else b""))
    sizes = struct.pack(f"<{len(frames)}I", *map(len, frames))
    return BlockRecords(
        queue=QUEUE, first_offset=FIRST, sizes=sizes, frames=b"".join(frames), head=head, system=system, checked=True
    )  # fmt: skip


def expected(stored: list[Parts]) -> list[dict[str, Any]]:
    """The rows that a parser gives."""
    messages = []
    for number, (head, properties) in enumerate(stored):
        message = definition_pb2.Message.FromString(head)
        message.system_properties.MergeFromString(properties)
        message.system_properties.queue_offset = FIRST + number
        set_ms(message.system_properties.store_timestamp, STORED_MS + number)
        messages.append(message)
    return rows(batch_of(messages, QUEUE, ALL))


def rows(batch: Any) -> list[dict[str, Any]]:
    """As plain values; timestamps as numbers, for Python has no year 292277."""
    import pyarrow as pa

    batch.validate(full=True)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = (column.cast(pa.int64()) if name.endswith("Timestamp") else column).to_pylist()
        columns[name] = [dict(pairs) for pairs in values] if name == "properties" else values
    return [{name: values[row] for name, values in columns.items()} for row in range(batch.num_rows)]


@pytest.fixture(params=[1, 1_000_000], ids=["arrays", "parser"])
def few(request: Any, monkeypatch: Any) -> int:
    """Both ways for any number of rows."""
    monkeypatch.setattr(module, "FEW", request.param)
    return int(request.param)


@pytest.mark.usefixtures("few")
def test_rows_of_every_shape_in_one_block_are_those_of_a_parser() -> None:
    full = parts(1, tag="UA", keys=["a", "", "ü"], message_group="N1", born_host="h", trace_context="t")
    stored = [
        full, (b"", b""), parts(2), (full[0], b""), (b"", full[1]), parts(3, keys=["k"] * 128),
        (full[0] + UNKNOWN, UNKNOWN + full[1] + UNKNOWN),
        (definition_pb2.Message(body=b"x" * (4 << 20)).SerializeToString(), full[1]),
        (definition_pb2.Message(user_properties={"": "", "long": "v" * 300}).SerializeToString(), b""),
    ]  # fmt: skip
    batch = records(stored).batch(ALL)
    assert batch.schema.equals(arrow_schema(ALL))
    assert rows(batch) == expected(stored)


@pytest.mark.usefixtures("few")
def test_the_last_of_several_values_counts_as_it_does_for_a_parser() -> None:
    one = definition_pb2.SystemProperties(tag="one", message_id="1", message_group="g")
    two = definition_pb2.SystemProperties(tag="two", message_id="2", message_group="h", keys=["more"])
    seconds, nanos = definition_pb2.SystemProperties(), definition_pb2.SystemProperties()
    seconds.born_timestamp.seconds, nanos.born_timestamp.nanos = 5, 7_000
    head, other = (
        definition_pb2.Message(body=text, user_properties={"k": text.decode(), text.decode(): ""}).SerializeToString()
        for text in (b"one", b"two")
    )
    encoded = [part.SerializeToString() for part in (one, two, seconds, nanos)]
    stored = [(head + other, b"".join(encoded)), parts(4), (other + head, encoded[1] + encoded[0])]
    assert rows(records(stored).batch(ALL)) == expected(stored)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seconds", [-(1 << 63), -1, 0, (1 << 63) - 1])
@pytest.mark.parametrize("nanos", [-(1 << 31), -1, 999_999_999])
def test_a_producers_clock_may_say_anything(seconds: int, nanos: int) -> None:
    system = definition_pb2.SystemProperties(message_id="1")
    system.born_timestamp.seconds, system.born_timestamp.nanos = seconds, nanos
    stored = [parts(1), (b"", system.SerializeToString())]
    assert rows(records(stored).batch(ALL)) == expected(stored)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", TYPES)
def test_a_column_alone_needs_no_more_than_its_part_of_the_records(name: str) -> None:
    stored = [parts(number, tag="t" if number % 2 else None, keys=["k"] * (number % 3)) for number in range(30)]
    column = (OutputColumn(name, nullable=True),)
    held = records(stored, head=name in HEAD, system=name in SYSTEM)
    assert len(held.frames) < len(records(stored).frames)
    assert rows(held.batch(column)) == [{name: row[name]} for row in expected(stored)]


def test_no_columns_at_all_still_count_rows(few: int) -> None:
    batch = records([parts(number) for number in range(40)], head=False, system=False).batch(())
    assert (batch.num_rows, batch.num_columns) == (40, 0)
    assert few


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("field", ["tag", "message_id", "message_group", "keys", "property"])
def test_text_that_is_not_utf8_is_an_error_that_names_the_offset(field: str) -> None:
    bad = {
        "tag": b"\x0a\x01\xff", "keys": b"\x12\x01\xff", "message_id": b"\x1a\x01\xff", "message_group": b"\x8a\x01\x01\xff",
    }  # fmt: skip
    head = b"\x12\x06\x0a\x01\xff\x12\x01v" if field == "property" else b""
    with pytest.raises(InternalError, match=f"flights@broker-a:3 .* no message at offset {FIRST + 1}"):
        records([parts(0), (head, bad.get(field, b""))]).batch(ALL)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"queue_id": 4}, "another queue"),
        ({"kind": 2}, "version 1"),
        ({"queue_offset": 50}, "leaves offsets out"),
    ],
)
def test_records_of_something_else_are_refused(header: dict[str, int], text: str) -> None:
    with pytest.raises(InternalError, match=text):
        records([parts(0), parts(1)], **header).batch(ALL)


def test_a_version_that_is_not_known_is_refused() -> None:
    held = records([parts(0)])
    frames = bytearray(held.frames)
    frames[12] = 2
    with pytest.raises(InternalError, match="version 1"):
        replace(held, frames=bytes(frames)).batch(ALL)


def test_columns_whose_part_was_left_out_are_an_error_and_no_empty_values() -> None:
    stored = [parts(number) for number in range(30)]
    for head, system, name in ((False, True, "body"), (True, False, "tag")):
        held = records(stored, head=head, system=system)
        with pytest.raises(InternalError, match="without the requested"):
            held.batch((OutputColumn(name, nullable=True),))


def only_typed_errors(held: BlockRecords) -> None:
    for wanted in (ALL, ()):
        try:
            batch = held.batch(wanted)
        except InternalError:
            continue
        batch.validate(full=True)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.binary(max_size=16),
    frames=st.binary(max_size=400),
    head=st.booleans(),
    system=st.booleans(),
    checked=st.booleans(),
)
def test_any_bytes_for_a_block_give_rows_or_a_typed_error(
    sizes: bytes, frames: bytes, head: bool, system: bool, checked: bool
) -> None:
    only_typed_errors(
        BlockRecords(
            queue=QUEUE, first_offset=FIRST, sizes=sizes, frames=frames, head=head, system=system, checked=checked
        )
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=60), st.binary(max_size=60)), max_size=40))
def test_any_bytes_for_messages_give_the_rows_of_a_parser_where_it_reads_them(stored: list[Parts]) -> None:
    held = records(stored)
    try:
        wanted = expected(stored)
    except Exception:  # noqa: BLE001  whatever a parser says; what is wrong where no one looks may pass
        only_typed_errors(held)
    else:
        assert rows(held.batch(ALL)) == wanted


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_block_gives_rows_or_a_typed_error(data: Any) -> None:
    held = records([parts(number, tag="t", keys=["a", "b"]) for number in range(30)])
    frames = bytearray(held.frames)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(frames) - 1))
        frames[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    only_typed_errors(replace(held, frames=bytes(frames[: len(frames) - cut] if cut < 20 else frames)))


VALUES = st.text(max_size=8)
MESSAGES = st.builds(
    lambda body, pairs, **system: (
        definition_pb2.Message(body=body, user_properties=pairs).SerializeToString(),
        definition_pb2.SystemProperties(**system).SerializeToString(),
    ),
    st.binary(max_size=200), st.dictionaries(VALUES, VALUES, max_size=4),
    tag=st.none() | VALUES, keys=st.lists(VALUES, max_size=4), message_id=VALUES, message_group=st.none() | VALUES,
    priority=st.none() | st.integers(-(1 << 31), (1 << 31) - 1), born_host=VALUES,
    body_encoding=st.integers(0, 3),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_any_messages_give_the_rows_of_a_parser_and_take_the_way_of_arrays(stored: list[Parts]) -> None:
    held = records(stored)
    assert rows(module._BlockColumns(held, module._Headers(held)).batch(ALL)) == expected(stored)


def test_a_worker_finds_any_flipped_bit_of_records_that_the_broker_did_not_check() -> None:
    held = replace(records([parts(number) for number in range(30)]), checked=False)
    assert held.batch(ALL).num_rows == 30
    size = len(held.frames) // 30
    for at in (3, 60, 7 * size + 5, 8 * size, 20 * size + 30, len(held.frames) - 1):
        frames = bytearray(held.frames)
        frames[at] ^= 4
        with pytest.raises(RecordChecksumMismatch, match="flights@broker-a:3"):
            replace(held, frames=bytes(frames)).batch(ALL)


def test_records_without_a_part_must_have_been_checked_by_the_broker() -> None:
    held = replace(records([parts(0)], head=False), checked=False)
    with pytest.raises(RecordChecksumMismatch):
        held.batch(())
