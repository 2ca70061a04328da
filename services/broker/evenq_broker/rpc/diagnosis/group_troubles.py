"""What a group cannot handle, for `DescribeGroup` and for the diagnosis: retries that wait, deliveries that failed,
dead letters, the age of the oldest unread message. Each broker tells its own numbers; the one asked adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable

from evenq.model import GroupConfig
from evenq.model.names import RETRY_PREFIX
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.loops.dead_letters.replay import waiting_letters
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["add_troubles", "deliveries_of", "retries_of", "troubles_of"]


def troubles_of(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    group: GroupConfig,
    queues: Iterable[admin_pb2.GroupQueue],
    *,
    delayed_retries: DelayedRetries,
) -> admin_pb2.GroupTroubles:
    """Of this broker alone; `queues`: the group's here, with the times of their oldest messages."""
    given_back, timed_out, _ = deliveries_of(runtime, group)
    return admin_pb2.GroupTroubles(
        retries_waiting=retries_of(catalog, ledger, group, delayed_retries=delayed_retries),
        given_back=given_back,
        timed_out=timed_out,
        dead_letters=waiting_letters(catalog, ledger, group.name)[1],
        oldest_ms=min((at.next_store_ms for at in queues if at.lag and at.next_store_ms), default=0),
    )


def add_troubles(total: admin_pb2.GroupTroubles, other: admin_pb2.GroupTroubles) -> None:
    """Add another broker's numbers."""
    total.retries_waiting += other.retries_waiting
    total.given_back += other.given_back
    total.timed_out += other.timed_out
    total.dead_letters += other.dead_letters
    total.oldest_ms = min((one for one in (total.oldest_ms, other.oldest_ms) if one), default=0)


def retries_of(catalog: Catalog, ledger: Ledger, group: GroupConfig, *, delayed_retries: DelayedRetries) -> int:
    """Messages that failed and wait for their next delivery here, as of now."""
    waiting = sum(queue.waiting() for queue in ledger.progress.queues() if queue.group_id == group.group_id)
    topic = catalog.topics.get(RETRY_PREFIX + group.name)
    return waiting + (delayed_retries.waiting(topic.topic_id) if topic is not None else 0)


def deliveries_of(runtime: Runtime, group: GroupConfig) -> tuple[int, int, int]:
    """Deliveries given back, not finished in time, and all of them, since this broker's start."""
    counted = [stats for (group_id, _), stats in runtime.stats.group_topics.items() if group_id == group.group_id]
    return (
        sum(stats.given_back for stats in counted),
        sum(stats.timed_out for stats in counted),
        sum(stats.messages_out for stats in counted),
    )
