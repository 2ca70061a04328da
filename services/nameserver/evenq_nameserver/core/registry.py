"""The table of live brokers and their topics (NS-1, NS-5). Times are monotonic ms passed in.

There is one entry per broker name. The version of the table grows by one with each change, and a topic has the version
of its last change. `_by_topic` contains exactly the brokers whose entry lists the topic. Of two processes with one
broker name the higher leader epoch wins, among equals the later start (a restart); the other one gets an error with
the address of the holder.

A broker that left is remembered for `LEFT_MS`. A broker that joins later learns from that which others may know more
about its topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model.route import BrokerAddress

LEFT_MS = 600_000
LEFT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """A topic on one broker (RT-3)."""

    name: str
    message_type: int
    """Number of `apache.rocketmq.v2.MessageType`; all fields from here on are passed on unchanged."""
    read_queues: int
    write_queues: int
    permission: int
    """Number of `apache.rocketmq.v2.Permission`."""
    chosen: bool = False
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEntry:
    """A broker and its topics, as it reported last."""

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
    """Version of the software, for people."""
    copies: int = 1
    """Copies of its log in the broker group that it leads; 0 or 1: it is alone."""
    followers: tuple[str, ...] = ()
    """Addresses at which the other copies answer reads."""
    addresses: tuple[BrokerAddress, ...]
    """At least one; the first is the default (RT-1)."""
    data_version: int
    """Grows with each change of `topics` within one incarnation."""
    topics: dict[str, TopicEntry]

    def same_node(self, other: BrokerEntry) -> bool:
        """True if the fields of a route other than the topics are equal."""
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
    """One change of the table: a broker was added, changed or removed."""

    version: int
    """Version of the table after the change."""
    broker: BrokerEntry | None = None
    removed: str = ""
    replaced: BrokerEntry | None = None
    """Another incarnation that had the name until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTopic:
    """A topic and the brokers that serve it, in ascending name."""

    topic: str
    version: int
    brokers: tuple[BrokerEntry, ...]


