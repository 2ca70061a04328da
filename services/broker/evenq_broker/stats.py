"""Counters of the hot paths: plain integers, written on the event loop, read by `metrics` at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # RocketMQ 5, buckets of the message size
AGE_BOUNDS_MS = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000, 60_000, 600_000, 3_600_000)


class TopicStats:
    """Counters of messages that were stored in one topic."""

    __slots__ = ("bytes_in", "duplicates", "messages_in", "sizes", "unexported")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.duplicates = 0
        """Retries of stored messages: answered, not stored again."""
        self.unexported = 0
        """Messages that retention deleted although they were in no file of the topic's table."""
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)
        """Stored messages by size, not cumulative; the last entry counts those larger than all bounds."""

    def came(self, sizes: Sequence[int]) -> None:
        """Counts stored messages; `sizes` in bytes."""
        self.messages_in += len(sizes)
        self.bytes_in += sum(sizes)
        if max(sizes, default=0) <= SIZE_BOUNDS[0]:
            self.sizes[0] += len(sizes)
        elif (at := bisect_left(SIZE_BOUNDS, min(sizes))) == bisect_left(SIZE_BOUNDS, max(sizes)):
            self.sizes[at] += len(sizes)  # a block of rows: thousands of similar size
        else:
            for size in sizes:
                self.sizes[bisect_left(SIZE_BOUNDS, size)] += 1


class GroupTopicStats:
    """Counters of messages that one group took from one topic."""

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
        """Messages that a filter skipped."""
        self.given_back = 0
        """Failed deliveries: the consumer gave the message back for redelivery."""
        self.timed_out = 0
        """Deliveries that were not acknowledged in time, or whose client was lost."""
        self.ages = [0] * (len(AGE_BOUNDS_MS) + 1)
        """First deliveries by age of the message, not cumulative; the last entry counts those older than all bounds."""
        self.ages_total_ms = 0

    def went(self, stored_ms: Sequence[int], now_ms: int) -> None:
        """Counts first deliveries. `stored_ms`: when the messages were stored, ascending, ms since the epoch."""
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
    """All counters of one broker since its start. Counters of a deleted topic or group are dropped."""

    __slots__ = ("group_topics", "topics")

    def __init__(self) -> None:
        self.topics: dict[int, TopicStats] = {}
        self.group_topics: dict[tuple[int, int], GroupTopicStats] = {}

    def topic(self, topic_id: int) -> TopicStats:
        """Returns the counters of one topic; the first call creates them."""
        stats = self.topics.get(topic_id)
        if stats is None:
            stats = self.topics[topic_id] = TopicStats()
        return stats

    def group_topic(self, group_id: int, topic_id: int) -> GroupTopicStats:
        """Returns the counters of one group on one topic; the first call creates them."""
        stats = self.group_topics.get((group_id, topic_id))
        if stats is None:
            stats = self.group_topics[group_id, topic_id] = GroupTopicStats()
        return stats

    @property
    def messages_in(self) -> int:
        return sum(entry.messages_in for entry in self.topics.values())

    @property
    def messages_out(self) -> int:
        return sum(entry.messages_out for entry in self.group_topics.values())

    def forget_topic(self, topic_id: int) -> None:
        self.topics.pop(topic_id, None)
        for key in [key for key in self.group_topics if key[1] == topic_id]:
            del self.group_topics[key]

    def forget_group(self, group_id: int) -> None:
        for key in [key for key in self.group_topics if key[0] == group_id]:
            del self.group_topics[key]
