"""Counters of the hot paths: plain integers, written on the loop, read by `metrics.py` at a scrape."""

from __future__ import annotations

__all__ = ["GroupTopicStats", "Stats", "TopicStats"]


class TopicStats:
    """What came into one topic."""

    __slots__ = ("bytes_in", "duplicates", "messages_in")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.duplicates = 0
        """Retries of messages that were stored already: answered, not stored."""


class GroupTopicStats:
    """What one group took out of one topic."""

    __slots__ = ("acks", "bytes_out", "dead_letters", "filtered", "messages_out", "redeliveries")

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.acks = 0
        self.redeliveries = 0
        self.dead_letters = 0
        self.filtered = 0
        """Messages that a filter left out."""


class Stats:
    """All counters of one broker since its start. Series go away with their topic or group."""

    __slots__ = ("group_topics", "topics")

    def __init__(self) -> None:
        self.topics: dict[int, TopicStats] = {}
        self.group_topics: dict[tuple[int, int], GroupTopicStats] = {}

    def topic(self, topic_id: int) -> TopicStats:
        """The counters of one topic, made when first asked for."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = TopicStats()
        return found

    def group_topic(self, group_id: int, topic_id: int) -> GroupTopicStats:
        """The counters of one group on one topic, made when first asked for."""
        found = self.group_topics.get((group_id, topic_id))
        if found is None:
            found = self.group_topics[group_id, topic_id] = GroupTopicStats()
        return found

    @property
    def messages_in(self) -> int:
        """Messages stored."""
        return sum(entry.messages_in for entry in self.topics.values())

    @property
    def messages_out(self) -> int:
        """Messages delivered."""
        return sum(entry.messages_out for entry in self.group_topics.values())

    def forget_topic(self, topic_id: int) -> None:
        """Drop the series of a deleted topic."""
        self.topics.pop(topic_id, None)
        for key in [key for key in self.group_topics if key[1] == topic_id]:
            del self.group_topics[key]

    def forget_group(self, group_id: int) -> None:
        """Drop the series of a deleted group."""
        for key in [key for key in self.group_topics if key[0] == group_id]:
            del self.group_topics[key]
