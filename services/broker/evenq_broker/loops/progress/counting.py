"""Counts deliveries to members that pull, across members, hand-overs and restarts.

Called by `rpc.delivery.data` (begun deliveries), by `loops.groups.locking` (a holder vanished, released a queue, or
returned) and by `rpc.groups.groups` (counts for a new holder). `core.delivery.counts` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from evenq.model import MessageQueue
from evenq_broker.core.delivery import counts as delivery_counts
from evenq_broker.core.delivery.queue_progress import QueueProgress
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger


def vanished(kernel: Kernel, group: str, queues: Iterable[MessageQueue]) -> None:
    """Presumes deliveries of queues whose holder is gone without a release. Later records follow this one."""
    ops = []
    for queue in queues:
        progress = _progress(kernel, group, queue)
        if progress is not None:
            _passed(kernel.ledger, progress)
            end = kernel.ledger.store.queue_range(progress.topic_id, progress.queue_id)[1]
            op = delivery_counts.presume(progress, end)
            if op is not None:
                ops.append(op)
    if ops and kernel.ledger.store.failure is None:
        kernel.ledger.journal.record(*ops)


def let_go(kernel: Kernel, group: str, queue: MessageQueue) -> None:
    """Notes that the queue's holder has no messages: it just got the queue, or released it and reported the rest."""
    progress = _progress(kernel, group, queue)
    if progress is not None:
        _passed(kernel.ledger, progress)
        progress.handed = progress.committed


def _passed(ledger: Ledger, progress: QueueProgress) -> None:
    """Commits messages that the holder's filter left out: the next holder may have another filter."""
    end = progress.passing()
    progress.passed = (0, 0)
    if end > progress.next and ledger.store.failure is None:
        key = (progress.group_id, progress.topic_id, progress.queue_id)
        ledger.progress.commit(*key, end)
        ledger.journal.record(Committed(*key, end))


def counted(
    ledger: Ledger, progress: QueueProgress, deliveries: Mapping[int, int], *, given_until: int
) -> asyncio.Future[None] | None:
    """Records a member's report; done when it is durable. None: it names no unfinished message. A known count is
    recorded again: an earlier call with it may have ended before its record was durable.
    """
    end = ledger.store.queue_range(progress.topic_id, progress.queue_id)[1]
    within = {offset: number for offset, number in deliveries.items() if offset < end}
    delivery_counts.count(progress, within, given_until=min(given_until, end))
    op = delivery_counts.record_of(progress, within)
    return None if op is None else ledger.journal.record(op)


def deliveries_of(kernel: Kernel, group: str, queue: MessageQueue) -> tuple[int, list[tuple[int, int]]]:
    """See `delivery_counts.known`."""
    progress = _progress(kernel, group, queue)
    return (0, []) if progress is None else delivery_counts.known(progress)


def _progress(kernel: Kernel, group: str, queue: MessageQueue) -> QueueProgress | None:
    config, topic = kernel.catalog.groups.get(group), kernel.catalog.topics.get(queue.topic)
    if config is None or topic is None:
        return None
    return kernel.ledger.progress.queue(config.group_id, topic.topic_id, queue.queue_id)
