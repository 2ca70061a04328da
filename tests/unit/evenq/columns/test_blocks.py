"""From an encoded block to rows."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.columns.arrow_schema import TYPES, OutputColumn, arrow_schema
from evenq.columns.blocks import parse, tag_set, with_tags
from evenq.columns.message_columns import batch_of
from evenq.errors import InternalError
from evenq.model.queue import MessageQueue
from evenq.wire.convert import set_ms
from evenq.wire.status import DecodeError
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

QUEUE = MessageQueue("flights", "broker-a", 3)
ALL = tuple(OutputColumn(name, nullable=True) for name in TYPES)


def block() -> bytes:
    full = definition_pb2.Message(body=b"\xff\x00body", user_properties={"b": "2", "a": "1"})
    system = full.system_properties
    system.tag, system.message_group, system.message_id, system.queue_offset = "UA", "N1", "01AB", 41
    system.keys.extend(["2013-01-01", "UA1545"])
    set_ms(system.born_timestamp, 1_700_000_000_123)
    set_ms(system.store_timestamp, 1_700_000_000_456)
    bare = definition_pb2.Message()
    bare.system_properties.queue_offset = 42
    return data_pb2.ScanBlock(first_offset=41, next_offset=43, messages=[full, bare]).SerializeToString()


def test_every_column_of_a_full_and_of_a_bare_message() -> None:
    full, bare = batch_of(parse(block()).messages, QUEUE, ALL).to_pylist()
    assert full == {
        "topic": "flights",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 41,
        "messageId": "01AB",
        "tag": "UA",
        "keys": ["2013-01-01", "UA1545"],
        "messageGroup": "N1",
        "body": b"\xff\x00body",
        "properties": full["properties"],
        "bornTimestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
        "storeTimestamp": datetime.fromtimestamp(1_700_000_000.456, UTC),
    }
    assert dict(full["properties"]) == {"a": "1", "b": "2"}
    assert bare["tag"] is bare["messageGroup"] is bare["bornTimestamp"] is bare["storeTimestamp"] is None
    assert (bare["keys"], bare["properties"], bare["body"], bare["queueOffset"]) == ([], [], b"", 42)


def test_a_subset_has_the_same_values_and_the_cached_schema() -> None:
    whole = batch_of(parse(block()).messages, QUEUE, ALL)
    for name in TYPES:
        column = (OutputColumn(name, nullable=True),)
        alone = batch_of(parse(block()).messages, QUEUE, column)
        assert alone.schema.equals(arrow_schema(column))
        assert alone.column(0).equals(whole.column(name))


def test_no_columns_at_all_still_count_rows() -> None:
    batch = batch_of(parse(block()).messages, QUEUE, ())
    assert (batch.num_rows, batch.num_columns) == (2, 0)


def test_tags_are_compared_once_more_because_brokers_compare_hashes() -> None:
    messages = parse(block()).messages
    assert [message.system_properties.tag for message in with_tags(messages, tag_set("AA || UA"))] == ["UA"]
    assert len(with_tags(messages, tag_set("*"))) == len(with_tags(messages, tag_set(""))) == 2
    assert not with_tags(messages, tag_set("AA"))


@pytest.mark.parametrize("numbers", [(0, 0), (41, 43), (1 << 40, (1 << 40) + 2)])
def test_a_block_of_records_is_read_where_it_lies(numbers: tuple[int, int]) -> None:
    encoded = data_pb2.ScanBlock(first_offset=numbers[0], next_offset=numbers[1])
    encoded.status.code, encoded.status.message = definition_pb2.OK, "OK"
    encoded.records.sizes, encoded.records.frames, encoded.records.head = bytes(8), bytes(range(200)), True
    result = parse(memoryview(encoded.SerializeToString()))
    assert (result.first_offset, result.next_offset, result.status, result.count) == (*numbers, None, 2)
    assert result.records is not None
    assert isinstance(result.records.frames, memoryview)
    held = result.records
    assert (bytes(held.sizes), bytes(held.frames)) == (encoded.records.sizes, encoded.records.frames)
    assert (held.head, held.system, held.checked) == (True, False, False)


@given(st.binary(max_size=80), st.integers(0, 80), st.binary(max_size=3))
def test_what_is_no_plain_block_of_records_is_judged_by_the_parser(frames: bytes, at: int, other: bytes) -> None:
    block = data_pb2.ScanBlock(first_offset=1, next_offset=2)
    block.status.code, block.status.message = definition_pb2.OK, "OK"
    block.records.sizes, block.records.frames = b"\x01\0\0\0", frames
    whole = block.SerializeToString()
    changed = whole[:at] + other + whole[at + len(other) :]
    try:
        expected = data_pb2.ScanBlock.FromString(changed)
    except DecodeError:
        with pytest.raises(InternalError):
            parse(changed)
        return
    result = parse(changed)
    assert (result.first_offset, result.next_offset) == (expected.first_offset, expected.next_offset)
    assert (result.records is None) == (not expected.HasField("records"))
    if result.records is not None:
        assert bytes(result.records.frames) == expected.records.frames
        assert bytes(result.records.sizes) == expected.records.sizes
        assert result.records.checked == expected.records.checked
