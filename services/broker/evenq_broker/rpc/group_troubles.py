"""What a group cannot handle, for `DescribeGroup` and for the diagnosis: retries that wait, deliveries that failed,
dead letters, the age of the oldest unread message. Each broker tells its own numbers; the one asked adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenq.model import GroupConfig
from evenq.model.names import RETRY_PREFIX
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.loops.replaying import waiting_letters

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["add_troubles", "deliveries_of", "retries_of", "troubles_of"]


def troubles_of(broker: Broker, group: GroupConfig, queues: Iterable[admin_pb2.GroupQueue]) -> admin_pb2.GroupTroubles:
    """Of this broker alone; `queues`: the group's here, with the times of their oldest messages."""
    given_back, timed_out, _ = deliveries_of(broker, group)
    return admin_pb2.GroupTroubles(
        retries_waiting=retries_of(broker, group),
        given_back=given_back,
        timed_out=timed_out,
        dead_letters=waiting_letters(broker, group.name)[1],
        oldest_ms=min((at.next_store_ms for at in queues if at.lag and at.next_store_ms), default=0),
    )


def add_troubles(found: admin_pb2.GroupTroubles, other: admin_pb2.GroupTroubles) -> None:
    """Add another broker's numbers."""
    found.retries_waiting += other.retries_waiting
    found.given_back += other.given_back
    found.timed_out += other.timed_out
    found.dead_letters += other.dead_letters
    found.oldest_ms = min((one for one in (found.oldest_ms, other.oldest_ms) if one), default=0)


def retries_of(broker: Broker, group: GroupConfig) -> int:
    """Messages that failed and wait for their next delivery here, as of now."""
    waiting = sum(queue.waiting() for queue in broker.progress.queues() if queue.group_id == group.group_id)
    topic = broker.topics.get(RETRY_PREFIX + group.name)
    return waiting + (broker.delayed_retries.waiting(topic.topic_id) if topic is not None else 0)


def deliveries_of(broker: Broker, group: GroupConfig) -> tuple[int, int, int]:
    """Deliveries given back, not finished in time, and all of them, since this broker's start."""
    counted = [stats for (group_id, _), stats in broker.stats.group_topics.items() if group_id == group.group_id]
    return (
        sum(stats.given_back for stats in counted),
        sum(stats.timed_out for stats in counted),
        sum(stats.messages_out for stats in counted),
    )
