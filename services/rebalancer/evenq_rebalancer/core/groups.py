"""Merged facts of all brokers: members of groups, queues of topics, last owners of queues, lags.

A broker's facts belong to its newest report stream. When that stream ends, they are kept for `grace_ms`, so that a
short break moves no queue, and dropped if the broker has not returned by then. A member is in a group while any broker
with live or kept facts reports it; a topic's queues are those of all such brokers. Each group and topic has a version
that grows when something about it may have changed, so readers need not compare. Owners and lags do not change
versions: lags change with every message, and a decision never follows from either alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq_rebalancer.core.inherited_holds import InheritedHolds, inherited_of
from evenq_rebalancer.core.modes import RequestModeSetting
from evenq_rebalancer.core.places import MemberPlace, PlaceOf, Places, ZoneOf
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, HeldFact, HeldLater, HoldsFact, MemberFact

QUEUES_HELD_MAX = 100_000
"""Most holders that one broker reports of one group."""


@dataclass(slots=True)
class _Broker:
    stream: int
    reported: bool = False
    """False until the stream's first report, which replaces the facts of earlier streams."""
    gone_at_ms: int | None = None
    """Monotonic ms at which the facts are dropped; None while the stream is open."""
    zone: str = ""
    address: str = ""
    groups: dict[str, GroupFact] = field(default_factory=dict)
    """Without holders and holds."""
    topics: dict[str, int] = field(default_factory=dict)
    held: dict[str, Sequence[HeldFact]] = field(default_factory=dict)
    holds: dict[str, tuple[HoldsFact, ...]] = field(default_factory=dict)
    lags: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    """All three by group."""
    brokers: tuple[str, ...] = ()
    """Live brokers, as this one knew them when its stream began."""


