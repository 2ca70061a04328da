"""A topic leaves this broker: nothing more is sent to it here, what is stored is read to its end, then it is forgotten.

Called again and again, like `loops.resizing`: the state between the steps is the topic itself, closed for writing. It
ends when every group has finished all of it here; what no group has read, and delayed messages, keep it unless told
otherwise. `rpc.leaving` has made sure before that it is somewhere else, and that nobody brings it back by use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenq.model import MessageType, Permission, TopicConfig
from evenq_broker.loops.resizing import Unfinished, known_topic, permit, unfinished

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Remains", "leave", "look"]

_TIMED = {MessageType.DELAY, MessageType.TRANSACTION, MessageType.MIXED}


@dataclass(frozen=True, slots=True)
class Remains:
    """What is stored of a topic that is to leave, or left with it."""

    unfinished: tuple[Unfinished, ...]
    unread: int
    """Messages, if no group reads the topic at all."""
    delayed: int
    """Delayed messages and open transactions of the broker: they are not counted by topic, so each may be of this one;
    0 for a topic that takes none.
    """
    stored: int
    gone: bool = False


async def leave(broker: Broker, name: str, *, close_unread: bool, force: bool) -> tuple[TopicConfig, Remains]:
    """One step: the topic as it is (or was) here, and what is (or was) left of it. `close_unread` ends it with what no
    group has read, `force` in any case. Raises TopicNotFound, IllegalTopic.
    """
    before = broker.topics.get(name)
    closed = before.permission.without_writing() if before is not None else Permission.NONE
    topic = await permit(broker, name, closed)
    remains = Remains((), 0, 0, 0)
    for _ in range(2):  # the second look sees a send that had its queue since before the closing
        await broker.store.flush()
        remains = _remains(broker, topic)
        if not force and (remains.unfinished or remains.delayed or (remains.unread and not close_unread)):
            return topic, remains
    await broker.delete_topic(name)
    return topic, replace(remains, gone=True)


def look(broker: Broker, name: str) -> tuple[TopicConfig, Remains]:
    """What `leave` would find HERE, as it is now; nothing is changed. Raises as it does."""
    topic = known_topic(broker, name)
    return topic, _remains(broker, topic)


def _remains(broker: Broker, topic: TopicConfig) -> Remains:
    left = tuple(unfinished(broker, topic, range(topic.queues_ever)))
    ranges = [broker.store.queue_range(topic.topic_id, queue_id) for queue_id in range(topic.queues_ever)]
    stored = sum(high - low for low, high in ranges)
    return Remains(
        unfinished=left,
        unread=0 if left or broker.progress.groups_of(topic.topic_id) else stored,
        delayed=broker.store.timers.stats.pending if topic.message_type in _TIMED else 0,
        stored=stored,
    )
