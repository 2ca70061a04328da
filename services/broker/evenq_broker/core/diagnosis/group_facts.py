"""What is known of one group at one moment: from each broker, and from the decider of assignments.

Gathered by `rpc.diagnosis`, judged by `core.diagnosis.diagnosis`. Pure values; times are ages in ms at the moment of
looking, so that clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue, QueueCounts
from evenq.model.names import is_system_topic
from evenq_broker.core.groups.members import Member, Protocol

__all__ = [
    "ALL_MEMBERS",
    "AssignedQueues",
    "BrokerPart",
    "Decided",
    "GivenQueue",
    "GroupFacts",
    "LostBroker",
    "MemberAt",
    "QueueAt",
]

ALL_MEMBERS = "*"
"""Owner of a queue that all members read by competition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAt:
    """One member as one broker sees it."""

    member: Member
    age_ms: int
    """Since it joined there."""
    silent_ms: int
    """Since its last sign of life there."""
    lease_ms: int
    """Silence after which the broker drops it."""
    lost: bool = False
    """True: its stream broke."""

    @property
    def owns(self) -> bool:
        """True if it is one of those that hold locks for what they read."""
        return self.member.protocol is Protocol.EVENQ and self.member.model is MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAt:
    """One readable queue of a broker."""

    queue: MessageQueue
    holder: str = ""
    """Who has its lock."""
    committed: int = -1
    """-1: the group never read here."""
    lag: int = 0
    inflight: int = 0
    unmoved_ms: int = 0
    """How long messages waited while the oldest unfinished one stayed the same."""
    head_attempt: int = 0
    """Deliveries of that message so far; 0: none, or not known."""
    back_from: int = -1
    """Where the group was before it went back though no operator moved it; -1: it did not."""
    back_to: int = -1
    back_ms: int = 0
    """How long ago that was."""


@dataclass(frozen=True, slots=True)
class AssignedQueues:
    """Queues that a member is to read, of any broker."""

    client_id: str
    topic: str
    generation: Generation
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that another one knew and that is not there."""

    name: str
    gone_ms: int
    """How long ago it was missed first."""
    unread: int = 0
    """Messages that it still held, drained, when it ended, and that no group ever read."""
    dead_letters: int = 0
    """The same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPart:
    """What one broker tells."""

    broker_name: str
    members: tuple[MemberAt, ...] = ()
    queues: tuple[QueueAt, ...] = ()
    assigned: tuple[AssignedQueues, ...] = ()
    counts: Mapping[str, QueueCounts] = field(default_factory=dict)
    """By topic that the group reads."""
    stranded: tuple[QueueAt, ...] = ()
    """Queues that are not readable, with messages that the group has not read."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of what the group is configured to be there; empty: the group is not there."""
    revised_ms: int = 0
    """When an operator asked for a change of the settings last, ms since the epoch (`GroupConfig`)."""
    duplicates: int = 0
    """How often a second living client came with an id that was taken, since the broker started."""
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Client id -> topics that it subscribes and may not consume."""
    lost: tuple[LostBroker, ...] = ()
    """Brokers that are not there, as far as it knows."""
    retries_waiting: int = 0
    """Messages that failed and wait for their next delivery."""
    failed: int = 0
    """Deliveries that were given back or not finished in time, since the broker started."""
    delivered: int = 0
    """All deliveries since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenQueue:
    """One queue in a decision."""

    queue: MessageQueue
    owner: str
    """`*`: every member; empty: no member."""
    age_ms: int = 0
    """How long it has had this owner, by the decision."""
    held: bool = False
    """True: it waits for a successor, so that it has no reader on purpose."""
    owner_zone: str = ""
    broker_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What the rebalancer says."""

    strategy: str = ""
    queues: tuple[GivenQueue, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)
    """Client id of a member that was given nothing -> why."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """All of it. Properties are computed once."""

    group: str
    strategy: str = ""
    ordered: bool = False
    brokers: tuple[BrokerPart, ...] = ()
    """Ascending name."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Broker that did not answer -> why not."""
    rebalancer: str = ""
    """Its address; empty: the cluster has none."""
    decided: Decided | None = None
    """None: no rebalancer, or none that answers."""
    rebalancer_problem: str = ""
    stuck_ms: int = 60_000
    """A queue whose oldest message stays unfinished for this time is stuck."""

    @cached_property
    def members(self) -> dict[str, list[MemberAt]]:
        """Client id -> it as each broker sees it, ascending."""
        views: dict[str, list[MemberAt]] = {}
        for part in self.brokers:
            for at in part.members:
                views.setdefault(at.member.client_id, []).append(at)
        return {client_id: views[client_id] for client_id in sorted(views)}

    @cached_property
    def queues(self) -> dict[MessageQueue, QueueAt]:
        """All readable queues of the brokers that answered, ascending."""
        return {at.queue: at for at in sorted((at for part in self.brokers for at in part.queues), key=_queue)}

    @cached_property
    def lost(self) -> dict[str, LostBroker]:
        """Brokers that are not there, by name, as the one says that missed them first; who answered, or is known by
        the one asked, is there.
        """
        there = {part.broker_name for part in self.brokers} | set(self.silent)
        missing: dict[str, LostBroker] = {}
        for one in (one for part in self.brokers for one in part.lost if one.name not in there):
            known = missing.get(one.name)
            if known is None or known.gone_ms < one.gone_ms:
                missing[one.name] = one
        return {name: missing[name] for name in sorted(missing)}

    @cached_property
    def given(self) -> dict[MessageQueue, GivenQueue]:
        """Queues that the rebalancer shares one by one: each has one owner, or none."""
        if self.decided is None:
            return {}
        shared = {one.queue.topic for one in self.decided.queues if one.owner == ALL_MEMBERS}
        owners: dict[MessageQueue, list[GivenQueue]] = {}
        for one in self.decided.queues:
            if one.queue.topic not in shared and one.queue.queue_id >= 0:
                owners.setdefault(one.queue, []).append(one)
        return {queue: ones[0] for queue, ones in owners.items() if len(ones) == 1}

    @cached_property
    def own_topics(self) -> list[str]:
        """Topics whose queues members share among themselves, by locks: all that read them are members of that kind
        and no rebalancer gives the queues out.
        """
        decided = {queue.topic for queue in self.given}
        topics = sorted({queue.topic for queue in self.queues} - decided)
        return [topic for topic in topics if (readers := self.readers(topic)) and all(at.owns for at in readers)]

    @cached_property
    def topics(self) -> list[str]:
        """Topics of the readable queues, ascending, without those that no member subscribes by name."""
        return sorted({queue.topic for queue in self.queues if not is_system_topic(queue.topic)})

    def readers(self, topic: str) -> list[MemberAt]:
        """Clustering members that read the topic, ascending; each as the broker sees it that knows it longest."""
        readers = []
        for views in self.members.values():
            at = max(views, key=lambda view: view.age_ms)
            if at.member.model is MessageModel.CLUSTERING and at.member.reads(topic):
                readers.append(at)
        return readers

    def newest_told(self) -> dict[tuple[str, str], AssignedQueues]:
        """(client id, topic) -> the newest that any broker sent it."""
        newest: dict[tuple[str, str], AssignedQueues] = {}
        for one in (one for part in self.brokers for one in part.assigned):
            known = newest.get((one.client_id, one.topic))
            if known is None or known.generation < one.generation:
                newest[one.client_id, one.topic] = one
        return {key: one for key, one in newest.items() if one.generation > NO_GENERATION}


def _queue(at: QueueAt) -> MessageQueue:
    return at.queue
