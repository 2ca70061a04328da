"""Plain messages read from their bytes: the same verdicts and the same stored bytes as the full path."""

import sys
from pathlib import Path

import pytest
from evenq_broker.core.sending.plain_sends import PlainSends
from evenq_broker.core.sending.validation import MessageLimits

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent))
import plain_requests as made


def request(body: bytes = b"x", **system: object) -> service_pb2.SendMessageRequest:
    asked = service_pb2.SendMessageRequest()
    message = asked.messages.add(body=body)
    message.topic.name = "t"
    for name, value in {"message_id": "id", **system}.items():
        setattr(message.system_properties, name, value)
    message.system_properties.born_timestamp.seconds = made.NOW_MS // 1_000
    return asked


def block(count: int = 2, queue_id: int = 3, *, topic: str = "", broker: str = made.BROKER) -> data_pb2.PublishRequest:
    asked = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name=broker, queue_id=queue_id))
    for number in range(count):
        message = asked.messages.add()
        message.CopyFrom(request(b"x" * (100 + number), message_id=f"id{number}", message_type=1).messages[0])
        message.system_properties.born_timestamp.nanos = 300_000_000 + number
        message.ClearField("topic")
        if topic:
            message.topic.name = topic
    return asked


READER = PlainSends(made.LIMITS, broker_name=made.BROKER)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_generated_requests_are_judged_and_stored_as_the_full_path_does(seed: int, blocks: bool) -> None:
    usual, read = made.run(1_500, seed, blocks=blocks)
    assert usual > 300, "the generator makes requests that are as usual"
    assert read >= usual


def test_what_sdks_send_is_read_from_its_bytes() -> None:
    asked = request(b"x" * 200, tag="A", body_encoding=1, message_type=1, born_host="localhost", queue_id=3)
    asked.messages[0].system_properties.keys.append("order-1")
    asked.messages[0].user_properties["k"] = "v"
    asked.messages.add().CopyFrom(asked.messages[0])
    assert made.judge(asked.SerializeToString(), PlainSends(made.LIMITS), usual=True)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_the_trace_context_is_stored_as_it_came(count: int, *, same: bool) -> None:
    """Messages of a batch share it; others each have one of their own."""
    send, published = service_pb2.SendMessageRequest(), block(0, topic="t")
    for number in range(count):
        context = f"00-{7 if same else number + 1:032x}-{number * (not same) + 1:016x}-01"
        asked = request(message_id=f"id{number}", message_type=1, trace_context=context)
        asked.messages[0].user_properties["traceparent"] = context
        send.messages.append(asked.messages[0])
        published.messages.append(asked.messages[0])
    reader = PlainSends(made.LIMITS, broker_name=made.BROKER)
    assert made.judge(send.SerializeToString(), reader, usual=True)
    assert made.judge_block(published.SerializeToString(), reader, usual=True)
    for plain in (reader.read(send.SerializeToString()), reader.read_block(published.SerializeToString())):
        assert plain is not None
        for entry, sent in zip(plain.entries, send.messages, strict=True):
            context = sent.system_properties.trace_context
            assert definition_pb2.SystemProperties.FromString(entry.system).trace_context == context
            assert definition_pb2.Message.FromString(entry.head).user_properties["traceparent"] == context


@pytest.mark.parametrize("message_id", ["0", "00", "id0", "0" * 34, "01F4A1B2C3D4E5000012345600000A0Z", "z" * 127])
@pytest.mark.parametrize("whole_second", [True, False])
@pytest.mark.parametrize("encoding", [0, 1])
def test_an_id_is_told_from_what_follows_it(message_id: str, whole_second: bool, encoding: int) -> None:
    """`message_type` has the first byte of a digit, and `born_timestamp` the one behind the digits."""
    asked = request(b"x" * 200, tag="A", body_encoding=encoding, message_type=1, born_host="localhost", queue_id=3)
    asked.messages[0].system_properties.message_id = message_id
    asked.messages[0].system_properties.born_timestamp.nanos = 0 if whole_second else 300_000_000
    data = asked.SerializeToString()
    assert made.judge(data, PlainSends(made.LIMITS), usual=True)
    at = data.index(message_id.encode()) - 1
    for size in range(256):
        changed = data[:at] + bytes((size,)) + data[at + 1 :]
        assert made.judge(changed, PlainSends(made.LIMITS), usual=False) == (size == len(message_id))


def test_a_fraction_of_a_second_is_read_alike_only_as_protobuf_writes_it() -> None:
    asked = request(b"x" * 200)
    asked.messages[0].system_properties.born_timestamp.nanos = 345_678_901
    asked.messages.add().CopyFrom(asked.messages[0])
    data = asked.SerializeToString()
    nanos = b"\x10" + made.varint(345_678_901)
    at = data.rindex(nanos) + 1
    reader = PlainSends(made.LIMITS)
    taken = 0
    for place in range(at, at + 5):
        for byte in range(256):
            changed = data[:place] + bytes((byte,)) + data[place + 1 :]
            taken += made.judge(changed, reader, usual=False)
    assert 512 <= taken < 5 * 256


