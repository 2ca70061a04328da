"""Retry of a message that was given back: a delayed copy for `%RETRY%group`, on this broker, one queue (RD-2, 5, 8).

The copy is an ordinary delayed message, a timer of the store: it survives a crash and is delivered once. Its field
`delivery_attempt` is the number of its next delivery, `dead_letter_queue` its origin; a reader shows that topic.
"""

from __future__ import annotations

from evenq.errors import Error
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.model.delay_levels import DelayLevels
from evenq.model.names import RETRY_PREFIX
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.copies import attempt_of, retry_copy


def retry_delay_ms(levels: DelayLevels, level: int, attempts: int) -> int:
    """Returns the delay of the requested level (RD-7), for 0 of the level of `attempts` (RD-6)."""
    return levels.delay_ms(level or levels.retry_level(attempts))


async def attempts_before(ledger: Ledger, group: GroupConfig, topic: TopicConfig, queue_id: int, offset: int) -> int:
    """Returns the deliveries of a message of the group's retry topic, this one included; 0 in other topics."""
    if topic.name != RETRY_PREFIX + group.name:
        return 0
    copies = await ledger.store.read_at(topic.topic_id, queue_id, [offset])
    return max(map(attempt_of, copies), default=0)


async def retry_later(
    kernel: Kernel,
    group: GroupConfig,
    topic: TopicConfig,
    queue_id: int,
    offset: int,
    *,
    level: int,
    attempts: int,
    delayed_retries: DelayedRetries,
) -> bool:
    """Stores the delayed copy of the message at `offset`; False: it does not exist. Raises errors of a send."""
    messages = await kernel.ledger.store.read_at(topic.topic_id, queue_id, [offset])
    if not messages:
        return False
    target = await kernel.catalog.create_topic(f"{RETRY_PREFIX}{group.name}", queues=1, system=True)
    levels = kernel.runtime.delay_levels
    delay_ms = retry_delay_ms(levels, level, attempts) if level else group.retry.delay_ms(attempts, levels=levels)
    due_ms = kernel.runtime.clock.now_ms() + delay_ms
    origin = MessageQueue(topic.name, kernel.runtime.settings.broker_name, queue_id)
    copy = retry_copy(messages[0], origin, target, due_ms=due_ms, attempt=attempts + 1)
    delayed_retries.put(target.topic_id)
    try:
        await kernel.ledger.store.append((), timers=(copy,))
    except Error:
        delayed_retries.not_stored(target.topic_id)
        raise
    kernel.runtime.stats.group_topic(group.group_id, topic.topic_id).redeliveries += 1
    return True
