"""Counters go away with their topic or group."""

from evenq_broker.stats import BrokerStats


def counted() -> BrokerStats:
    stats = BrokerStats()
    for topic_id in (1, 2):
        stats.topic(topic_id).messages_in += 10
        for group_id in (7, 8):
            stats.group_topic(group_id, topic_id).messages_out += 3
    return stats


def test_counters_are_kept_by_topic_and_group() -> None:
    stats = counted()
    stats.topic(1).messages_in += 1
    assert (stats.messages_in, stats.messages_out) == (21, 12)
    assert stats.group_topic(7, 1).messages_out == 3


def test_a_deleted_topic_takes_its_counters_along() -> None:
    stats = counted()
    stats.forget_topic(1)
    assert (stats.messages_in, stats.messages_out) == (10, 6)
    assert sorted(stats.group_topics) == [(7, 2), (8, 2)]


def test_a_deleted_group_takes_its_counters_along() -> None:
    stats = counted()
    stats.forget_group(7)
    assert sorted(stats.group_topics) == [(8, 1), (8, 2)]
    assert stats.messages_in == 20