class MergedFacts:
    """The merged view. All times are monotonic ms. Epochs above `epoch_max` come from wrong clocks and do not count."""

    def __init__(
        self,
        *,
        grace_ms: int,
        brokers_max: int,
        groups_max: int,
        topics_max: int,
        members_max: int,
        epoch_max: int = (1 << 62),
    ) -> None:
        self._grace_ms = grace_ms
        self._brokers_max = brokers_max
        self._groups_max = groups_max
        self._topics_max = topics_max
        self._members_max = members_max
        self._epoch_max = epoch_max
        self._places = Places()
        self._brokers: dict[str, _Broker] = {}
        self._version = 0
        self._group_versions: dict[str, int] = {}
        self._topic_versions: dict[str, int] = {}
        self._changed_groups: dict[str, None] = {}
        self._changed_topics: dict[str, None] = {}
        self._changed_lags: dict[str, None] = {}
        self._members: dict[str, tuple[int, tuple[MemberFact, ...]]] = {}
        """Merged members by group, with the version they were merged from."""
        self._queues: dict[str, tuple[int, tuple[MessageQueue, ...]]] = {}
        """The same for the queues of topics."""
        self.epoch_seen = 0
        """Largest epoch in any reported generation."""

    # --- events

    def set_places(self, zone_of_address: ZoneOf, place_of_address: PlaceOf) -> None:
        """Sets the lookups for members and brokers without labels. They must answer from memory, without waiting."""
        self._places = Places(zone_of_address, place_of_address)
        self.places_changed()

    def places_changed(self, addresses: Iterable[str] | None = None) -> None:
        """Handles changed answers of the lookups of `set_places` about these addresses (None: any)."""
        changed = None if addresses is None else set(addresses)
        for broker in self._brokers.values():
            whole = changed is None or broker.address in changed
            for group, fact in broker.groups.items():
                if whole or any(member.address in (changed or ()) for member in fact.members):
                    self._touch_group(group)

    def opened(self, broker_name: str, stream: int) -> None:
        """Handles a new report stream, which replaces the broker's earlier one; `stream` grows with each stream."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            if len(self._brokers) >= self._brokers_max:
                raise TooManyRequests(
                    f"{self._brokers_max} brokers report already and {broker_name!r} is one more; raise brokers_max"
                )
            self._brokers[broker_name] = _Broker(stream)
        else:
            # Its facts count until the first report of the new stream, which is whole: a short break moves no queue.
            broker.stream, broker.reported, broker.gone_at_ms = stream, False, None

    def reported(self, stream: int, report: BrokerReport) -> None:
        """Applies a report, whole or not at all. Raises PreconditionFailed for an outdated stream, TooManyRequests."""
        broker = self._brokers.get(report.broker_name)
        if broker is None or broker.stream != stream:
            raise PreconditionFailed(
                f"broker {report.broker_name!r} has opened a newer report stream; report there, and end this one"
            )
        self._check_limits(broker, report)
        full = report.full or not broker.reported
        broker.reported = True
        gone_groups: Iterable[str] = report.groups_gone
        gone_topics: Iterable[str] = report.topics_gone
        if full:
            gone_groups = set(broker.groups) - {fact.group for fact in report.groups}
            gone_topics = set(broker.topics) - {fact.topic for fact in report.topics}
        self._place(broker, report, full=full)
        if full:
            broker.brokers = report.brokers
        for fact in report.groups:
            self._take_group(broker, fact, full=full)
        for topic_fact in report.topics:
            if broker.topics.get(topic_fact.topic) != topic_fact.read_queues:
                broker.topics[topic_fact.topic] = topic_fact.read_queues
                self._touch_topic(topic_fact.topic)
        for lag in report.lags:
            broker.lags[lag.group] = dict(lag.lags)
            self._changed_lags[lag.group] = None
        self._drop(broker, sorted(gone_groups), sorted(gone_topics))

    def closed(self, broker_name: str, stream: int, now_ms: int) -> None:
        """Handles the end of a stream. The facts stay for `grace_ms`."""
        broker = self._brokers.get(broker_name)
        if broker is not None and broker.stream == stream:
            broker.gone_at_ms = now_ms + self._grace_ms

    def expire(self, now_ms: int) -> list[str]:
        """Drops the facts of brokers whose grace has ended. Returns their names."""
        gone = [
            name
            for name, broker in self._brokers.items()
            if broker.gone_at_ms is not None and broker.gone_at_ms <= now_ms
        ]
        for name in gone:
            broker = self._brokers.pop(name)
            self._drop(broker, sorted(broker.groups), sorted(broker.topics))
        return gone

    def next_expiry_ms(self) -> int | None:
        """Returns the time of the next `expire` that drops facts; None: no grace runs."""
        return min(
            (broker.gone_at_ms for broker in self._brokers.values() if broker.gone_at_ms is not None), default=None
        )

    def take_changed_groups(self) -> list[str]:
        """Returns groups that may have changed since the last call, in order."""
        changed, self._changed_groups = list(self._changed_groups), {}
        return changed

    def take_changed_topics(self) -> list[str]:
        """Returns topics that may have changed since the last call, in order."""
        changed, self._changed_topics = list(self._changed_topics), {}
        return changed

    def take_changed_lags(self) -> list[str]:
        """Returns groups whose lags were reported since the last call, in order."""
        changed, self._changed_lags = list(self._changed_lags), {}
        return changed

    # --- views

    @property
    def brokers(self) -> list[str]:
        """Names of brokers with facts, ascending."""
        return sorted(self._brokers)

    def missing_brokers(self) -> set[str]:
        """Returns brokers that do not report although others report them as live, or as brokers of held queues."""
        reported = {
            name for broker in self._brokers.values() for held in broker.held.values() for name in _brokers_of(held)
        }
        reported.update(name for broker in self._brokers.values() for name in broker.brokers)
        return reported - {name for name, broker in self._brokers.items() if broker.reported}

    def group_version(self, group: str) -> int:
        """Returns 0 if no broker reports the group."""
        return self._group_versions.get(group, 0)

    def topic_version(self, topic: str) -> int:
        """Returns 0 if no broker reports the topic."""
        return self._topic_versions.get(topic, 0)

    def groups(self) -> list[str]:
        return sorted(self._group_versions)

    def strategy(self, group: str) -> str:
        """Returns the group's own strategy, from the first broker by name that reports one; all should agree."""
        return next((fact.strategy for fact in self._facts_of(group) if fact.strategy), "")

    def ordered(self, group: str) -> bool:
        """True if any broker reports the group as ordered."""
        return any(fact.ordered for fact in self._facts_of(group))

    def mode(self, group: str, topic: str) -> RequestModeSetting | None:
        """Returns the newest request mode that brokers received from a previous leader; None: none."""
        modes = [mode for fact in self._facts_of(group) for mode in fact.modes if mode.topic == topic]
        return max(modes, key=lambda mode: mode.generation).setting if modes else None

    def balance(self, group: str) -> BalancePolicy:
        """Returns the group's policy, from the first broker by name that reports another than the default."""
        policies = (fact.balance for fact in self._facts_of(group))
        return next((balance for balance in policies if balance != EVEN_BALANCE), EVEN_BALANCE)

    def members(self, group: str) -> tuple[MemberFact, ...]:
        """Returns all members that any broker reports, ascending client id (RB-11), with zones by address filled in."""
        version = self.group_version(group)
        known = self._members.get(group)
        if known is not None and known[0] == version:
            return known[1]
        seen: dict[str, MemberFact] = {}
        for fact in self._facts_of(group):
            for member in fact.members:
                first = seen.get(member.client_id)
                seen[member.client_id] = member if first is None or first is member else _merged(first, member)
        members = tuple(self._placed(seen[client_id]) for client_id in sorted(seen))
        if version:
            self._members[group] = (version, members)
        return members

    def place(self, member: MemberFact) -> MemberPlace | None:
        """Returns the place where the member runs, or ran; None: unknown."""
        return self._places.place(member.instance, member.address)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues that consumers read, ascending (RB-11)."""
        version = self.topic_version(topic)
        known = self._queues.get(topic)
        if known is not None and known[0] == version:
            return known[1]
        queues = tuple(
            MessageQueue(topic, name, queue_id)
            for name in sorted(self._brokers)
            for queue_id in range(self._brokers[name].topics.get(topic, 0))
        )
        if version:
            self._queues[topic] = (version, queues)
        return queues

    def zones_of_brokers(self, topic: str) -> dict[str, str]:
        """Returns the known zones of brokers that have the topic, by broker name."""
        zones = {
            name: self._places.zone(broker.zone, broker.address)
            for name, broker in sorted(self._brokers.items())
            if topic in broker.topics
        }
        return {name: zone for name, zone in zones.items() if zone}

    @property
    def has_zones(self) -> bool:
        return any(self._places.zone(broker.zone, broker.address) for broker in self._brokers.values())

    def holders(self, group: str, topic: str) -> dict[MessageQueue, str]:
        """Returns the reported holder of each queue; the newest generation wins, then the queue's own broker."""
        newest: dict[MessageQueue, tuple[Generation, bool, str]] = {}
        for name in sorted(self._brokers):
            for fact in self._brokers[name].held.get(group, ()):
                if fact.queue.topic == topic:
                    rank = (fact.generation, fact.queue.broker_name == name, fact.holder)
                    if fact.queue not in newest or newest[fact.queue] < rank:
                        newest[fact.queue] = rank
        return {queue: holder for queue, (_, _, holder) in newest.items()}

    def inherited(self, group: str) -> InheritedHolds:
        """Returns the holds of the previous leader, as brokers report them."""
        brokers, there = self._brokers, {member.client_id for member in self.members(group)}
        return inherited_of(
            (fact for broker in brokers.values() for fact in broker.holds.get(group, ())),
            lambda: (
                (name, fact)
                for name, broker in brokers.items()
                for fact in broker.held.get(group, ())
                if fact.holder in there
            ),
        )

    def lags(self, group: str) -> dict[MessageQueue, int]:
        """Returns the lag in messages by queue, as reported by each queue's own broker."""
        return {
            queue: lag
            for name, broker in self._brokers.items()
            for queue, lag in broker.lags.get(group, {}).items()
            if queue.broker_name == name
        }

    def check(self) -> None:
        """Recomputes the invariants of versions and caches; tests call it after each event."""
        groups = {group for broker in self._brokers.values() for group in broker.groups}
        topics = {topic for broker in self._brokers.values() for topic in broker.topics}
        assert groups == set(self._group_versions), (groups, self._group_versions)
        assert topics == set(self._topic_versions), (topics, self._topic_versions)
        assert max([*self._group_versions.values(), *self._topic_versions.values()], default=0) <= self._version
        assert self._members.keys() <= groups
        assert self._queues.keys() <= topics
        for broker in self._brokers.values():
            assert broker.held.keys() | broker.holds.keys() <= broker.groups.keys()

    # --- inside

    def _facts_of(self, group: str) -> list[GroupFact]:
        brokers = self._brokers
        return [brokers[name].groups[group] for name in sorted(brokers) if group in brokers[name].groups]

    def _take_group(self, broker: _Broker, fact: GroupFact, *, full: bool) -> None:
        for epoch in (_epoch_of(fact.held), *(holds.generation.epoch for holds in fact.holds)):
            if self.epoch_seen < epoch <= self._epoch_max:
                self.epoch_seen = epoch
        if full or fact.held:  # brokers report holders only at the beginning of a stream
            broker.held[fact.group] = fact.held
            broker.holds.pop(fact.group, None)
        if fact.holds:
            broker.holds[fact.group] = fact.holds
        if fact.held or fact.holds:
            fact = replace(fact, held=(), holds=())
        if broker.groups.get(fact.group) != fact:
            broker.groups[fact.group] = fact
            self._touch_group(fact.group)

    def _place(self, broker: _Broker, report: BrokerReport, *, full: bool) -> None:
        zone = report.zone if full else report.zone or broker.zone
        address = report.address or broker.address
        if (zone, address) != (broker.zone, broker.address):
            broker.zone, broker.address = zone, address
            for topic in broker.topics:
                self._touch_topic(topic)

    def _placed(self, member: MemberFact) -> MemberFact:
        if member.zone or not member.address:
            return member
        zone = self._places.zone_of_address(member.address)
        return replace(member, zone=zone) if zone else member

    def _drop(self, broker: _Broker, groups: Iterable[str], topics: Iterable[str]) -> None:
        for group in groups:
            broker.held.pop(group, None)
            broker.holds.pop(group, None)
            broker.lags.pop(group, None)
            if broker.groups.pop(group, None) is not None:
                self._touch_group(group)
        for topic in topics:
            if broker.topics.pop(topic, None) is not None:
                self._touch_topic(topic)

    def _touch_group(self, group: str) -> None:
        self._version += 1
        self._changed_groups[group] = None
        self._group_versions[group] = self._version
        # After the version grew, so that a group that returns has a larger one than readers have seen.
        if not any(group in broker.groups for broker in self._brokers.values()):
            del self._group_versions[group]
            self._members.pop(group, None)

    def _touch_topic(self, topic: str) -> None:
        self._version += 1
        self._changed_topics[topic] = None
        self._topic_versions[topic] = self._version
        if not any(topic in broker.topics for broker in self._brokers.values()):
            del self._topic_versions[topic]
            self._queues.pop(topic, None)

    def _check_limits(self, broker: _Broker, report: BrokerReport) -> None:
        fresh = report.full or not broker.reported
        for reported, known, limit, what in (
            ({fact.group for fact in report.groups}, broker.groups, self._groups_max, "groups"),
            ({fact.topic for fact in report.topics}, broker.topics, self._topics_max, "topics"),
            ({fact.group for fact in report.lags}, broker.lags, self._groups_max, "groups' lags"),
        ):
            count = len(reported if fresh else reported | known.keys())
            if count > limit:
                raise TooManyRequests(f"broker {report.broker_name!r} reports {count} {what}, the limit is {limit}")
        for fact in report.groups:
            if len(fact.members) > self._members_max:
                raise TooManyRequests(
                    f"group {fact.group!r} has {len(fact.members)} members, the limit is {self._members_max}"
                )
            if len(fact.held) > QUEUES_HELD_MAX:
                raise TooManyRequests(
                    f"{len(fact.held)} queues of group {fact.group!r} are held, the limit is {QUEUES_HELD_MAX} a broker"
                )


def _epoch_of(held: Sequence[HeldFact]) -> int:
    if isinstance(held, HeldLater):
        return held.epoch
    return max((fact.generation.epoch for fact in held), default=0)


def _brokers_of(held: Sequence[HeldFact]) -> Iterable[str]:
    return held.brokers if isinstance(held, HeldLater) else {fact.queue.broker_name for fact in held}


def _merged(first: MemberFact, second: MemberFact) -> MemberFact:
    """Merges two reports of one member: topics of both, broadcasting if either says so, labels of the second first."""
    if first == second:
        return second
    broadcasting = MessageModel.BROADCASTING in {first.model, second.model}
    return MemberFact(
        client_id=second.client_id,
        model=MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING,
        topics=tuple(sorted({*first.topics, *second.topics})),
        zone=second.zone or first.zone,
        instance=second.instance or first.instance,
        address=second.address or first.address,
        capacity=second.capacity,
        owns=first.owns or second.owns,
        strategy=second.strategy or first.strategy,
    )
