"""The queue, topic and group that a call of `evenq.v1.Data` names, and the time that it may wait."""

from __future__ import annotations

from typing import Protocol

from evenq.errors import (
    BadRequest,
    GroupNotFound,
    IllegalOffset,
    QueueReplaced,
    TopicNotFound,
)
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import common_pb2
from evenq_broker.core.state.name_table import NameTable
from evenq_broker.rpc.sending.publishing import must_be_here
from evenq_broker.runtime import Runtime


class KnownNames(Protocol):
    """A `Catalog`, or the `CopiedNames` of a follower."""

    @property
    def topics(self) -> NameTable[TopicConfig]:
        """All topics of this broker."""

    @property
    def groups(self) -> NameTable[GroupConfig]:
        """All groups of this broker."""

    def queue_uid(self, topic: TopicConfig) -> str:
        """Returns the uid of the topic's queues: it changes when their offsets start anew."""


class NamedQueues:
    def __init__(self, runtime: Runtime, catalog: KnownNames) -> None:
        self._runtime, self._catalog = runtime, catalog

    def group(self, name: str) -> GroupConfig:
        """Raises GroupNotFound."""
        group = self._catalog.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r}; create it with `evenq group create {name}`")
        return group

    def topic(self, name: str) -> TopicConfig:
        """Raises TopicNotFound."""
        topic = self._catalog.topics.get(name)
        if topic is None:
            own = self._runtime.settings.broker_name
            raise TopicNotFound(f"no topic {name!r} on broker {own}; create it with `evenq topic create {name}`")
        return topic

    def readable(self, named: common_pb2.Queue, uid: str = "") -> tuple[TopicConfig, MessageQueue]:
        """Returns a queue of this broker, also a closed one; with a `uid`, only the queue with that uid. Raises
        TopicNotFound, BadRequest, QueueReplaced, and as `must_be_here`.
        """
        must_be_here(self._runtime, named)
        topic = self.topic(named.topic)
        if uid and uid != (present := self._catalog.queue_uid(topic)):
            raise QueueReplaced(
                f"queue {named.queue_id} of topic {topic.name} was deleted and created again: the caller has uid "
                f"{uid[:64]}, the queue has {present} now; start again with the new queue",
                uid=present,
            )
        if not 0 <= named.queue_id < topic.queues_ever:  # offsets of a closed queue are still answered and committed
            raise BadRequest(
                f"topic {topic.name} has queues 0 to {topic.read_queues - 1} on this broker, not {named.queue_id}"
            )
        return topic, MessageQueue(topic.name, self._runtime.settings.broker_name, named.queue_id)

    def until_ms(self, wait_ms: int, context: RpcContext) -> int:
        """Returns the monotonic time until which a call with `wait_ms` is parked, ms."""
        settings = self._runtime.settings
        now_ms = self._runtime.clock.monotonic_ms()
        until_ms = now_ms + min(max(wait_ms, 0), settings.poll_max_ms)
        if context.deadline_ms is not None:
            until_ms = min(until_ms, context.deadline_ms - settings.poll_margin_ms)
        return until_ms


def out_of_range(offset: int, low: int, high: int) -> IllegalOffset:
    """Returns the error of an offset that the queue does not have."""
    return IllegalOffset(
        f"offset {offset} is outside the queue's range {low} to {high}; continue at {low}, or wait at {high}",
        min_offset=low,
        max_offset=high,
    )
