"""Uids of topics and of their queues."""

import random

from evenq_broker.core.state.uids import TopicUids, local_uid, queue_uid


def test_a_topic_has_the_uid_that_others_tell_unless_it_was_deleted() -> None:
    uids = TopicUids(random.Random(1))
    assert uids.shared(["", "one", "two"]) == "one"
    uids.end("one")
    assert uids.shared(["", "one", "two"]) == "two"
    new = uids.shared(["one"])
    assert len(new) == 16
    assert new != uids.shared([])


def test_queues_have_another_uid_in_another_topic_store_or_place_of_it() -> None:
    keys = (b"k" * 32, b"l" * 32)
    assert len({queue_uid(topic, key, number) for topic in ("t", "u") for key in keys for number in (1, 2)}) == 8
    assert local_uid(keys[0], 1) == local_uid(keys[0], 1)
