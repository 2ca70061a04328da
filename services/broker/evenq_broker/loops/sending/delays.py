"""Delayed messages that are due: each becomes a message in the append that ends its timer, so once (RD-13 to 18)."""

from __future__ import annotations

import logging

from evenq.store import Append, StoredTimer, TimerAppend
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.staging.rows import STAGED_ROWS
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE
from evenq_broker.loops.staging.staging import Staging
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.transactions.transactions import Transactions

log = logging.getLogger(__name__)


def due(
    catalog: Catalog,
    timers: list[StoredTimer],
    *,
    transactions: Transactions,
    staging: Staging,
    delayed_retries: DelayedRetries,
) -> list[Append | TimerAppend | None]:
    """Returns the successors of due timers: a message, the next check, the renewed rows; or None."""
    return [
        _due(catalog, timer, transactions=transactions, staging=staging, delayed_retries=delayed_retries)
        for timer in timers
    ]


def _due(
    catalog: Catalog,
    timer: StoredTimer,
    *,
    transactions: Transactions,
    staging: Staging,
    delayed_retries: DelayedRetries,
) -> Append | TimerAppend | None:
    if timer.kind == HALF_MESSAGE:
        return transactions.due(timer)
    return (
        staging.due(timer) if timer.kind == STAGED_ROWS else _message(catalog, timer, delayed_retries=delayed_retries)
    )


def _message(catalog: Catalog, timer: StoredTimer, *, delayed_retries: DelayedRetries) -> Append | None:
    topic = catalog.topics.by_id(timer.topic_id)
    if topic is None:
        log.info(
            "a delayed message is dropped: its topic, id %d, was deleted",
            timer.topic_id,
            extra={"due_ms": timer.due_ms},
        )
        return None
    delayed_retries.due(timer.topic_id, timer.log_offset)
    queue_id = timer.queue_id % topic.write_queues
    return Append(timer.topic_id, queue_id, timer.tag_hash, timer.born_ms, timer.head, timer.system)
