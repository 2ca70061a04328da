"""Memory of the brokers of the cluster: a known broker is missed until it is known to have left for good.

Every broker keeps it, also in its journal: nameservers forget immediately, and a broker that ends undrained takes its
messages out of sight. A drained broker announces that it leaves. If it still holds messages that no group can be waited
for, it stays known, with their numbers. The memory also has the last readable queues of each broker by topic, so that
readers of whole topics learn what is out of reach. Pure; `loops.cluster.known_brokers` feeds it. Times are ms since the
epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from evenq.model.names import DLQ_PREFIX
from evenq_broker.core.state.records import BrokerForgotten, BrokerKnown, BrokerTopics

KNOWN_MAX = 1_000  # the limit of a nameserver
TOPICS_IN_ONE = 1_000  # in one operation, so that a record stays small


@dataclass(frozen=True, slots=True)
class Away:
    """A broker that is away and had readable queues of a topic."""

    name: str
    read_queues: int
    gone_ms: int
    """When it was first missed; 0: not yet, it may come back at any moment."""
    followers: tuple[str, ...] = ()
    """Addresses at which the other copies of its log last answered reads, as far as this process saw."""


class KnownBrokers:
    """Names of the other brokers of the cluster."""

    __slots__ = ("_known", "_leaving", "_present", "_topics")

    def __init__(self) -> None:
        self._known: dict[str, BrokerKnown] = {}
        self._present: dict[str, str] = {}  # name of a present broker -> its incarnation
        self._leaving: dict[str, tuple[str, BrokerKnown]] = {}
        """Name -> the incarnation that announced its end, and the record to keep after it."""
        self._topics: dict[str, dict[str, int]] = {}
        """Name -> topic -> readable queues there, as last seen."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def look(
        self, present: Mapping[str, str], now_ms: int, *, sure: bool = True
    ) -> list[BrokerKnown | BrokerForgotten]:
        """Takes in the present brokers, name -> incarnation; `sure`: there are no others. Returns what to record."""
        before, self._present = self._present, dict(present) if sure else {**self._present, **present}
        ops: list[BrokerKnown | BrokerForgotten] = []
        for name in sorted(present):
            known = self._known.get(name)
            if known is None and len(self._known) >= KNOWN_MAX:
                continue
            if known is None or known.gone_ms:
                ops.append(self._put(BrokerKnown(name)))
        for name in sorted(self._known.keys() - present.keys()) if sure else ():
            incarnation, left = self._leaving.pop(name, ("", None))
            if left is not None and before.get(name) == incarnation:
                if left.unread or left.dead_letters:
                    ops.append(self._put(replace(left, gone_ms=now_ms)))
                else:
                    ops.append(self._drop(name))
            elif not self._known[name].gone_ms:
                ops.append(self._put(BrokerKnown(name, now_ms)))
        return ops

    def expected(self) -> list[str]:
        """Returns brokers that are present, or were when the routes were last sure, ascending."""
        return sorted(name for name, known in self._known.items() if not known.gone_ms)

    def learn(self, name: str, read_queues: Mapping[str, int]) -> list[BrokerTopics]:
        """Takes in all readable queues of a known, present broker, by topic. Returns what to record."""
        if name not in self._known:
            return []
        before = self._topics.get(name, {})
        changed = {topic: count for topic, count in read_queues.items() if count and before.get(topic) != count}
        changed |= {topic: 0 for topic in before if not read_queues.get(topic)}
        ops = list(_chunks(name, changed))
        for op in ops:
            self._learn(op)
        return ops

    def topic_deleted(self, topic: str) -> list[BrokerTopics]:
        """Forgets an absent broker's queues of a topic that was deleted everywhere. Returns what to record."""
        ops = [
            BrokerTopics(name, {topic: 0})
            for name in sorted(self._topics)
            if name not in self._present and topic in self._topics[name]
        ]
        for op in ops:
            self._learn(op)
        return ops

    def away(self, topic: str, present: Collection[str]) -> list[Away]:
        """Returns brokers not among `present` that had readable queues of the topic, ascending.
        A drained one that holds nothing but dead letters is returned for dead-letter topics only.
        """
        return [
            Away(name, count, self._known[name].gone_ms)
            for name in sorted(self._known)
            if name not in present
            and (count := self._topics.get(name, {}).get(topic, 0))
            and not self._only_dead_letters(name, topic)
        ]

    def homes(self, topic: str, present: Container[str], since_ms: int, started_ms: int) -> list[str]:
        """Returns brokers not among `present` that had queues of the topic and went after `since_ms`, ascending.
        One that was not missed yet went after `started_ms` at the latest; drained ones are left out.
        """
        return [
            name
            for name, known in sorted(self._known.items())
            if name not in present
            and topic in self._topics.get(name, {})
            and not (known.unread or known.dead_letters)
            and (known.gone_ms or started_ms) > since_ms
        ]

    def _only_dead_letters(self, name: str, topic: str) -> bool:
        known = self._known[name]
        return bool(known.dead_letters) and not known.unread and not topic.startswith(DLQ_PREFIX)

    def leaves(self, name: str, incarnation: str, *, unread: int, dead_letters: int) -> None:
        """Notes that a drained broker, still present, announces its end, and what it still holds."""
        if self._present.get(name) == incarnation:
            self._leaving[name] = incarnation, BrokerKnown(name, 0, unread, dead_letters)

    def forget(self, name: str) -> BrokerForgotten | None:
        """Forgets a broker that an operator declares gone for good. Returns what to record; None: it was not known."""
        return self._drop(name) if name in self._known else None

    def missing(self) -> list[BrokerKnown]:
        """Returns the absent brokers, ascending."""
        return [self._known[name] for name in sorted(self._known) if self._known[name].gone_ms]

    def apply(self, op: BrokerKnown | BrokerForgotten | BrokerTopics) -> None:
        match op:
            case BrokerKnown():
                self._put(op)
            case BrokerForgotten():
                self._drop(op.name)
            case BrokerTopics():
                self._learn(op)

    def dump(self) -> Iterator[BrokerKnown | BrokerTopics]:
        for known in list(self._known.values()):
            yield known
            yield from _chunks(known.name, self._topics.get(known.name, {}))

    def _put(self, known: BrokerKnown) -> BrokerKnown:
        self._known[known.name] = known
        return known

    def _drop(self, name: str) -> BrokerForgotten:
        self._known.pop(name, None)
        self._topics.pop(name, None)
        return BrokerForgotten(name)

    def _learn(self, op: BrokerTopics) -> None:
        topics = self._topics.setdefault(op.name, {})
        for topic, count in op.read_queues.items():
            if count:
                topics[topic] = count
            else:
                topics.pop(topic, None)


def _chunks(name: str, read_queues: Mapping[str, int]) -> Iterator[BrokerTopics]:
    rest = iter(read_queues.items())
    while part := dict(islice(rest, TOPICS_IN_ONE)):
        yield BrokerTopics(name, part)
