"""A topic leaves this broker: nothing more is sent to it here, what is stored is read to its end, then it is forgotten.

Called again and again, like `loops.resizing.resizing`: the state between the steps is the topic itself, closed for
writing. It ends when every group has finished all of it here; what no group has read, and delayed messages, keep it
unless the caller wants it gone. `rpc.resizing.leaving` has made sure before that it is somewhere else, and that no
broker brings it back by use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq.model import MessageType, Permission, TopicConfig
from evenq_broker.core.cluster.unfinished import Unfinished
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.resizing.resizing import known_topic, permit, unfinished
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

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


async def leave(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    name: str,
    *,
    close_unread: bool,
    force: bool,
    membership: GroupTables,
) -> tuple[TopicConfig, Remains]:
    """One step: the topic as it is (or was) here, and what is (or was) left of it. `close_unread` ends it with what no
    group has read, `force` in any case. Raises TopicNotFound, IllegalTopic.
    """
    before = catalog.topics.get(name)
    closed = before.permission.without_writing() if before is not None else Permission.NONE
    topic = await permit(runtime, catalog, ledger, name, closed)
    remains = Remains((), 0, 0, 0)
    for _ in range(2):  # the second look sees a send that had its queue since before the closing
        await ledger.store.flush()
        remains = _remains(runtime, catalog, ledger, topic, membership=membership)
        if not force and (remains.unfinished or remains.delayed or (remains.unread and not close_unread)):
            return topic, remains
    await catalog.delete_topic(name)
    return topic, replace(remains, gone=True)


def look(
    runtime: Runtime, catalog: Catalog, ledger: Ledger, name: str, *, membership: GroupTables
) -> tuple[TopicConfig, Remains]:
    """What `leave` would find HERE, as it is now; nothing is changed. Raises as it does."""
    topic = known_topic(runtime, catalog, name)
    return topic, _remains(runtime, catalog, ledger, topic, membership=membership)


def _remains(
    runtime: Runtime, catalog: Catalog, ledger: Ledger, topic: TopicConfig, *, membership: GroupTables
) -> Remains:
    left = tuple(unfinished(runtime, catalog, ledger, topic, range(topic.queues_ever), membership=membership))
    ranges = [ledger.store.queue_range(topic.topic_id, queue_id) for queue_id in range(topic.queues_ever)]
    stored = sum(high - low for low, high in ranges)
    return Remains(
        unfinished=left,
        unread=0 if left or ledger.progress.groups_of(topic.topic_id) else stored,
        delayed=ledger.store.timers.stats.pending if topic.message_type in _TIMED else 0,
        stored=stored,
    )
