"""Whether a leader's store takes appends: as the core says, and neither while a hand-over is about to begin nor while
nothing can be confirmed.
"""

from __future__ import annotations

from evenq.errors import HaNotAvailable, PersistenceTimeout
from evenq.store import MessageStore
from evenq_broker.core.replication.replica import Replica

__all__ = ["AppendGate"]


class AppendGate:
    """Of one replica; the store is that of its term, None while it has none."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._settling = False
        self.isolation = ""
        """Why nothing can be confirmed; empty: nothing hinders."""

    def look(self, store: MessageStore | None) -> None:
        """Refuse appends, or take them again."""
        if store is not None:
            reason = self._reason()
            store.refuse(HaNotAvailable(f"nothing is taken now: {reason}; try again") if reason else None)

    def _reason(self) -> str:
        replica = self._replica
        if replica.may_append() and not self._settling:
            return self.isolation
        have, least = replica.copies(), 0 if replica.record is None else replica.record.min_isr
        return "the broker hands over to another one" if have >= least else f"{have} of {least} copies are in sync"

    async def settle(self, store: MessageStore | None, within_ms: int) -> None:
        """Refuse appends until `settled`, and wait until those before have their outcome, `within_ms` at most (decision
        98).
        """
        self._settling = True
        self.look(store)
        if store is not None:
            await store.settle(within_ms)

    def settled(self, store: MessageStore | None) -> None:
        """Take appends again if the core says so."""
        self._settling = False
        self.look(store)

    def close(self, store: MessageStore | None, reason: str) -> None:
        """The term is over: who waits for a commit does not know whether the record is kept, who comes later does."""
        if store is not None:
            store.give_up(
                PersistenceTimeout(f"{reason}; whether the record is kept is not known: look, or send it again"),
                later=HaNotAvailable(
                    f"nothing is taken here any more: {reason}; try again, another copy leads or will"
                ),
            )
