"""A broker's report to the rebalancer, assembled from parts that stay encoded (`loops.assignment.reports`).

A report is a head with short contents, then the fields of groups and lags, each encoded separately. A group is its
configuration, then the fields of its members, their holdings, and the queues that wait for successors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from evenq.model import NO_GENERATION, Generation, GroupConfig, MessageQueue, QueueCounts
from evenq.model.balance import EVEN_BALANCE
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2
from evenq_broker.core.groups.members import Member
from evenq_broker.core.state.frames import field, text_field
from evenq_broker.loops.wire.assignment import TopicHolds, TopicMode
from evenq_broker.loops.wire.translation import balance_message, entry_of, member_message, queue_message

_GROUPS, _LAGS = 3, 8  # fields of BrokerReport
_MEMBERS, _HELD, _HOLDS = 4, 5, 8  # fields of GroupFacts


class ReportHead:
    """First part of a report, before groups and lags. In a full report: with the names of all live brokers."""

    def __init__(self, broker_name: str, zone: str, *, full: bool, brokers: Iterable[str] = ()) -> None:
        self._message = assignment_pb2.BrokerReport(broker_name=broker_name, full=full, zone=zone, brokers=brokers)
        self._empty_size = self._message.ByteSize()

    def topic(self, name: str, counts: QueueCounts, known: int | None) -> int:
        """Adds a topic, unless its hash is the `known` one. Returns its hash, for the next time."""
        entry = entry_of(name, counts)
        digest = hash(entry.SerializeToString())
        if known != digest:
            self._message.topics.append(entry)
        return digest

    def topic_gone(self, name: str) -> None:
        """Adds a topic that is not here any more."""
        self._message.topics_gone.append(name)

    def group_gone(self, name: str) -> None:
        """Adds a group that is not here any more."""
        self._message.groups_gone.append(name)

    @property
    def empty(self) -> bool:
        """True while there is nothing to report."""
        return self._message.ByteSize() <= self._empty_size

    def encoded(self) -> bytes:
        """Returns the head, to be followed by the other fields."""
        return self._message.SerializeToString()


def group_head(name: str, config: GroupConfig | None, modes: Iterable[TopicMode]) -> bytes:
    """Returns the configuration of a group; members follow."""
    facts = assignment_pb2.GroupFacts(group=name, modes=modes)
    if config is not None:
        facts.ordered, facts.strategy = config.ordered, config.strategy
        if config.balance != EVEN_BALANCE:
            facts.balance.CopyFrom(balance_message(config.balance))
    return facts.SerializeToString()


def group_field(group: bytes) -> bytes:
    """Returns a whole group, for the report."""
    return field(_GROUPS, group)


def member_field(member: Member) -> bytes:
    """Returns a member, for its group."""
    return field(_MEMBERS, member_message(member).SerializeToString())


def holder_field(client_id: str) -> bytes:
    """Returns the holder, for `held_field`."""
    return text_field(2, client_id)


@lru_cache(maxsize=4_096)
def generation_field(generation: Generation) -> bytes:
    """Returns the generation of the decision, for `held_field`."""
    if generation == NO_GENERATION:
        return b""
    encoded = common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)
    return field(3, encoded.SerializeToString())


def held_field(queue: MessageQueue, holder_and_generation: bytes) -> bytes:
    """Returns a queue that a member holds, for its group."""
    return field(_HELD, _queue(queue) + holder_and_generation)


def holds_field(holds: TopicHolds) -> bytes:
    """Returns the queues of a topic that wait for successors, for its group."""
    return field(_HOLDS, holds.encoded)


def lag_field(group: str, lags: Sequence[tuple[MessageQueue, int]]) -> bytes:
    """Returns a group's lags, for the report."""
    message = assignment_pb2.GroupLag(group=group)
    for queue, lag in lags:
        message.queues.add(queue=queue_message(queue), lag=lag)
    return field(_LAGS, message.SerializeToString())


@lru_cache(maxsize=1 << 16)
def _queue(queue: MessageQueue) -> bytes:
    return field(1, queue_message(queue).SerializeToString())
