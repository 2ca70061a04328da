"""Columns in Kafka's style, and of the system."""

import hashlib

import pytest

from evenq.columns.arrow_schema import HEADER_TYPES, KAFKA_TYPES, SYSTEM_TYPES, OutputColumn
from evenq.columns.extra_columns import must_be_unique, partition_of
from evenq.columns.message_columns import batch_of
from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

QUEUE = MessageQueue("flights", "broker-a", 3)


def message() -> definition_pb2.Message:
    made = definition_pb2.Message(body=b"\xff", user_properties={"b": "2", "a": "1"})
    system = made.system_properties
    system.queue_offset, system.priority, system.born_host = 7, 4, "10.0.0.1"
    system.message_type = definition_pb2.MessageType.FIFO
    system.keys.extend(["UA1545", "other"])
    set_ms(system.store_timestamp, 1_700_000_000_456)
    return made


def rows(types: dict[str, str], *messages: definition_pb2.Message) -> list[dict[str, object]]:
    return list(batch_of(messages, QUEUE, tuple(OutputColumn(name, nullable=True) for name in types)).to_pylist())


def test_a_row_in_kafkas_style() -> None:
    full, bare = rows(KAFKA_TYPES | HEADER_TYPES, message(), definition_pb2.Message())
    assert (full["key"], full["value"], full["offset"], full["timestampType"]) == (b"UA1545", b"\xff", 7, 1)
    assert full["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    assert full["partition"] == partition_of(QUEUE)
    assert (bare["key"], bare["value"], bare["headers"], bare["timestamp"]) == (None, b"", None, None)


def test_the_columns_of_the_system() -> None:
    full, bare = rows(SYSTEM_TYPES, message(), definition_pb2.Message())
    assert (full["priority"], full["messageType"], full["bornHost"]) == (4, "FIFO", "10.0.0.1")
    assert (full["storeHost"], full["deliveryTimestamp"], full["deliveryAttempt"]) == (None, None, None)
    assert (bare["priority"], bare["messageType"]) == (None, "MESSAGE_TYPE_UNSPECIFIED")


def test_a_partition_number_is_the_same_for_ever_and_tells_the_queues_of_a_topic_apart() -> None:
    assert partition_of(QUEUE) == 522_518_531
    queues = [MessageQueue("flights", f"broker-{name}", number) for name in "abcdefghij" for number in range(64)]
    numbers = {partition_of(queue) for queue in queues}
    assert len(numbers) == len(queues)
    assert 0 <= min(numbers) <= max(numbers) < 1 << 31
    must_be_unique(queues)


def test_brokers_whose_names_have_one_checksum_are_refused_in_kafkas_style() -> None:
    names: dict[int, str] = {}
    for number in range(100_000):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        other = names.setdefault(partition_of(MessageQueue("flights", name, 0)), name)
        if other != name:
            break
    queues = [MessageQueue("flights", other, 0), MessageQueue("flights", name, 0)]
    with pytest.raises(Unsupported, match="same checksum"):
        must_be_unique(queues)
