"""Plain messages read from their bytes: the same verdicts and the same stored bytes as the full path."""

import sys
from pathlib import Path

import pytest
from evenq_broker.core.plain_sends import PlainSends
from evenq_broker.core.validation import Limits

from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import plain_requests as made


def request(body: bytes = b"x", **system: object) -> service_pb2.SendMessageRequest:
    asked = service_pb2.SendMessageRequest()
    message = asked.messages.add(body=body)
    message.topic.name = "t"
    for name, value in {"message_id": "id", **system}.items():
        setattr(message.system_properties, name, value)
    message.system_properties.born_timestamp.seconds = made.NOW_MS // 1_000
    return asked


@pytest.mark.parametrize("seed", range(4))
def test_generated_requests_are_judged_and_stored_as_the_full_path_does(seed: int) -> None:
    usual, read = made.run(1_500, seed)
    assert usual > 300, "the generator makes requests that are as usual"
    assert read >= usual


def test_what_sdks_send_is_read_from_its_bytes() -> None:
    asked = request(b"x" * 200, tag="A", body_encoding=1, message_type=1, born_host="localhost", queue_id=3)
    asked.messages[0].system_properties.keys.append("order-1")
    asked.messages[0].user_properties["k"] = "v"
    asked.messages.add().CopyFrom(asked.messages[0])
    assert made.judge(asked.SerializeToString(), PlainSends(made.LIMITS), usual=True)


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
    limits = Limits(body_bytes_max=10, properties_max=1, properties_bytes_max=4, delay_max_ms=1)
    reader = PlainSends(limits)
    assert reader.read(request(b"x" * 10).SerializeToString()) is not None
    assert reader.read(request(b"x" * 11).SerializeToString()) is None
    asked = request()
    asked.messages[0].user_properties["k"] = "abc"
    assert reader.read(asked.SerializeToString()) is not None
    asked.messages[0].user_properties["k"] = "abcd"
    assert reader.read(asked.SerializeToString()) is None
    asked.messages[0].user_properties["k"] = "a"
    asked.messages[0].user_properties["l"] = "a"
    assert reader.read(asked.SerializeToString()) is None
