"""Keeps how often messages were delivered to members that pull, across members, hand-overs and restarts.

Called by `rpc.delivery.data` (members say which deliveries begin), by `loops.groups.locking` (a holder vanished, let
go, or came anew) and by `rpc.groups.groups` (who takes a queue learns what is known of it). `core.delivery.counts`
decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from evenq.model import MessageQueue
from evenq_broker.core.delivery import counts as delivery_counts
from evenq_broker.core.delivery.queue_progress import QueueProgress
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger

__all__ = ["counted", "deliveries_of", "let_go", "vanished"]


def vanished(catalog: Catalog, ledger: Ledger, group: str, queues: Iterable[MessageQueue]) -> None:
    """Their holder is gone without having let go: what it had in hand may have been delivered. What is said of the
    queues next is recorded behind this.
    """
    ops = []
    for queue in queues:
        progress = _progress(catalog, ledger, group, queue)
        if progress is not None:
            _passed(ledger, progress)
            end = ledger.store.queue_range(progress.topic_id, progress.queue_id)[1]
            op = delivery_counts.presume(progress, end)
            if op is not None:
                ops.append(op)
    if ops and ledger.store.failure is None:
        ledger.journal.record(*ops)


def let_go(catalog: Catalog, ledger: Ledger, group: str, queue: MessageQueue) -> None:
    """The queue's holder has nothing in hand: it has just got the queue, or lets go and has said what it leaves."""
    progress = _progress(catalog, ledger, group, queue)
    if progress is not None:
        _passed(ledger, progress)
        progress.handed = progress.committed


def _passed(ledger: Ledger, progress: QueueProgress) -> None:
    """Commit what the holder's filter left out since its last word: the next one may have another filter."""
    end = progress.passing()
    progress.passed = (0, 0)
    if end > progress.next and ledger.store.failure is None:
        key = (progress.group_id, progress.topic_id, progress.queue_id)
        ledger.progress.commit(*key, end)
        ledger.journal.record(Committed(*key, end))


def counted(
    ledger: Ledger, progress: QueueProgress, deliveries: Mapping[int, int], *, given_until: int
) -> asyncio.Future[None] | None:
    """A member's word; done when it is durable. None: it is about nothing that is unfinished.

    What is known already is recorded once more: an earlier call about it may have ended before its record was safe.
    """
    end = ledger.store.queue_range(progress.topic_id, progress.queue_id)[1]
    within = {offset: number for offset, number in deliveries.items() if offset < end}
    delivery_counts.count(progress, within, given_until=min(given_until, end))
    op = delivery_counts.record_of(progress, within)
    return None if op is None else ledger.journal.record(op)


def deliveries_of(
    catalog: Catalog, ledger: Ledger, group: str, queue: MessageQueue
) -> tuple[int, list[tuple[int, int]]]:
    """See `delivery_counts.known`."""
    progress = _progress(catalog, ledger, group, queue)
    return (0, []) if progress is None else delivery_counts.known(progress)


def _progress(catalog: Catalog, ledger: Ledger, group: str, queue: MessageQueue) -> QueueProgress | None:
    config, topic = catalog.groups.get(group), catalog.topics.get(queue.topic)
    if config is None or topic is None:
        return None
    return ledger.progress.queue(config.group_id, topic.topic_id, queue.queue_id)
