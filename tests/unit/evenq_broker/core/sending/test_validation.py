"""What a message looks like once it is checked: ours wins over what the client wrote."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import pytest
from evenq_broker.core.delivery.tags import tag_hash
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_proofs.v2_requests import v2_message

from evenq import errors
from evenq.model import MessageType, TopicConfig
from evenq.model.lanes import lane_of
from evenq.store import TimerAppend
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

LIMITS = MessageLimits(
    body_bytes_max=100, properties_max=2, properties_bytes_max=20, delay_max_ms=1_000, store_host="h:1"
)
TOPIC = TopicConfig(name="t", topic_id=7, message_type=MessageType.MIXED)


def message(body: bytes = b"body") -> Any:
    return v2_message("t", "id", body)


def stored(made: Any) -> tuple[Any, definition_pb2.SystemProperties, Any]:
    append = checked(made, TOPIC, LIMITS, now_ms=1_500)
    head = definition_pb2.Message.FromString(append.head)
    return append, definition_pb2.SystemProperties.FromString(append.system), head


def test_the_server_fills_in_what_it_knows() -> None:
    append, system, head = stored(message())
    assert not head.HasField("system_properties")
    assert (append.topic_id, append.queue_id, append.tag_hash, append.born_ms) == (7, -1, 0, 1_500)
    assert system.body_digest.type == definition_pb2.CRC32
    assert system.body_digest.checksum == f"{zlib.crc32(b'body'):X}"
    assert (system.message_type, system.body_encoding) == (definition_pb2.NORMAL, definition_pb2.IDENTITY)
    assert (system.store_host, system.message_id) == ("h:1", "id")


def test_what_only_a_delivery_may_say_is_taken_out() -> None:
    made = message()
    sent = made.system_properties
    sent.receipt_handle, sent.delivery_attempt, sent.store_host = "forged", 99, "elsewhere"
    sent.dead_letter_queue.topic = "x"
    sent.invisible_duration.seconds = 9
    sent.body_digest.type = 9  # type: ignore[assignment]
    sent.body_digest.checksum = "forged"
    set_ms(sent.store_timestamp, 5)
    _, system, _ = stored(made)
    for name in ("receipt_handle", "delivery_attempt", "dead_letter_queue", "invisible_duration", "store_timestamp"):
        assert not system.HasField(name), name
    assert system.store_host == "h:1"
    assert system.body_digest.type == definition_pb2.CRC32
    assert len(system.body_digest.checksum) == 8


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (definition_pb2.CRC32, f"{zlib.crc32(b'body'):X}"),
        (definition_pb2.CRC32, f"{zlib.crc32(b'body'):08x}"),
        (definition_pb2.MD5, hashlib.md5(b"body").hexdigest()),
        (definition_pb2.SHA1, hashlib.sha1(b"body").hexdigest()),
    ],
)
def test_every_kind_of_digest_is_compared_with_the_body(kind: Any, checksum: str) -> None:
    made = message()
    made.system_properties.body_digest.type, made.system_properties.body_digest.checksum = kind, checksum
    kept = stored(made)[1].body_digest
    assert (kept.type, kept.checksum) == (kind, checksum.upper()), "it was compared, and is delivered"
    damaged = message(b"bodY")
    damaged.system_properties.body_digest.type, damaged.system_properties.body_digest.checksum = kind, checksum
    with pytest.raises(errors.MessageCorrupted, match="damaged on its way"):
        stored(damaged)


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000])
@pytest.mark.parametrize("field", ["born_timestamp", "delivery_timestamp"])
def test_a_time_that_protobuf_does_not_allow_is_refused(field: str, nanos: int) -> None:
    made = message()
    getattr(made.system_properties, field).nanos = nanos
    with pytest.raises(errors.BadRequest, match=f"{field} has 0 seconds and {nanos} nanoseconds"):
        stored(made)
    for seconds in (253_402_300_800, -62_135_596_801, (1 << 63) - 1):
        made = message()
        getattr(made.system_properties, field).seconds = seconds
        with pytest.raises(errors.BadRequest, match=f"{field} has {seconds} seconds"):
            stored(made)


def test_a_message_group_and_a_delivery_time_exclude_each_other() -> None:
    made = message()
    made.system_properties.message_group = "lane"
    set_ms(made.system_properties.delivery_timestamp, 2_000)
    with pytest.raises(errors.MessageTypeConflict, match="'lane' and a delivery time"):
        stored(made)


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY", "__CRC32#"])
def test_names_of_the_protocol_are_no_property_keys(name: str) -> None:
    made = message()
    made.user_properties[name] = "x"
    with pytest.raises(errors.IllegalPropertyKey, match="is reserved by the protocol"):
        stored(made)


def test_tag_keys_and_properties_share_one_limit() -> None:
    made = message()
    made.user_properties["k"] = "1234"
    made.system_properties.tag = "12345"
    made.system_properties.keys.extend(["12345", "12345"])
    stored(made)
    made = message()
    made.user_properties["k"] = "1234"
    made.system_properties.tag = "12345"
    made.system_properties.keys.extend(["12345", "123456"])
    with pytest.raises(errors.PropertiesTooLarge, match="take 21 bytes, the limit is 20"):
        stored(made)
    for text in ("tag", "keys"):
        made = message()
        if text == "tag":
            made.system_properties.tag = "x" * 21
        else:
            made.system_properties.keys.append("x" * 21)
        with pytest.raises(errors.PropertiesTooLarge):
            stored(made)


def test_a_message_group_decides_the_queue_and_the_type() -> None:
    made = message()
    made.system_properties.message_group = "lane"
    made.system_properties.queue_id = 3
    append, system, _ = stored(made)
    assert append.queue_id == lane_of("lane", TOPIC.write_queues)
    assert system.message_type == definition_pb2.FIFO


def test_a_compressed_body_is_delivered_plain_and_bounded() -> None:
    made = message(zlib.compress(b"x" * 100))
    made.system_properties.body_encoding = definition_pb2.GZIP
    _, system, head = stored(made)
    assert head.body == b"x" * 100
    assert system.body_digest.checksum == f"{zlib.crc32(b'x' * 100):X}"
    bomb = message(zlib.compress(b"x" * 10_000))
    bomb.system_properties.body_encoding = definition_pb2.GZIP
    with pytest.raises(errors.BodyTooLarge):
        stored(bomb)
    broken = message(b"no such thing")
    broken.system_properties.body_encoding = definition_pb2.GZIP
    with pytest.raises(errors.MessageCorrupted):
        stored(broken)


def test_tags_have_wide_hashes() -> None:
    made = message()
    made.system_properties.tag = "red"
    assert stored(made)[0].tag_hash == tag_hash("red") != tag_hash("blue")


def test_each_limit_is_told_with_its_number() -> None:
    large = message(b"x" * 101)
    with pytest.raises(errors.BodyTooLarge, match="101 bytes, the limit is 100"):
        stored(large)
    many = message()
    many.user_properties.update({"a": "", "b": "", "c": ""})
    with pytest.raises(errors.PropertiesTooLarge, match="3 user properties, the limit is 2"):
        stored(many)
    long = message()
    long.user_properties["k"] = "v" * 30
    with pytest.raises(errors.PropertiesTooLarge, match="31 bytes, the limit is 20"):
        stored(long)


@pytest.mark.parametrize(
    ("due_ms", "later"), [(2_500, True), (1_501, True), (1_500, False), (0, False), (-5_000, False)]
)
def test_a_delayed_message_is_a_timer_unless_its_time_has_come(due_ms: int, later: bool) -> None:
    made = message()
    set_ms(made.system_properties.delivery_timestamp, due_ms)
    found, system, _ = stored(made)
    assert isinstance(found, TimerAppend) is later
    assert system.message_type == definition_pb2.DELAY
    if later:
        assert (found.due_ms, found.kind, found.topic_id, found.born_ms) == (due_ms, 1, 7, 1_500)


def test_a_delivery_time_over_the_limit_is_refused() -> None:
    made = message()
    set_ms(made.system_properties.delivery_timestamp, 2_501)
    with pytest.raises(errors.IllegalDeliveryTime, match="1001 ms from now, the limit is 1000"):
        checked(made, TOPIC, LIMITS, now_ms=1_500)
