"""Topics and groups that a follower can name, from the state records of its copied log.

`loops.replication.follower_reads` fills it in the log's order, with the records from which a leader's catalog is
replayed. A follower changes none of it. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from evenq.model import GroupConfig, TopicConfig
from evenq_broker.core.state.name_table import NameTable
from evenq_broker.core.state.records import GroupPut, GroupRemoved, KeyPut, TopicPut, TopicRemoved, decode
from evenq_broker.core.state.uids import local_uid, queue_uid

KINDS = (KeyPut, TopicPut, GroupPut, TopicRemoved, GroupRemoved)


def names_something(record: bytes) -> bool:
    """Returns True if `CopiedNames` uses anything of a state record; on any thread. Raises StoreCorrupted."""
    return any(isinstance(op, KINDS) for op in decode(record))


class CopiedNames:
    """Names of one copied log, up to where it was read."""

    def __init__(self) -> None:
        self.topics: NameTable[TopicConfig] = NameTable(attrgetter("topic_id"))
        self.groups: NameTable[GroupConfig] = NameTable(attrgetter("group_id"))
        self._key = b""

    def apply(self, record: bytes) -> None:
        """Applies one state record, or a snapshot. Raises StoreCorrupted."""
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
        """Returns the uid of what the offsets of this topic's queues count, as its leader does."""
        if not topic.uid:
            topic = replace(topic, uid=local_uid(self._key, topic.topic_id) * 2)
        return queue_uid(topic.uid, self._key, topic.topic_id)
