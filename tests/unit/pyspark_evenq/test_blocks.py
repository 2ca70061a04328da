"""From an encoded block to rows."""

from datetime import UTC, datetime

from pyspark_evenq.arrow_schema import TYPES, Column, arrow_schema
from pyspark_evenq.blocks import batch_of, parse, tag_set, with_tags

from evenq.model.queue import MessageQueue
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

QUEUE = MessageQueue("flights", "broker-a", 3)
ALL = tuple(Column(name, nullable=True) for name in TYPES)


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
        wanted = (Column(name, nullable=True),)
        alone = batch_of(parse(block()).messages, QUEUE, wanted)
        assert alone.schema.equals(arrow_schema(wanted))
        assert alone.column(0).equals(whole.column(name))


def test_no_columns_at_all_still_count_rows() -> None:
    batch = batch_of(parse(block()).messages, QUEUE, ())
    assert (batch.num_rows, batch.num_columns) == (2, 0)


def test_tags_are_compared_once_more_because_brokers_compare_hashes() -> None:
    messages = parse(block()).messages
    assert [message.system_properties.tag for message in with_tags(messages, tag_set("AA || UA"))] == ["UA"]
    assert len(with_tags(messages, tag_set("*"))) == len(with_tags(messages, tag_set(""))) == 2
    assert not with_tags(messages, tag_set("AA"))
