"""What becomes different when a message dies, and when its letter is replayed."""

from __future__ import annotations

import zlib

import pytest
from evenq_broker.core.dead_letters.letter import (
    Death,
    LetterFields,
    LetterOrigin,
    Reason,
    mark_dead,
    mark_replayed,
    replay_group,
)

from evenq.model import MessageType, TopicConfig
from evenq.model.names import GROUP_LENGTH_MAX

DEATH = Death(TopicConfig(name="t", topic_id=1), "a", 3, 7, 16, Reason.ATTEMPTS)


def fields(kind: str = "NORMAL", *, group: str | None = None, priority: int = 0) -> LetterFields:
    return LetterFields(
        message_id="id", message_type=kind, message_group=group, priority=priority, origin=None,
        properties={"color": "red"},
    )  # fmt: skip


def target(kind: MessageType) -> TopicConfig:
    return TopicConfig(name="t", topic_id=1, read_queues=5, write_queues=5, message_type=kind)


def test_a_letter_tells_its_origin_and_is_a_plain_message() -> None:
    one = fields("FIFO", group="lane")
    mark_dead(one, DEATH)
    assert (one.message_type, one.message_group, one.origin) == ("NORMAL", None, LetterOrigin("t", "id"))
    assert one.properties == {
        "color": "red", "DLQ_ORIGIN_TOPIC": "t", "DLQ_ORIGIN_MESSAGE_ID": "id", "DLQ_ORIGIN_BROKER": "a",
        "DLQ_ORIGIN_QUEUE_ID": "3", "DLQ_ORIGIN_OFFSET": "7", "DLQ_REASON": "attempts", "DLQ_ATTEMPTS": "16",
        "DLQ_ORIGIN_MESSAGE_GROUP": "lane", "DLQ_ORIGIN_TYPE": "FIFO",
    }  # fmt: skip


def test_who_dies_twice_keeps_its_first_origin_and_kind() -> None:
    one = fields("FIFO", group="lane")
    mark_dead(one, DEATH)
    mark_dead(one, DEATH._replace(topic=TopicConfig(name="%DLQ%g", topic_id=2), attempts=0))
    assert one.origin == LetterOrigin("t", "id")
    assert (one.properties["DLQ_ORIGIN_TYPE"], one.properties["DLQ_ATTEMPTS"]) == ("FIFO", "16")


@pytest.mark.parametrize(
    ("kind", "topic", "becomes", "group"),
    [
        ("FIFO", MessageType.FIFO, "FIFO", "lane"),
        ("FIFO", MessageType.MIXED, "FIFO", "lane"),
        ("FIFO", MessageType.NORMAL, "NORMAL", None),
        ("NORMAL", MessageType.FIFO, "FIFO", "id"),
        ("NORMAL", MessageType.MIXED, "NORMAL", None),
    ],
)
def test_a_replayed_letter_is_what_its_topic_takes(
    kind: str, topic: MessageType, becomes: str, group: str | None
) -> None:
    one = fields(kind, group="lane" if kind == "FIFO" else None)
    mark_dead(one, DEATH)
    queue_id = mark_replayed(one, target(topic), 7)
    assert (one.message_type, one.message_group, one.origin) == (becomes, group, None)
    assert one.properties == {"color": "red"}
    assert queue_id == (7 % 5 if group is None else zlib.crc32(group.encode()) % 5)


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (3, 3), (9, 4)])
def test_a_priority_chooses_the_queue_of_its_level(priority: int, queue_id: int) -> None:
    assert mark_replayed(fields(priority=priority), target(MessageType.PRIORITY), 7) == queue_id


def test_the_group_of_a_replay_has_a_name_of_its_own_that_is_short_enough() -> None:
    long = "g" * GROUP_LENGTH_MAX
    assert replay_group("g") == "%DLQ%g"
    assert len(replay_group(long)) <= GROUP_LENGTH_MAX
    assert replay_group(long) != replay_group(long[:-1] + "h")
