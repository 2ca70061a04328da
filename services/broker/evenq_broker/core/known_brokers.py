"""The memory of which brokers belong to the cluster: one that was seen once is missed when it is not there, for as long
as nobody says that it left for good.

Kept by every broker, and in its journal, because nameservers forget at once and a broker that ended undrained takes
what it holds out of everybody's sight. A drained broker that ends says that it leaves; what it still holds that nobody
can be waited for keeps it in memory, with the numbers. Pure; `loops.known_brokers` feeds it. Times are ms since the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from evenq_broker.core.journal import BrokerForgotten, BrokerKnown

__all__ = ["KnownBrokers"]

KNOWN_MAX = 1_000  # as many as a nameserver takes


class KnownBrokers:
    """Names of brokers, the own one not among them."""

    __slots__ = ("_known", "_leaving", "_present")

    def __init__(self) -> None:
        self._known: dict[str, BrokerKnown] = {}
        self._present: dict[str, str] = {}
        """Name of a broker that is there -> its incarnation."""
        self._leaving: dict[str, tuple[str, BrokerKnown]] = {}
        """Name -> the incarnation that said that it leaves, and what is to be known of it then."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def look(self, present: Mapping[str, str], now_ms: int) -> list[BrokerKnown | BrokerForgotten]:
        """These brokers are there, name -> incarnation, and no other: what to record."""
        before, self._present = self._present, dict(present)
        ops: list[BrokerKnown | BrokerForgotten] = []
        for name in sorted(present):
            known = self._known.get(name)
            if known is None and len(self._known) >= KNOWN_MAX:
                continue
            if known is None or known.gone_ms:
                ops.append(self._put(BrokerKnown(name)))
        for name in sorted(self._known.keys() - present.keys()):
            incarnation, left = self._leaving.pop(name, ("", None))
            if left is not None and before.get(name) == incarnation:
                if left.unread or left.dead_letters:
                    ops.append(self._put(replace(left, gone_ms=now_ms)))
                else:
                    ops.append(self._drop(name))
            elif not self._known[name].gone_ms:
                ops.append(self._put(BrokerKnown(name, now_ms)))
        return ops

    def leaves(self, name: str, incarnation: str, *, unread: int, dead_letters: int) -> None:
        """A drained broker that is still there says that it ends now, and what it still holds."""
        if self._present.get(name) == incarnation:
            self._leaving[name] = incarnation, BrokerKnown(name, 0, unread, dead_letters)

    def forget(self, name: str) -> BrokerForgotten | None:
        """An operator says that it is gone for good. Gives what to record; None: it was not known."""
        return self._drop(name) if name in self._known else None

    def missing(self) -> list[BrokerKnown]:
        """Those that are not there, ascending."""
        return [self._known[name] for name in sorted(self._known) if self._known[name].gone_ms]

    def apply(self, op: BrokerKnown | BrokerForgotten) -> None:
        """Replay one operation."""
        if isinstance(op, BrokerKnown):
            self._put(op)
        else:
            self._drop(op.name)

    def dump(self) -> Iterator[BrokerKnown]:
        """All of it as operations, for a snapshot."""
        return iter(list(self._known.values()))

    def _put(self, known: BrokerKnown) -> BrokerKnown:
        self._known[known.name] = known
        return known

    def _drop(self, name: str) -> BrokerForgotten:
        self._known.pop(name, None)
        return BrokerForgotten(name)
