"""Gate of a leader's store: it accepts appends only while the core allows them (`may_append`), no hand-over is about to
begin, and copies or the record's place can confirm (`isolation`).

A rejected append is not stored, so a client may send it again to the next leader without a duplicate. Decision 98 has
the reason for `settle`: without it, records written during a hand-over would have an unknown outcome.
"""

from __future__ import annotations

from evenq.errors import HaNotAvailable, PersistenceTimeout
from evenq.store import MessageStore
from evenq_broker.core.replication.replica import Replica


class AppendGate:
    """Gate of one replica; `store` is that of its term, None without one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._settling = False
        """True from `settle` to `settled`: a hand-over waits for earlier appends."""
        self.isolation = ""
        """Why nothing can be confirmed (`isolation.py`); empty: nothing hinders."""

    def look(self, store: MessageStore | None) -> None:
        """Rejects or accepts appends from now on, by the present state."""
        if store is not None:
            reason = self._reason()
            store.refuse(HaNotAvailable(f"no messages are accepted now: {reason}; try again") if reason else None)

    def _reason(self) -> str:
        replica = self._replica
        if replica.leader.may_append() and not self._settling:
            return self.isolation
        have, least = replica.copies.count_in_sync(), 0 if replica.record is None else replica.record.min_isr
        return "the broker hands over to another one" if have >= least else f"{have} of {least} copies are in sync"

    async def settle(self, store: MessageStore | None, within_ms: int) -> None:
        """Rejects appends until `settled`; waits `within_ms` at most for the outcome of earlier ones (decision 98)."""
        self._settling = True
        self.look(store)
        if store is not None:
            await store.settle(within_ms)

    def settled(self, store: MessageStore | None) -> None:
        """Accepts appends again if the core allows them."""
        self._settling = False
        self.look(store)

    def close(self, store: MessageStore | None, reason: str) -> None:
        """Ends the term: senders that wait for a commit get an unknown outcome, later ones a definite error."""
        if store is not None:
            store.give_up(
                PersistenceTimeout(f"{reason}; whether the record is kept is not known: check, or send it again"),
                later=HaNotAvailable(
                    f"no messages are accepted here any more: {reason}; try again, another copy leads or will"
                ),
            )
