"""Moving a message to the dead-letter topic of its group: `%DLQ%group`, on this broker, one queue.

Only after the copy is as safe as any send is the original finished (D3), so a crash in between leaves two, never none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX
from evenq_broker.core.delivery import QueueProgress
from evenq_broker.core.journal import Acked
from evenq_broker.core.letters import Death, Reason, letter

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["bury", "settle", "to_dead_letters"]


async def to_dead_letters(
    broker: Broker,
    group: GroupConfig,
    topic: TopicConfig,
    queue: QueueProgress,
    offset: int,
    reason: Reason = Reason.ATTEMPTS,
) -> None:
    """Copy the message at `offset` with its origin told in `dead_letter_queue` and in user properties, then finish it.
    Raises what a send raises.

    A message that retention has already removed is only finished.
    """
    entry = queue.pending.get(offset)
    attempts = entry.attempt if entry is not None else 0
    await bury(broker, group, topic, queue.queue_id, offset, attempts=attempts, reason=reason)
    await settle(broker, queue, offset)


async def bury(
    broker: Broker,
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
    found = await broker.store.read_at(topic.topic_id, queue_id, [offset])
    if not found:
        return False
    if topic.name == DLQ_PREFIX + group.name:
        return True  # a group that works on its own dead letters: a copy behind the last would be tried for ever
    target = await broker.create_topic(f"{DLQ_PREFIX}{group.name}", queues=1, system=True)
    death = Death(topic, broker.settings.broker_name, queue_id, offset, attempts, reason)
    await broker.store.append((letter(found[0], death, target),))
    broker.stats.group_topic(group.group_id, topic.topic_id).dead_letters += 1
    return True


async def settle(broker: Broker, queue: QueueProgress, offset: int) -> None:
    """Finish one message durably, whatever its state, and wake whoever waited for it."""
    if broker.progress.finish(queue, offset):
        await broker.journal.record(Acked(queue.group_id, queue.topic_id, queue.queue_id, offset))
    if queue.ready:
        broker.waiting.ready(queue.group_id, queue.topic_id, queue.queue_id)
