"""Counters of the hot paths: plain integers, written on the loop, read by `metrics.py` at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["AGE_BOUNDS_MS", "SIZE_BOUNDS", "BrokerStats", "GroupTopicStats", "TopicStats"]

SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # RocketMQ 5, buckets of the message size
AGE_BOUNDS_MS = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000, 60_000, 600_000, 3_600_000)


class TopicStats:
    """What came into one topic."""

    __slots__ = ("bytes_in", "duplicates", "messages_in", "sizes")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.duplicates = 0
        """Retries of messages that were stored already: answered, not stored."""
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)
        """Stored messages by size, not summed up; the last is "larger than all bounds"."""

    def came(self, sizes: Sequence[int]) -> None:
        """Count messages that were stored, by their bytes."""
        self.messages_in += len(sizes)
        self.bytes_in += sum(sizes)
        if max(sizes, default=0) <= SIZE_BOUNDS[0]:
            self.sizes[0] += len(sizes)
        elif (at := bisect_left(SIZE_BOUNDS, min(sizes))) == bisect_left(SIZE_BOUNDS, max(sizes)):
            self.sizes[at] += len(sizes)  # a block of rows: thousands that are much alike
        else:
            for size in sizes:
                self.sizes[bisect_left(SIZE_BOUNDS, size)] += 1


class GroupTopicStats:
    """What one group took out of one topic."""

    __slots__ = (
        "acks",
        "ages",
        "ages_total_ms",
        "bytes_out",
        "dead_letters",
        "filtered",
        "given_back",
        "messages_out",
        "redeliveries",
        "timed_out",
    )

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.acks = 0
        self.redeliveries = 0
        self.dead_letters = 0
        self.filtered = 0
        """Messages that a filter left out."""
        self.given_back = 0
        """Deliveries that their consumer gave back for another one: it failed."""
        self.timed_out = 0
        """Deliveries that ended unfinished: they were not acknowledged in their time, or their client was lost."""
        self.ages = [0] * (len(AGE_BOUNDS_MS) + 1)
        """First deliveries by the age of the message, not summed up; the last is "older than all bounds"."""
        self.ages_total_ms = 0

    def went(self, stored_ms: Sequence[int], now_ms: int) -> None:
        """Count first deliveries of messages that were stored at these times, ascending, ms since the epoch."""
        if not stored_ms:
            return
        count = len(stored_ms)
        self.ages_total_ms += max(0, now_ms * count - sum(stored_ms))
        oldest = bisect_left(AGE_BOUNDS_MS, now_ms - stored_ms[0])
        if oldest == bisect_left(AGE_BOUNDS_MS, now_ms - stored_ms[-1]):
            self.ages[oldest] += count
        else:
            for at_ms in stored_ms:
                self.ages[bisect_left(AGE_BOUNDS_MS, now_ms - at_ms)] += 1


class BrokerStats:
    """All counters of one broker since its start. Series go away with their topic or group."""

    __slots__ = ("group_topics", "topics")

    def __init__(self) -> None:
        self.topics: dict[int, TopicStats] = {}
        self.group_topics: dict[tuple[int, int], GroupTopicStats] = {}

    def topic(self, topic_id: int) -> TopicStats:
        """The counters of one topic, made when first asked for."""
        stats = self.topics.get(topic_id)
        if stats is None:
            stats = self.topics[topic_id] = TopicStats()
        return stats

    def group_topic(self, group_id: int, topic_id: int) -> GroupTopicStats:
        """The counters of one group on one topic, made when first asked for."""
        stats = self.group_topics.get((group_id, topic_id))
        if stats is None:
            stats = self.group_topics[group_id, topic_id] = GroupTopicStats()
        return stats

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
