"""Where a group begins on the queues of a topic, and whether anything there waits for it.

The first receive of a topic decides the start of all its queues, so that nothing sent later is missed. A receive that
waits at another broker counts, too (`loops.polls.cluster_polls`), and so do the settings that an official SDK sends
before its consumer's start returns (`rpc.clients.telemetry`): what is sent between the two is not missed.
"""

from __future__ import annotations

import asyncio

from evenq.model import GroupConfig, StartFrom, TopicConfig
from evenq.model.names import DLQ_PREFIX
from evenq_broker.core.delivery.progress import READY
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.records import Op
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger

__all__ = ["begin", "deliverable", "is_young"]


def begin(
    catalog: Catalog,
    ledger: Ledger,
    group: GroupConfig,
    topic: TopicConfig,
    *,
    from_start: bool = False,
    young: bool = False,
    membership: GroupTables,
) -> asyncio.Future[None] | None:
    """Let the group begin on each queue of the topic where it has not: at the end, if it never read the topic and is
    configured so, else at the beginning, as a queue that came later is read whole. `from_start`: at the beginning in
    any case, because the group waited before there was anything. `young`: at the beginning of queues that are (RB-46).

    Gives what is done once the start is on disk, None if nothing began. A receive waits for it: "from now on" must mean
    the same after a crash.
    """
    progress, store = ledger.progress, ledger.store
    known = [progress.queue(group.group_id, topic.topic_id, one) is not None for one in range(topic.read_queues)]
    if all(known):
        return None
    at_end = not any(known) and not from_start and _from_last(catalog, group, topic, membership=membership)
    ops: list[Op] = []
    for one in range(topic.read_queues):
        low, high = store.queue_range(topic.topic_id, one)
        from_end = at_end and not (young and is_young(ledger, topic.topic_id, one))
        op = progress.start(group.group_id, topic.topic_id, one, high if from_end else low)
        if op is not None:
            ops.append(op)
    return ledger.journal.record(*ops)


def is_young(ledger: Ledger, topic_id: int, queue_id: int) -> bool:
    """Whether the queue still has its first message, and it can be read without the disk (RB-46)."""
    low, high = ledger.store.queue_range(topic_id, queue_id)
    if not low == 0 < high:
        return False
    return ledger.store.read_hot(topic_id, queue_id, 0, count_max=1, bytes_max=1, tag_hashes=None) is not None


def _from_last(catalog: Catalog, group: GroupConfig, topic: TopicConfig, *, membership: GroupTables) -> bool:
    """Dead letters are always read from the first one: a group that looks at them wants those that are there."""
    if group.start_from is not StartFrom.LAST or topic.name.startswith(DLQ_PREFIX):
        return False
    return not _waited(catalog, group, topic, membership=membership)


def _waited(catalog: Catalog, group: GroupConfig, topic: TopicConfig, *, membership: GroupTables) -> bool:
    """True if a member wanted the topic before there was one: all that is in it came after the member."""
    made_ms = catalog.made_ms.get(topic.name)
    return made_ms is not None and any(
        member.joined_ms <= made_ms and member.reads(topic.name) for member in membership.members.members(group.name)
    )


def deliverable(
    catalog: Catalog, ledger: Ledger, group: GroupConfig, topic: TopicConfig, *, membership: GroupTables
) -> bool:
    """True if a receive of the group would find a message on some queue of the topic, filters aside."""
    for queue_id in range(topic.read_queues):
        queue = ledger.progress.queue(group.group_id, topic.topic_id, queue_id)
        low, high = ledger.store.queue_range(topic.topic_id, queue_id)
        if queue is None:
            if high > low and not _from_last(catalog, group, topic, membership=membership):
                return True
            continue
        if max(queue.next, low) < high and not queue.reading and ledger.progress.room(queue) > 0:
            return True
        if any((entry := queue.pending.get(one)) is not None and entry.deadline_ms == READY for one in queue.ready):
            return True
    return False
