"""Giving a message back for later: a delayed copy for `%RETRY%group`, on this broker, one queue (RD-2, RD-5, RD-8).

The copy is an ordinary delayed message, a timer of the store, so it survives a crash and comes once. It says in
`delivery_attempt` which delivery it will be, and in `dead_letter_queue` where it comes from; a reader shows that topic.
"""

from __future__ import annotations

from evenq.errors import Error
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.model.delay_levels import DelayLevels
from evenq.model.names import RETRY_PREFIX
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.copies import attempt_of, retry_copy
from evenq_broker.runtime import Runtime

__all__ = ["attempts_before", "retry_delay_ms", "retry_later"]


def retry_delay_ms(levels: DelayLevels, level: int, attempts: int) -> int:
    """How long a message given back after `attempts` deliveries waits (RD-6): the level asked for (RD-7), and for 0 the
    one of its attempts.
    """
    return levels.delay_ms(level or levels.retry_level(attempts))


async def attempts_before(ledger: Ledger, group: GroupConfig, topic: TopicConfig, queue_id: int, offset: int) -> int:
    """Deliveries of a message of the group's retry topic, this one included, as its copy says; 0 in other topics. A
    member that always tells the first one would else be given the message for ever.
    """
    if topic.name != RETRY_PREFIX + group.name:
        return 0
    copies = await ledger.store.read_at(topic.topic_id, queue_id, [offset])
    return max(map(attempt_of, copies), default=0)


async def retry_later(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    group: GroupConfig,
    topic: TopicConfig,
    queue_id: int,
    offset: int,
    *,
    level: int,
    attempts: int,
    delayed_retries: DelayedRetries,
) -> bool:
    """Store the delayed copy of the message at `offset`; its progress stays as it is.

    False if there is no such message (any more). Raises what a send raises.
    """
    messages = await ledger.store.read_at(topic.topic_id, queue_id, [offset])
    if not messages:
        return False
    target = await catalog.create_topic(f"{RETRY_PREFIX}{group.name}", queues=1, system=True)
    levels = runtime.delay_levels
    delay_ms = retry_delay_ms(levels, level, attempts) if level else group.retry.delay_ms(attempts, levels=levels)
    due_ms = runtime.clock.now_ms() + delay_ms
    origin = MessageQueue(topic.name, runtime.settings.broker_name, queue_id)
    copy = retry_copy(messages[0], origin, target, due_ms=due_ms, attempt=attempts + 1)
    delayed_retries.put(target.topic_id)
    try:
        await ledger.store.append((), timers=(copy,))
    except Error:
        delayed_retries.not_stored(target.topic_id)
        raise
    runtime.stats.group_topic(group.group_id, topic.topic_id).redeliveries += 1
    return True
