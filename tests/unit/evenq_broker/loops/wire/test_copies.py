"""Copies of stored messages: what they change, and that they keep everything else."""

from __future__ import annotations

from typing import Any

from evenq_broker.core.dead_letters.letter import Death, Reason
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE, HalfHeader, pack_half
from evenq_broker.loops.wire.copies import (
    attempt_of,
    given_up_message,
    letter,
    lite_topic_of,
    origin_topic,
    properties_of,
    replayed,
    retry_copy,
)

from evenq.model import MessageQueue, MessageType, TopicConfig
from evenq.store import StoredMessage, StoredTimer
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

TOPIC = TopicConfig(name="t", topic_id=1, write_queues=4, message_type=MessageType.FIFO)
DEAD = TopicConfig(name="%DLQ%g", topic_id=2)
DEATH = Death(TOPIC, "a", 3, 7, 16, Reason.FORWARDED)


def stored(head: bytes = b"", system: bytes = b"") -> StoredMessage:
    return StoredMessage(1, 3, 7, 0, 900, 1_000, 42, head, system)


def message(**system: Any) -> StoredMessage:
    head = definition_pb2.Message(body=b"body", user_properties={"color": "red"})
    head.topic.name, head.topic.resource_namespace = "t", "n"
    properties = definition_pb2.SystemProperties(message_id="id", tag="tag", keys=["k"], **system)
    return stored(head.SerializeToString(), properties.SerializeToString())


def test_a_letter_and_its_replay_keep_everything_else_of_the_message() -> None:
    original = message(message_type=definition_pb2.FIFO, message_group="lane", delivery_attempt=3, trace_context="x")
    dead = letter(original, DEATH, DEAD)
    assert (dead.topic_id, dead.queue_id, dead.tag_hash, dead.born_ms) == (2, 0, 42, 900)
    head, system = properties_of(stored(dead.head, dead.system))
    assert (head.topic.name, head.topic.resource_namespace, head.body) == ("%DLQ%g", "", b"body")
    assert (system.tag, list(system.keys), system.trace_context) == ("tag", ["k"], "x")
    assert system.message_type == definition_pb2.NORMAL
    assert not system.HasField("message_group")
    assert not system.HasField("delivery_attempt")
    assert origin_topic(stored(dead.head, dead.system)) == "t"

    again = replayed(stored(dead.head, dead.system), TOPIC, 1)
    head, system = properties_of(stored(again.head, again.system))
    assert dict(head.user_properties) == {"color": "red"}
    assert (system.message_type, system.message_group) == (definition_pb2.FIFO, "lane")
    assert system.trace_context == "x"
    assert not system.HasField("dead_letter_queue")


def test_a_kind_that_the_protocol_does_not_know_is_replayed_as_a_plain_message() -> None:
    head = definition_pb2.Message(body=b"b", user_properties={"DLQ_ORIGIN_TYPE": "ODD"}).SerializeToString()
    again = replayed(stored(head), TopicConfig(name="m", topic_id=3, message_type=MessageType.MIXED), 0)
    assert properties_of(stored(again.head, again.system))[1].message_type == definition_pb2.NORMAL


def test_a_retry_copy_says_which_delivery_it_will_be_and_keeps_its_first_origin() -> None:
    retry = TopicConfig(name="%RETRY%g", topic_id=5)
    first = retry_copy(message(), MessageQueue("t", "a", 3), retry, due_ms=77, attempt=2)
    assert (first.due_ms, first.topic_id, first.born_ms) == (77, 5, 900)
    once = stored(first.head, first.system)
    assert (attempt_of(once), origin_topic(once)) == (2, "t")
    second = retry_copy(once, MessageQueue("%RETRY%g", "b", 0), retry, due_ms=78, attempt=3)
    twice = stored(second.head, second.system)
    assert (attempt_of(twice), origin_topic(twice)) == (3, "t")


def test_a_dead_letter_names_the_queue_and_offset_where_the_message_was_sent_to() -> None:
    """Not those of its last copy in the retry topic."""
    retry = TopicConfig(name="%RETRY%g", topic_id=5)
    original = message()
    copy = retry_copy(original, MessageQueue("t", "a", 3), retry, due_ms=77, attempt=2)
    death = Death(retry, "b", 0, 99, 16, Reason.ATTEMPTS)
    dead = letter(stored(copy.head, copy.system), death, TopicConfig(name="%DLQ%g", topic_id=6))
    properties = dict(properties_of(stored(dead.head, dead.system))[0].user_properties)
    place = (properties["DLQ_ORIGIN_TOPIC"], properties["DLQ_ORIGIN_BROKER"], properties["DLQ_ORIGIN_QUEUE_ID"])
    assert (*place, properties["DLQ_ORIGIN_OFFSET"]) == ("t", "a", "3", str(original.queue_offset))
    assert not [key for key in properties if key.startswith("RETRY_")]
    again = letter(stored(dead.head, dead.system), death, TopicConfig(name="%DLQ%h", topic_id=7))
    assert dict(properties_of(stored(again.head, again.system))[0].user_properties) == properties


def test_a_copy_of_an_older_version_names_no_place_that_is_not_its_own() -> None:
    head, system = properties_of(message())
    system.dead_letter_queue.topic, system.dead_letter_queue.message_id = "t", "id"
    death = Death(TopicConfig(name="%RETRY%g", topic_id=5), "b", 0, 99, 16, Reason.ATTEMPTS)
    old = stored(head.SerializeToString(), system.SerializeToString())
    dead = letter(old, death, TopicConfig(name="%DLQ%g", topic_id=6))
    properties = properties_of(stored(dead.head, dead.system))[0].user_properties
    assert properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert "DLQ_ORIGIN_OFFSET" not in properties


def test_a_given_up_transaction_tells_its_topic_and_its_checks() -> None:
    original = message(message_type=definition_pb2.TRANSACTION)
    header = HalfHeader(1, 0, 15, 0, "c")
    timer = StoredTimer(1, 0, 5, 900, 1_000, 42, 0, HALF_MESSAGE, pack_half(header, original.head), original.system)
    made = given_up_message(timer, header, TOPIC, TopicConfig(name="given-up", topic_id=9))
    head, system = properties_of(stored(made.head, made.system))
    assert dict(head.user_properties) == {"color": "red", "TRANSACTION_CHECK_TIMES": "15", "REAL_TOPIC": "t"}
    assert (head.topic.name, system.message_type) == ("given-up", definition_pb2.NORMAL)
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "id")


def test_a_lite_topic_is_read_off_the_stored_message() -> None:
    assert lite_topic_of(message(lite_topic="chat-1")) == "chat-1"
    assert lite_topic_of(message()) == ""
