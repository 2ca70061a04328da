"""The topics of this broker, by name and by number.

The journal fills it at the start and with every change (`Broker.create_topic`, `delete_topic`); handlers and loops
only read. A number is never used twice, so that a handle or a queue folder of a deleted topic can never name another
one.
"""

from __future__ import annotations

from evenq.model import TopicConfig

__all__ = ["TopicTable"]


class TopicTable:
    """name -> TopicConfig and number -> TopicConfig."""

    __slots__ = ("_by_id", "_by_name", "_next_id", "version")

    def __init__(self) -> None:
        self._by_name: dict[str, TopicConfig] = {}
        self._by_id: dict[int, TopicConfig] = {}
        self._next_id = 1
        self.version = 0
        """Grows with each change."""

    def get(self, name: str) -> TopicConfig | None:
        """The topic of this name, or None."""
        return self._by_name.get(name)

    def by_id(self, topic_id: int) -> TopicConfig | None:
        """The topic of this number, or None."""
        return self._by_id.get(topic_id)

    def all(self) -> list[TopicConfig]:
        """Every topic in ascending name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def put(self, topic: TopicConfig) -> None:
        """Add a topic, or replace the one of this name."""
        old = self._by_name.get(topic.name)
        if old == topic:
            return
        if old is not None:
            self._by_id.pop(old.topic_id, None)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._next_id = max(self._next_id, topic.topic_id + 1)
        self.version += 1

    def remove(self, name: str) -> TopicConfig | None:
        """Forget a topic; gives it back, or None if it was unknown."""
        topic = self._by_name.pop(name, None)
        if topic is not None:
            self._by_id.pop(topic.topic_id, None)
            self.version += 1
        return topic

    def __len__(self) -> int:
        return len(self._by_name)

    def next_id(self) -> int:
        """A number that no topic of this broker ever had."""
        return self._next_id

    def reserve(self, next_id: int) -> None:
        """Never give numbers below `next_id`: said by a snapshot, which does not know the topics deleted before it."""
        self._next_id = max(self._next_id, next_id)
