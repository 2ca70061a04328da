"""What brokers report, merged: who is in a group, how many queues a topic has on which broker.

Called by `core/board.py`. A broker's facts belong to its newest report stream. When that stream ends, they are kept
for a grace, so that a short break moves no queue, and dropped if the broker has not come back by then. Always true: a
member is in a group while any broker with live (or graced) facts says so; a topic's queues are those of all such
brokers. Each group and each topic carries a version that grows when something about it may have changed, so readers
know without comparing whether to look again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model import MessageModel, MessageQueue

__all__ = ["Facts", "GroupFact", "MemberFact", "Report", "TopicFact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFact:
    """One member as a broker sees it."""

    client_id: str
    model: MessageModel = MessageModel.CLUSTERING
    topics: tuple[str, ...] = ()
    """Subscribed topics, ascending; empty if the member did not tell (some 5.x clients never do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact:
    """A whole group as a broker sees it."""

    group: str
    ordered: bool = False
    strategy: str = ""
    """The group's own allocate strategy; empty: none."""
    members: tuple[MemberFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """A topic on one broker."""

    topic: str
    read_queues: int
    """0 or more; 0 if consumers may not read it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report: all facts of a broker (`full`), or those that changed."""

    broker_name: str
    full: bool = False
    groups: tuple[GroupFact, ...] = ()
    groups_gone: tuple[str, ...] = ()
    topics: tuple[TopicFact, ...] = ()
    topics_gone: tuple[str, ...] = ()


@dataclass(slots=True)
class _Broker:
    stream: int
    told: bool = False
    """False until the stream's first report, which replaces whatever an earlier stream told."""
    gone_at_ms: int | None = None
    """Monotonic ms at which the facts are dropped; None while the stream is open."""
    groups: dict[str, GroupFact] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)


class Facts:
    """The merged view. All times are monotonic ms."""

    def __init__(self, *, grace_ms: int, brokers_max: int, groups_max: int, topics_max: int, members_max: int) -> None:
        self._grace_ms = grace_ms
        self._brokers_max = brokers_max
        self._groups_max = groups_max
        self._topics_max = topics_max
        self._members_max = members_max
        self._brokers: dict[str, _Broker] = {}
        self._version = 0
        self._group_versions: dict[str, int] = {}
        self._topic_versions: dict[str, int] = {}
        self._changed_groups: dict[str, None] = {}
        self._changed_topics: dict[str, None] = {}

    # --- events

    def opened(self, broker_name: str, stream: int) -> None:
        """A broker opened a report stream; `stream` is bigger than all before. Its earlier stream, if any, counts no
        more.
        """
        broker = self._brokers.get(broker_name)
        if broker is None:
            if len(self._brokers) >= self._brokers_max:
                raise TooManyRequests(
                    f"{self._brokers_max} brokers report already and {broker_name!r} is one more; raise brokers_max"
                )
            self._brokers[broker_name] = _Broker(stream)
        else:
            broker.stream, broker.told, broker.gone_at_ms = stream, False, None

    def reported(self, stream: int, report: Report) -> None:
        """Take a report in, whole or not at all."""
        broker = self._brokers.get(report.broker_name)
        if broker is None or broker.stream != stream:
            raise PreconditionFailed(
                f"broker {report.broker_name!r} has opened a newer report stream; report there, and end this one"
            )
        self._check_limits(broker, report)
        full = report.full or not broker.told
        broker.told = True
        gone_groups: Iterable[str] = report.groups_gone
        gone_topics: Iterable[str] = report.topics_gone
        if full:
            gone_groups = set(broker.groups) - {fact.group for fact in report.groups}
            gone_topics = set(broker.topics) - {fact.topic for fact in report.topics}
        for fact in report.groups:
            if broker.groups.get(fact.group) != fact:
                broker.groups[fact.group] = fact
                self._touch_group(fact.group)
        for topic_fact in report.topics:
            if broker.topics.get(topic_fact.topic) != topic_fact.read_queues:
                broker.topics[topic_fact.topic] = topic_fact.read_queues
                self._touch_topic(topic_fact.topic)
        self._drop(broker, sorted(gone_groups), sorted(gone_topics))

    def closed(self, broker_name: str, stream: int, now_ms: int) -> None:
        """The stream ended. Nothing happens to the facts until the grace is over."""
        broker = self._brokers.get(broker_name)
        if broker is not None and broker.stream == stream:
            broker.gone_at_ms = now_ms + self._grace_ms

    def expire(self, now_ms: int) -> list[str]:
        """Drop the facts of brokers whose grace is over; their names."""
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
        """When `expire` has something to do next; None: nothing is leaving."""
        return min(
            (broker.gone_at_ms for broker in self._brokers.values() if broker.gone_at_ms is not None), default=None
        )

    def take_changed_groups(self) -> list[str]:
        """Groups that may have changed since the last call, in order."""
        changed, self._changed_groups = list(self._changed_groups), {}
        return changed

    def take_changed_topics(self) -> list[str]:
        """Topics that may have changed since the last call, in order."""
        changed, self._changed_topics = list(self._changed_topics), {}
        return changed

    # --- views

    @property
    def brokers(self) -> list[str]:
        """Names of brokers with facts, ascending."""
        return sorted(self._brokers)

    def group_version(self, group: str) -> int:
        """0 if no broker tells of the group."""
        return self._group_versions.get(group, 0)

    def topic_version(self, topic: str) -> int:
        """0 if no broker tells of the topic."""
        return self._topic_versions.get(topic, 0)

    def groups(self) -> list[str]:
        """All groups, ascending."""
        return sorted(self._group_versions)

    def strategy(self, group: str) -> str:
        """The group's own strategy: of the first broker by name that tells one. All brokers should tell the same."""
        return next((fact.strategy for fact in self._told_of(group) if fact.strategy), "")

    def ordered(self, group: str) -> bool:
        """True if any broker says that the group is ordered."""
        return any(fact.ordered for fact in self._told_of(group))

    def members(self, group: str) -> list[MemberFact]:
        """All members that any broker sees, ascending client id (RB-11)."""
        seen: dict[str, MemberFact] = {}
        for fact in self._told_of(group):
            for member in fact.members:
                seen[member.client_id] = _merged(seen.get(member.client_id), member)
        return [seen[client_id] for client_id in sorted(seen)]

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that consumers read, ascending (RB-11)."""
        return [
            MessageQueue(topic, name, queue_id)
            for name in sorted(self._brokers)
            for queue_id in range(self._brokers[name].topics.get(topic, 0))
        ]

    def check(self) -> None:
        """Recompute what the versions promise; tests call it after each event."""
        groups = {group for broker in self._brokers.values() for group in broker.groups}
        topics = {topic for broker in self._brokers.values() for topic in broker.topics}
        assert groups == set(self._group_versions), (groups, self._group_versions)
        assert topics == set(self._topic_versions), (topics, self._topic_versions)
        assert max([*self._group_versions.values(), *self._topic_versions.values()], default=0) <= self._version

    def _told_of(self, group: str) -> list[GroupFact]:
        brokers = self._brokers
        return [brokers[name].groups[group] for name in sorted(brokers) if group in brokers[name].groups]

    def _drop(self, broker: _Broker, groups: Iterable[str], topics: Iterable[str]) -> None:
        for group in groups:
            if broker.groups.pop(group, None) is not None:
                self._touch_group(group)
        for topic in topics:
            if broker.topics.pop(topic, None) is not None:
                self._touch_topic(topic)

    def _touch_group(self, group: str) -> None:
        self._version += 1
        self._changed_groups[group] = None
        self._group_versions[group] = self._version
        if not any(group in broker.groups for broker in self._brokers.values()):
            del self._group_versions[group]

    def _touch_topic(self, topic: str) -> None:
        self._version += 1
        self._changed_topics[topic] = None
        self._topic_versions[topic] = self._version
        if not any(topic in broker.topics for broker in self._brokers.values()):
            del self._topic_versions[topic]

    def _check_limits(self, broker: _Broker, report: Report) -> None:
        known = set() if report.full or not broker.told else set(broker.groups)
        groups = len(known | {fact.group for fact in report.groups})
        if groups > self._groups_max:
            raise TooManyRequests(
                f"broker {report.broker_name!r} tells {groups} groups, the limit is {self._groups_max}"
            )
        known = set() if report.full or not broker.told else set(broker.topics)
        topics = len(known | {fact.topic for fact in report.topics})
        if topics > self._topics_max:
            raise TooManyRequests(
                f"broker {report.broker_name!r} tells {topics} topics, the limit is {self._topics_max}"
            )
        for fact in report.groups:
            if len(fact.members) > self._members_max:
                raise TooManyRequests(
                    f"group {fact.group!r} has {len(fact.members)} members, the limit is {self._members_max}"
                )


def _merged(first: MemberFact | None, second: MemberFact) -> MemberFact:
    """One member told by two brokers: it reads what either says; broadcasting if either says so."""
    if first is None or first == second:
        return second
    broadcasting = MessageModel.BROADCASTING in {first.model, second.model}
    return MemberFact(
        client_id=second.client_id,
        model=MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING,
        topics=tuple(sorted({*first.topics, *second.topics})),
    )