class Registry:
    def __init__(self, *, expiry_ms: int, brokers_max: int) -> None:
        self.version = 0
        """0 = no broker has registered yet."""
        self._expiry_ms = expiry_ms
        self._brokers_max = brokers_max
        self._brokers: dict[str, BrokerEntry] = {}
        self._seen_ms: dict[str, int] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        self._topic_versions: dict[str, int] = {}
        self._left: dict[str, tuple[BrokerEntry, int]] = {}
        """Brokers that left, and when; the latest last."""

    @property
    def topic_count(self) -> int:
        """Number of topics that at least one live broker serves."""
        return len(self._by_topic)

    def knows(self, name: str) -> bool:
        return name in self._brokers

    def brokers(self) -> list[BrokerEntry]:
        """Returns all live brokers in ascending name."""
        return [self._brokers[name] for name in sorted(self._brokers)]

    def left(self, now_ms: int) -> list[tuple[BrokerEntry, int]]:
        """Returns brokers that left within `LEFT_MS` and are not back, and how long ago, ms; the latest last."""
        self._left = {name: left for name, left in self._left.items() if now_ms - left[1] < LEFT_MS}
        return [(entry, now_ms - left_ms) for entry, left_ms in self._left.values()]

    def routes(self, topics: Sequence[str] = ()) -> list[RegisteredTopic]:
        """Returns the routes of `topics` that any broker serves; without `topics`, all routes in ascending name."""
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
        """Applies a full report of a broker; None: nothing changed.

        Raises PreconditionFailed if another incarnation holds the name, TooManyRequests if the table is full.
        """
        held = self._brokers.get(entry.name)
        if held is None and len(self._brokers) >= self._brokers_max:
            raise TooManyRequests(
                f"{self._brokers_max} brokers are registered, the maximum; raise brokers_max, or drop some"
            )
        if held is not None and held.incarnation != entry.incarnation:
            self._refuse_twin(held, entry)
        # An outdated registration is a sign of life, too.
        self._seen_ms[entry.name] = now_ms
        if held is not None and held.incarnation == entry.incarnation and _overtaken(entry, held):
            return None
        if held == entry:
            return None
        self._put(entry, held)
        other = held if held is not None and held.incarnation != entry.incarnation else None
        return RouteChange(version=self.version, broker=entry, replaced=other)

    def heartbeat(self, name: str, incarnation: str, data_version: int, now_ms: int) -> bool:
        """Handles a sign of life. True: the table differs from the broker's data, so it must register again."""
        held = self._brokers.get(name)
        if held is None or held.incarnation != incarnation:
            return True
        self._seen_ms[name] = now_ms
        return held.data_version != data_version

    def unregister(self, name: str, incarnation: str, now_ms: int) -> RouteChange | None:
        """Removes a broker; None if it was not registered, or another incarnation holds its name by now."""
        held = self._brokers.get(name)
        if held is None or held.incarnation != incarnation:
            return None
        return self._remove(held, now_ms)

    def expire(self, now_ms: int) -> list[RouteChange]:
        """Removes all brokers that were silent for `expiry_ms` or longer, in ascending name."""
        silent = [name for name, seen_ms in self._seen_ms.items() if now_ms - seen_ms >= self._expiry_ms]
        return [self._remove(self._brokers[name], now_ms) for name in sorted(silent)]

    def excuse(self, paused_ms: int, now_ms: int) -> None:
        """Excludes `paused_ms`, in which this process did not run, from the silence of all brokers."""
        self._seen_ms = {name: min(now_ms, seen_ms + paused_ms) for name, seen_ms in self._seen_ms.items()}

    def check(self) -> None:
        """Recomputes the invariants; tests call it after each event."""
        assert self._brokers.keys() == self._seen_ms.keys()
        assert len(self._brokers) <= self._brokers_max
        assert len(self._left) <= LEFT_MAX
        assert not self._brokers.keys() & self._left.keys()
        expected: dict[str, set[str]] = {}
        for name, entry in self._brokers.items():
            assert entry.name == name
            for topic in entry.topics:
                expected.setdefault(topic, set()).add(name)
        assert {topic: set(names) for topic, names in self._by_topic.items()} == expected
        assert self._topic_versions.keys() == expected.keys()
        assert all(0 < version <= self.version for version in self._topic_versions.values())

    def _refuse_twin(self, held: BrokerEntry, entry: BrokerEntry) -> None:
        # Compares the epoch first: a deposed leader whose process started later must not take the name back (R14).
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
            # A route contains the broker's address and epoch as well: if they change, all its topics do.
            if moved or before.get(topic) != counts:
                self._topic_versions[topic] = self.version
            self._by_topic.setdefault(topic, {})[entry.name] = None
        for topic in before:
            if topic not in entry.topics:
                self._leave_topic(topic, entry.name)
        self._brokers[entry.name] = entry
        self._left.pop(entry.name, None)

    def _remove(self, held: BrokerEntry, now_ms: int) -> RouteChange:
        self.version += 1
        for topic in held.topics:
            self._leave_topic(topic, held.name)
        del self._brokers[held.name]
        del self._seen_ms[held.name]
        self._left[held.name] = held, now_ms
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]
        return RouteChange(version=self.version, removed=held.name)

    def _leave_topic(self, topic: str, name: str) -> None:
        names = self._by_topic[topic]
        del names[name]
        if names:
            self._topic_versions[topic] = self.version
        else:
            del self._by_topic[topic]
            # If the topic returns, it gets the table's version, which is above all that clients have seen.
            del self._topic_versions[topic]


def _overtaken(entry: BrokerEntry, held: BrokerEntry) -> bool:
    """True for a registration that is older than the one received from the same process before."""
    return (entry.epoch, entry.data_version) < (held.epoch, held.data_version)
