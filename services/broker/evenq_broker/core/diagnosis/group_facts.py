"""Facts about one group at one moment, from each broker and from the rebalancer.

`rpc.diagnosis` gathers them, `core.diagnosis.diagnosis` judges them. Pure values; times are ages in ms at that moment,
so that clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue, QueueCounts
from evenq.model.names import is_system_topic
from evenq_broker.core.groups.members import Member, Protocol

ALL_MEMBERS = "*"
"""Owner of a queue that all members read by competition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAt:
    """One member as one broker sees it."""

    member: Member
    age_ms: int  # since it joined there
    silent_ms: int  # since its last sign of life there
    lease_ms: int  # silence after which the broker drops it
    lost: bool = False  # True: its stream broke

    @property
    def owns(self) -> bool:
        """True if it is one of the members that hold locks for what they read."""
        return self.member.protocol is Protocol.EVENQ and self.member.model is MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAt:
    """One readable queue of a broker."""

    queue: MessageQueue
    holder: str = ""  # client id of its lock's holder
    committed: int = -1  # -1: the group never read here
    lag: int = 0
    inflight: int = 0
    unmoved_ms: int = 0  # how long messages waited while the oldest unfinished one stayed the same
    head_attempt: int = 0  # deliveries of that message so far; 0: none, or not known
    back_from: int = -1  # offset from which the group went back though no operator moved it; -1: it did not
    back_to: int = -1
    back_ms: int = 0  # how long ago that was


@dataclass(frozen=True, slots=True)
class AssignedQueues:
    """Queues that a member is to read, of any broker."""

    client_id: str
    topic: str
    generation: Generation
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that another one knew and that is missing."""

    name: str
    gone_ms: int  # how long ago it was missed first
    unread: int = 0  # messages that it still held, drained, when it ended, and that no group ever read
    dead_letters: int = 0  # dead letters that it still held then


@dataclass(frozen=True, slots=True)
class ScheduleTroubles:
    """Schedules of a topic at one broker that do not send messages, or left some out."""

    topic: str
    failing: int
    problem: str  # of one of them
    missed: int  # those with missed times, found within the last hour, that got no message


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPart:
    """Facts from one broker."""

    broker_name: str
    members: tuple[MemberAt, ...] = ()
    queues: tuple[QueueAt, ...] = ()
    assigned: tuple[AssignedQueues, ...] = ()
    counts: Mapping[str, QueueCounts] = field(default_factory=dict)  # by topic that the group reads
    stranded: tuple[QueueAt, ...] = ()
    """Queues that are not readable, with messages that the group has not read."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of the group's settings there; empty: the broker does not have the group."""
    revised_ms: int = 0
    """When an operator last changed the settings, ms since the epoch (`GroupConfig`)."""
    duplicates: int = 0
    """Times that a second living client came with an id that was taken, since the broker started."""
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Client id -> topics that it subscribes to and may not consume."""
    lost: tuple[LostBroker, ...] = ()  # missing brokers, as far as it knows
    retries_waiting: int = 0
    """Messages that failed and wait for their next delivery."""
    failed: int = 0
    """Deliveries that were given back or not finished in time, since the broker started."""
    delivered: int = 0  # all deliveries since then
    schedules: tuple[ScheduleTroubles, ...] = ()
    """Of topics that the group reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenQueue:
    """One queue in a decision."""

    queue: MessageQueue
    owner: str  # `*`: every member; empty: no member
    age_ms: int = 0  # how long it has had this owner, by the decision
    held: bool = False  # True: it is reserved for a successor, so it has no reader on purpose
    owner_zone: str = ""
    broker_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The rebalancer's decision."""

    strategy: str = ""
    queues: tuple[GivenQueue, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)  # client id of a member that was given nothing -> why
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """Facts from all brokers and the rebalancer. Properties are computed once."""

    group: str
    strategy: str = ""
    ordered: bool = False
    brokers: tuple[BrokerPart, ...] = ()  # ascending name
    silent: Mapping[str, str] = field(default_factory=dict)  # broker that did not answer -> why not
    rebalancer: str = ""  # its address; empty: the cluster has none
    decided: Decided | None = None  # None: no rebalancer, or none that answers
    rebalancer_problem: str = ""
    stuck_ms: int = 60_000  # a queue whose oldest message stays unfinished for this time is stuck

    @cached_property
    def members(self) -> dict[str, list[MemberAt]]:
        """Client id -> the member as each broker sees it, ascending."""
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
        """Missing brokers by name, from the one that missed each first, without those that answered or are silent."""
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
        """Topics whose queues members divide by locks: all readers own queues, and no rebalancer assigns the queues."""
        decided = {queue.topic for queue in self.given}
        topics = sorted({queue.topic for queue in self.queues} - decided)
        return [topic for topic in topics if (readers := self.readers(topic)) and all(at.owns for at in readers)]

    @cached_property
    def topics(self) -> list[str]:
        """Topics of the readable queues, ascending, without system topics."""
        return sorted({queue.topic for queue in self.queues if not is_system_topic(queue.topic)})

    def readers(self, topic: str) -> list[MemberAt]:
        """Returns clustering members that read the topic, ascending, as the broker sees each that knows it longest."""
        readers = []
        for views in self.members.values():
            at = max(views, key=lambda view: view.age_ms)
            if at.member.model is MessageModel.CLUSTERING and at.member.reads(topic):
                readers.append(at)
        return readers

    def newest_told(self) -> dict[tuple[str, str], AssignedQueues]:
        """Returns (client id, topic) -> the newest assignment that any broker sent."""
        newest: dict[tuple[str, str], AssignedQueues] = {}
        for one in (one for part in self.brokers for one in part.assigned):
            known = newest.get((one.client_id, one.topic))
            if known is None or known.generation < one.generation:
                newest[one.client_id, one.topic] = one
        return {key: one for key, one in newest.items() if one.generation > NO_GENERATION}


def _queue(at: QueueAt) -> MessageQueue:
    return at.queue
