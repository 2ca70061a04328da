"""Keeps how often messages were delivered to members that pull, across members, hand-overs and restarts.

Called by `rpc.data` (members say which deliveries begin), by `loops.locking` (a holder vanished, let go, or came anew)
and by `rpc.groups` (who takes a queue learns what is known of it). `core.delivery_counts` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from evenq.model import MessageQueue
from evenq_broker.core import delivery_counts
from evenq_broker.core.queue_progress import QueueProgress

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["counted", "deliveries_of", "let_go", "vanished"]


def vanished(broker: Broker, group: str, queues: Iterable[MessageQueue]) -> None:
    """Their holder is gone without having let go: what it had in hand may have been delivered. What is told of the
    queues next is recorded behind this.
    """
    ops = []
    for queue in queues:
        progress = _progress(broker, group, queue)
        if progress is not None:
            end = broker.store.queue_range(progress.topic_id, progress.queue_id)[1]
            op = delivery_counts.presume(progress, end)
            if op is not None:
                ops.append(op)
    if ops and broker.store.failure is None:
        broker.journal.record(*ops)


def let_go(broker: Broker, group: str, queue: MessageQueue) -> None:
    """The queue's holder has nothing in hand: it has just got the queue, or lets go and has said what it leaves."""
    progress = _progress(broker, group, queue)
    if progress is not None:
        progress.handed = progress.committed


def counted(
    broker: Broker, progress: QueueProgress, deliveries: Mapping[int, int], *, given_until: int
) -> asyncio.Future[None] | None:
    """A member's word; done when it is durable. None: it is about nothing that is unfinished.

    What is known already is recorded once more: an earlier call about it may have ended before its record was safe.
    """
    end = broker.store.queue_range(progress.topic_id, progress.queue_id)[1]
    within = {offset: number for offset, number in deliveries.items() if offset < end}
    delivery_counts.count(progress, within, given_until=min(given_until, end))
    op = delivery_counts.record_of(progress, within)
    return None if op is None else broker.journal.record(op)


def deliveries_of(broker: Broker, group: str, queue: MessageQueue) -> tuple[int, list[tuple[int, int]]]:
    """See `delivery_counts.known`."""
    progress = _progress(broker, group, queue)
    return (0, []) if progress is None else delivery_counts.known(progress)


def _progress(broker: Broker, group: str, queue: MessageQueue) -> QueueProgress | None:
    config, topic = broker.groups.get(group), broker.topics.get(queue.topic)
    if config is None or topic is None:
        return None
    return broker.progress.queue(config.group_id, topic.topic_id, queue.queue_id)
