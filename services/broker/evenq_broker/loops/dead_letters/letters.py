"""Moving a message to the dead-letter topic of its group: `%DLQ%group`, on this broker, one queue.

Only after the copy is as safe as any send is the original finished (D3), so a crash in between leaves two, never none.
"""

from __future__ import annotations

from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX
from evenq_broker.core.dead_letters.letter import Death, Reason
from evenq_broker.core.delivery.progress import QueueProgress
from evenq_broker.core.state.records import Acked
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.copies import letter
from evenq_broker.runtime import Runtime

__all__ = ["bury", "settle", "to_dead_letters"]


async def to_dead_letters(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    group: GroupConfig,
    topic: TopicConfig,
    queue: QueueProgress,
    offset: int,
    reason: Reason = Reason.ATTEMPTS,
    *,
    long_polls: LongPolls,
) -> None:
    """Copy the message at `offset` with its origin in `dead_letter_queue` and in user properties, then finish it.
    Raises what a send raises.

    A message that retention has already removed is only finished.
    """
    entry = queue.pending.get(offset)
    attempts = entry.attempt if entry is not None else 0
    await bury(runtime, catalog, ledger, group, topic, queue.queue_id, offset, attempts=attempts, reason=reason)
    await settle(ledger, queue, offset, long_polls=long_polls)


async def bury(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    group: GroupConfig,
    topic: TopicConfig,
    queue_id: int,
    offset: int,
    *,
    attempts: int = 0,
    reason: Reason = Reason.SENT_BACK,
) -> bool:
    """Copy the message at `offset` of the topic into the group's dead-letter topic; its progress stays as it is.
    `attempts`: deliveries it had, 0 = not known.

    A letter of the group's own dead-letter topic stays where it is. False if there is no such message (any more).
    Raises what a send raises.
    """
    messages = await ledger.store.read_at(topic.topic_id, queue_id, [offset])
    if not messages:
        return False
    if topic.name == DLQ_PREFIX + group.name:
        return True  # a group that works on its own dead letters: a copy behind the last would be tried for ever
    target = await catalog.create_topic(f"{DLQ_PREFIX}{group.name}", queues=1, system=True)
    death = Death(topic, runtime.settings.broker_name, queue_id, offset, attempts, reason)
    await ledger.store.append((letter(messages[0], death, target),))
    runtime.stats.group_topic(group.group_id, topic.topic_id).dead_letters += 1
    return True


async def settle(ledger: Ledger, queue: QueueProgress, offset: int, *, long_polls: LongPolls) -> None:
    """Finish one message durably, whatever its state, and wake the polls that waited for it."""
    if ledger.progress.finish(queue, offset):
        await ledger.journal.record(Acked(queue.group_id, queue.topic_id, queue.queue_id, offset))
    if queue.ready:
        long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
