"""Who of a group's other copies answers, and since when one does not; how far each is, and what store it named last.

For people: the protocol has its own ways (`Replica.lost`, `silent`). Kept while the process lives, so a new leader
knows since when the old one is away. Belongs to one loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from evenq_broker.core.replication.group_view import PeersSeen, confirmed_end
from evenq_broker.core.replication.messages import Envelope
from evenq_broker.core.replication.replica import Replica

__all__ = ["PeerWatch"]


class PeerWatch:
    """See the module."""

    def __init__(self, others: Iterable[int]) -> None:
        self._others = frozenset(others)
        self._connected: AbstractSet[int] = frozenset()
        self._stores: dict[int, str] = {}
        self._away_since_ms: dict[int, int] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        """Copy -> (an end of the leader's log, when the copy was last seen to have reached such an end, ms)."""

    def set_others(self, others: Iterable[int]) -> None:
        """The group's other copies changed; what was known of one that left is forgotten."""
        self._others = kept = frozenset(others)
        self._stores = {one: store for one, store in self._stores.items() if one in kept}
        self._away_since_ms = {one: ms for one, ms in self._away_since_ms.items() if one in kept}
        self._marks = {one: mark for one, mark in self._marks.items() if one in kept}

    def heard(self, envelope: Envelope) -> None:
        """A message came; of a member, as its link was asked for."""
        if envelope.sender in self._others:
            self._stores[envelope.sender] = envelope.store_id

    def look(self, connected: AbstractSet[int], now_ms: int) -> None:
        """These answer now. `now_ms`: ms since the epoch."""
        self._connected = connected
        for broker_id in self._others:
            if broker_id in connected:
                self._away_since_ms.pop(broker_id, None)
            else:
                self._away_since_ms.setdefault(broker_id, now_ms)

    def measure(self, replica: Replica, now_ms: int) -> None:
        """How far the others are now, if this replica leads. Not the protocol's own look at that (`caught_up`), which
        rests while the group record cannot be written. `now_ms`: of the clock that the replica gets.
        """
        if not replica.leads:
            self._marks.clear()
            return
        for broker_id in self._others:
            confirmed, mark = confirmed_end(replica, broker_id, self._stores), self._marks.get(broker_id)
            if mark is None or (confirmed is not None and confirmed >= mark[0]):
                self._marks[broker_id] = (replica.end, now_ms)

    def seen(self) -> PeersSeen:
        """All of it, as it is now."""
        return PeersSeen(
            connected=self._connected,
            stores=dict(self._stores),
            away_since_ms=dict(self._away_since_ms),
            complete_ms={broker_id: mark[1] for broker_id, mark in self._marks.items()},
        )
