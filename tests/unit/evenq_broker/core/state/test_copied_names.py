"""What a follower's log says of topics is what its leader's catalog says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evenq_broker.core.state.copied_names import CopiedNames, names_something
from evenq_broker.core.state.records import (
    Committed,
    GroupPut,
    GroupRemoved,
    KeyPut,
    TopicPut,
    TopicRemoved,
    encode,
)
from evenq_broker.core.state.uids import local_uid, queue_uid

from evenq.errors import StoreCorrupted
from evenq.model import GroupConfig, TopicConfig

KEY = b"k" * 32
TOPIC = TopicConfig(name="t", topic_id=3, uid="abc")


def test_topics_and_groups_come_change_and_go_in_the_logs_order() -> None:
    names = CopiedNames()
    names.apply(encode([KeyPut(KEY), TopicPut(TOPIC), GroupPut(GroupConfig(name="g", group_id=2))]))
    assert names.topics.get("t") == TOPIC
    assert names.groups.get("g") is not None
    wider = replace(TOPIC, read_queues=9, write_queues=9)
    names.apply(encode([Committed(2, 3, 0, 17), TopicPut(wider)]))
    assert names.topics.get("t") == wider
    names.apply(encode([TopicRemoved(3), GroupRemoved(2), TopicRemoved(99), GroupRemoved(99)]))
    assert names.topics.get("t") is None
    assert names.groups.get("g") is None


def test_what_offsets_count_is_named_as_the_leader_names_it() -> None:
    """Also for a topic of a journal without uids, which gets one when the leader opens it."""
    names = CopiedNames()
    names.apply(encode([KeyPut(KEY), TopicPut(TOPIC)]))
    assert names.queue_uid(TOPIC) == queue_uid("abc", KEY, 3)
    assert names.queue_uid(replace(TOPIC, uid="")) == queue_uid(local_uid(KEY, 3) * 2, KEY, 3)


def test_a_record_of_another_program_is_refused() -> None:
    with pytest.raises(StoreCorrupted):
        CopiedNames().apply(b"\xff\x00")


def test_most_records_name_nothing() -> None:
    assert not names_something(encode([Committed(2, 3, 0, 17)]))
    for one in (KeyPut(KEY), TopicPut(TOPIC), TopicRemoved(3), GroupRemoved(2)):
        assert names_something(encode([Committed(2, 3, 0, 17), one]))