@pytest.mark.parametrize(
    "unusual",
    [
        {"message_group": "g"},
        {"priority": 0},
        {"lite_topic": "l"},
        {"message_type": 4},
        {"body_encoding": 2},
        {"delivery_attempt": 1},
        {"receipt_handle": ""},
        {"message_id": " "},
        {"tag": ""},
        {"tag": "a|b"},
    ],
)
def test_anything_else_is_left_to_the_full_path(unusual: dict[str, object]) -> None:
    assert PlainSends(made.LIMITS).read(request(**unusual).SerializeToString()) is None


def test_no_request_and_one_of_two_topics_are_left_to_the_full_path() -> None:
    two = request()
    two.messages.add().CopyFrom(two.messages[0])
    two.messages[1].topic.name = "u"
    reader = PlainSends(made.LIMITS)
    assert reader.read(b"") is None
    assert reader.read(two.SerializeToString()) is None
    two.messages[1].topic.name, two.messages[0].topic.resource_namespace = "t", "ns"
    assert reader.read(two.SerializeToString()) is None


def test_the_limits_are_those_of_the_full_path() -> None:
    limits = MessageLimits(body_bytes_max=10, properties_max=1, properties_bytes_max=30, delay_max_ms=1)
    reader = PlainSends(limits)
    assert reader.read(request(b"x" * 10).SerializeToString()) is not None
    assert reader.read(request(b"x" * 11).SerializeToString()) is None
    asked = request()
    asked.messages[0].user_properties["k"] = "abc"
    assert reader.read(asked.SerializeToString()) is not None
    asked.messages[0].user_properties["k"] = "a" * 30
    assert reader.read(asked.SerializeToString()) is None
    asked.messages[0].user_properties["k"] = "a" * 10
    asked.messages[0].system_properties.keys.append("b" * 20)
    assert reader.read(asked.SerializeToString()) is None
    del asked.messages[0].system_properties.keys[:]
    assert reader.read(asked.SerializeToString()) is not None
    asked.messages[0].user_properties["k"] = "a"
    asked.messages[0].user_properties["l"] = "a"
    assert reader.read(asked.SerializeToString()) is None


@pytest.mark.parametrize("topic", ["", "t"])
@pytest.mark.parametrize("queue_id", [-1, 0, 7, 60_000])
@pytest.mark.parametrize("broker", ["", made.BROKER])
def test_a_block_is_read_from_its_bytes_with_and_without_the_topic_in_its_messages(
    topic: str, queue_id: int, broker: str
) -> None:
    asked = block(3, queue_id, topic=topic, broker=broker)
    assert made.judge_block(asked.SerializeToString(), READER, usual=True)
    read = READER.read_block(asked.SerializeToString())
    assert read is not None
    assert (read.topic, read.queue_id) == ("t", queue_id)
    assert [definition_pb2.Message.FromString(one.head).topic.name for one in read.entries] == ["t"] * 3


def test_a_block_for_another_broker_and_one_of_no_message_or_several_topics_are_left_to_the_full_path() -> None:
    mixed, bare, foreign = block(), block(topic="t"), block(topic="u")
    mixed.messages[1].topic.name = "t"
    bare.messages[1].ClearField("topic")
    unnamed = block()
    unnamed.queue.topic = ""
    for asked in (mixed, bare, foreign, unnamed, block(0), block(broker="b"), data_pb2.PublishRequest()):
        assert READER.read_block(asked.SerializeToString()) is None
    data = block().SerializeToString()
    for size in range(len(data)):
        assert READER.read_block(data[:size]) is None or made.judge_block(data[:size], READER, usual=False)
    again = data + common_pb2.Queue(topic="u").SerializeToString()
    assert READER.read_block(again) is None


@pytest.mark.parametrize("at", ["first", "later"])
def test_any_byte_that_changes_in_a_message_is_seen_whether_it_is_like_the_one_before_it(at: str) -> None:
    """Those behind the first are compared with it, and nothing that matters may be taken over from it."""
    asked = block(3)
    asked.messages[0].user_properties["k"] = asked.messages[1].user_properties["k"] = "v"
    asked.messages[2].user_properties["k"] = "v"
    data = asked.SerializeToString()
    begin = data.index(b"id0" if at == "first" else b"id1") - 20
    taken = 0
    for place in range(begin, begin + 70):
        for byte in (
            0x00,
            0x01,
            0x0A,
            0x10,
            0x1A,
            0x22,
            0x30,
            0x41,
            0x7F,
            0x80,
            0xFF,
            data[place] ^ 1,
            data[place] + 1 & 255,
        ):
            changed = data[:place] + bytes((byte,)) + data[place + 1 :]
            taken += made.judge_block(changed, READER, usual=False)
    assert 70 < taken < 70 * 12


def test_in_a_block_of_unlike_messages_each_is_read() -> None:
    asked = block(60)
    for number, message in enumerate(asked.messages):
        message.user_properties["n"] = str(number // 2 if number < 40 else 0)
        message.system_properties.tag = "AB"[number % 3 % 2]
    assert made.judge_block(asked.SerializeToString(), READER, usual=True)
