"""Answers of a group's other copies: which one answers, since when one does not, how far each is, its last store.

For operators: the protocol has its own means (`Replica.lost`, `silent`). Kept while the process lives, so a new leader
knows since when the old one is away. Belongs to one loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from evenq_broker.core.replication.group_view import PeersSeen, confirmed_end
from evenq_broker.core.replication.messages import Envelope
from evenq_broker.core.replication.replica import Replica


class PeerWatch:
    """Observed state of the other copies."""

    def __init__(self, others: Iterable[int]) -> None:
        self._others = frozenset(others)
        self._connected: AbstractSet[int] = frozenset()
        self._stores: dict[int, str] = {}
        self._away_since_ms: dict[int, int] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        """Copy -> (an end of the leader's log, when the copy was last seen to have reached such an end, ms)."""

    def set_others(self, others: Iterable[int]) -> None:
        """Sets the group's other copies; former ones are forgotten."""
        self._others = kept = frozenset(others)
        self._stores = {one: store for one, store in self._stores.items() if one in kept}
        self._away_since_ms = {one: ms for one, ms in self._away_since_ms.items() if one in kept}
        self._marks = {one: mark for one, mark in self._marks.items() if one in kept}

    def heard(self, envelope: Envelope) -> None:
        """Notes a message of a member; its link has checked the sender."""
        if envelope.sender in self._others:
            self._stores[envelope.sender] = envelope.store_id

    def look(self, connected: AbstractSet[int], now_ms: int) -> None:
        """Notes the copies that answer now. `now_ms`: ms since the epoch."""
        self._connected = connected
        for broker_id in self._others:
            if broker_id in connected:
                self._away_since_ms.pop(broker_id, None)
            else:
                self._away_since_ms.setdefault(broker_id, now_ms)

    def measure(self, replica: Replica, now_ms: int) -> None:
        """Measures how far the others are, if this replica leads, also while the record cannot be written."""
        if not replica.leads:
            self._marks.clear()
            return
        for broker_id in self._others:
            confirmed, mark = confirmed_end(replica, broker_id, self._stores), self._marks.get(broker_id)
            if mark is None or (confirmed is not None and confirmed >= mark[0]):
                self._marks[broker_id] = (replica.log.end, now_ms)

    def seen(self) -> PeersSeen:
        """Returns the present state."""
        return PeersSeen(
            connected=self._connected,
            stores=dict(self._stores),
            away_since_ms=dict(self._away_since_ms),
            complete_ms={broker_id: mark[1] for broker_id, mark in self._marks.items()},
        )
