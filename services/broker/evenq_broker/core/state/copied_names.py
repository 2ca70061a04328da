"""The topics that a follower can name: what the state records of its copied log say of them, and nothing else.

Filled in the log's order by `loops.replication.follower_reads`, with the records that a leader's catalog is replayed
from. A follower changes none of it. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from evenq.model import GroupConfig, TopicConfig
from evenq_broker.core.state.name_table import NameTable
from evenq_broker.core.state.records import GroupPut, GroupRemoved, KeyPut, TopicPut, TopicRemoved, decode
from evenq_broker.core.state.uids import local_uid, queue_uid

__all__ = ["CopiedNames", "names_something"]


KINDS = (KeyPut, TopicPut, GroupPut, TopicRemoved, GroupRemoved)


def names_something(record: bytes) -> bool:
    """Whether `CopiedNames` learns anything from a state record; on any thread. Raises StoreCorrupted."""
    return any(isinstance(op, KINDS) for op in decode(record))


class CopiedNames:
    """Of one copied log, up to where it was read."""

    def __init__(self) -> None:
        self.topics: NameTable[TopicConfig] = NameTable(attrgetter("topic_id"))
        self.groups: NameTable[GroupConfig] = NameTable(attrgetter("group_id"))
        self._key = b""

    def apply(self, record: bytes) -> None:
        """Take in one state record, or a snapshot. Raises StoreCorrupted."""
        for op in decode(record):
            match op:
                case TopicPut(topic):
                    self.topics.put(topic)
                case GroupPut(group):
                    self.groups.put(group)
                case TopicRemoved(number) if (gone := self.topics.by_id(number)) is not None:
                    self.topics.remove(gone.name)
                case GroupRemoved(number) if (left := self.groups.by_id(number)) is not None:
                    self.groups.remove(left.name)
                case KeyPut(key):
                    self._key = key
                case _:
                    pass

    def queue_uid(self, topic: TopicConfig) -> str:
        """What the offsets of this topic's queues count, as its leader says it."""
        if not topic.uid:
            topic = replace(topic, uid=local_uid(self._key, topic.topic_id) * 2)
        return queue_uid(topic.uid, self._key, topic.topic_id)
