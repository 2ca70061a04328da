"""The table of live brokers and what they store: all that a nameserver knows (NS-1, NS-5).

Called by `rpc.registry` and `loops.expiry` on one loop; times are monotonic ms handed in. Always true: one entry per
broker name; the table's version grows by one with each change, and a topic's version is the table's at its last
change; `by_topic` names exactly the brokers whose entry lists the topic; all is bounded. Who may hold a name: the
highest leader epoch, among equals the incarnation that started last (a restart); the loser learns who holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model.route import BrokerAddress

__all__ = ["BrokerEntry", "RegisteredTopic", "Registry", "RouteChange", "TopicEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """A topic on one broker (RT-3)."""

    name: str
    message_type: int
    """Number of `apache.rocketmq.v2.MessageType`, passed on as it came."""
    read_queues: int
    write_queues: int
    permission: int
    """Number of `apache.rocketmq.v2.Permission`, passed on as it came."""
    chosen: bool = False
    """Passed on as it came."""
    uid: str = ""
    """Passed on as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEntry:
    """A broker and all that it stores, as it reported last."""

    name: str
    broker_id: int
    """0 = master (RT-4)."""
    cluster: str
    epoch: int
    """Leader epoch."""
    incarnation: str
    """Random per start."""
    start_ms: int
    """Wall time of the start, ms since the epoch."""
    version: str
    """Of the software, for people."""
    copies: int = 1
    """Of its log in the broker group that it leads; 0 or 1: it is alone."""
    followers: tuple[str, ...] = ()
    """Where the other copies answer reads."""
    addresses: tuple[BrokerAddress, ...]
    """At least one; the first is the default (RT-1)."""
    data_version: int
    """Grows with each change of `topics` within one incarnation."""
    topics: dict[str, TopicEntry]

    def same_node(self, other: BrokerEntry) -> bool:
        """True if nothing but the topics differs, as far as a route tells."""
        return (
            self.incarnation == other.incarnation
            and self.epoch == other.epoch
            and self.addresses == other.addresses
            and self.cluster == other.cluster
            and self.broker_id == other.broker_id
            and self.version == other.version
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """One step of the table: a broker came or changed, or one is gone."""

    version: int
    """Of the table after it."""
    broker: BrokerEntry | None = None
    removed: str = ""
    replaced: BrokerEntry | None = None
    """Another incarnation that held the name until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTopic:
    """A topic and the brokers that serve it, in ascending name."""

    topic: str
    version: int
    brokers: tuple[BrokerEntry, ...]


class Registry:
    """The table. Plain state; no clock, no I/O."""

    def __init__(self, *, expiry_ms: int, brokers_max: int) -> None:
        self.version = 0
        """Of the table; 0 = no broker was ever here."""
        self._expiry_ms = expiry_ms
        self._brokers_max = brokers_max
        self._brokers: dict[str, BrokerEntry] = {}
        self._seen_ms: dict[str, int] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        self._topic_versions: dict[str, int] = {}

    @property
    def topic_count(self) -> int:
        """Topics that at least one live broker serves."""
        return len(self._by_topic)

    def knows(self, name: str) -> bool:
        """True if a live broker has this name."""
        return name in self._brokers

    def brokers(self) -> list[BrokerEntry]:
        """All live brokers in ascending name."""
        return [self._brokers[name] for name in sorted(self._brokers)]

    def routes(self, topics: Sequence[str] = ()) -> list[RegisteredTopic]:
        """The routes of `topics`, without those that no broker serves; none given = of all topics, in ascending
        name.
        """
        return [
            RegisteredTopic(
                topic=topic,
                version=self._topic_versions[topic],
                brokers=tuple(self._brokers[name] for name in sorted(self._by_topic[topic])),
            )
            for topic in (dict.fromkeys(topics) if topics else sorted(self._by_topic))
            if topic in self._by_topic
        ]

    def register(self, entry: BrokerEntry, now_ms: int) -> RouteChange | None:
        """A broker reported everything. None if the table is as before.

        Raises PreconditionFailed if another incarnation holds the name, TooManyRequests if the table is full.
        """
        held = self._brokers.get(entry.name)
        if held is None and len(self._brokers) >= self._brokers_max:
            raise TooManyRequests(
                f"{self._brokers_max} brokers are registered, the maximum; raise brokers_max, or drop some"
            )
        if held is not None and held.incarnation != entry.incarnation:
            self._refuse_twin(held, entry)
        # Also one that was overtaken on its way is a sign of life.
        self._seen_ms[entry.name] = now_ms
        if held is not None and held.incarnation == entry.incarnation and _overtaken(entry, held):
            return None
        if held == entry:
            return None
        self._put(entry, held)
        other = held if held is not None and held.incarnation != entry.incarnation else None
        return RouteChange(version=self.version, broker=entry, replaced=other)

    def heartbeat(self, name: str, incarnation: str, data_version: int, now_ms: int) -> bool:
        """A broker is still here. True: what we know of it is not what it says, it must register again."""
        held = self._brokers.get(name)
        if held is None or held.incarnation != incarnation:
            return True
        self._seen_ms[name] = now_ms
        return held.data_version != data_version

    def unregister(self, name: str, incarnation: str) -> RouteChange | None:
        """A broker leaves. None if it was not here, or if another incarnation holds its name by now."""
        held = self._brokers.get(name)
        if held is None or held.incarnation != incarnation:
            return None
        return self._remove(held)

    def expire(self, now_ms: int) -> list[RouteChange]:
        """Drop all brokers that were silent for `expiry_ms` or longer, in ascending name."""
        silent = [name for name, seen_ms in self._seen_ms.items() if now_ms - seen_ms >= self._expiry_ms]
        return [self._remove(self._brokers[name]) for name in sorted(silent)]

    def excuse(self, paused_ms: int, now_ms: int) -> None:
        """This process did not run for `paused_ms`: that time does not count as any broker's silence."""
        self._seen_ms = {name: min(now_ms, seen_ms + paused_ms) for name, seen_ms in self._seen_ms.items()}

    def check(self) -> None:
        """Recompute what is always true."""
        assert self._brokers.keys() == self._seen_ms.keys()
        assert len(self._brokers) <= self._brokers_max
        expected: dict[str, set[str]] = {}
        for name, entry in self._brokers.items():
            assert entry.name == name
            for topic in entry.topics:
                expected.setdefault(topic, set()).add(name)
        assert {topic: set(names) for topic, names in self._by_topic.items()} == expected
        assert self._topic_versions.keys() == expected.keys()
        assert all(0 < version <= self.version for version in self._topic_versions.values())

    def _refuse_twin(self, held: BrokerEntry, entry: BrokerEntry) -> None:
        # The epoch first: a deposed leader whose process started later must not take the name back (R14).
        if (entry.epoch, entry.start_ms) > (held.epoch, held.start_ms):
            return
        holder = f"{held.addresses[0].target}, incarnation {held.incarnation}"
        if entry.epoch < held.epoch:
            raise PreconditionFailed(
                f"broker name {entry.name!r} is held by {holder} with leader epoch {held.epoch}, this one has "
                f"{entry.epoch}: it is no longer the leader"
            )
        raise PreconditionFailed(
            f"broker name {entry.name!r} is held by {holder}, which started later; give this broker another name, or "
            f"stop the other one (a dead one is dropped after {self._expiry_ms} ms)"
        )

    def _put(self, entry: BrokerEntry, held: BrokerEntry | None) -> None:
        self.version += 1
        before = held.topics if held is not None else {}
        moved = held is None or not entry.same_node(held)
        for topic, counts in entry.topics.items():
            # A route tells the broker's address and epoch as well: with those, every topic of it changes.
            if moved or before.get(topic) != counts:
                self._topic_versions[topic] = self.version
            self._by_topic.setdefault(topic, {})[entry.name] = None
        for topic in before:
            if topic not in entry.topics:
                self._leave_topic(topic, entry.name)
        self._brokers[entry.name] = entry

    def _remove(self, held: BrokerEntry) -> RouteChange:
        self.version += 1
        for topic in held.topics:
            self._leave_topic(topic, held.name)
        del self._brokers[held.name]
        del self._seen_ms[held.name]
        return RouteChange(version=self.version, removed=held.name)

    def _leave_topic(self, topic: str, name: str) -> None:
        names = self._by_topic[topic]
        del names[name]
        if names:
            self._topic_versions[topic] = self.version
        else:
            del self._by_topic[topic]
            # If it comes back it gets the table's version of then, which is above every one that a client has seen.
            del self._topic_versions[topic]


def _overtaken(entry: BrokerEntry, held: BrokerEntry) -> bool:
    """True for a registration that a later one of the same process overtook on the way."""
    return (entry.epoch, entry.data_version) < (held.epoch, held.data_version)
