"""AVG_BY_CIRCLE: the sorted queues go to the members one by one, in turn (AL-11, AL-12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.allocation.strategy import checked, checked_all, places
from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class ByCircle:
    """Each member gets queues of all brokers, where AVG may give one broker's queues to one member."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Errors: AL-2; own id not among the ids: nothing (AL-3)."""
        del group
        if not checked(own_id, queues, ids):
            return []
        return list(queues[ids.index(own_id) :: len(ids)])

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        del group
        checked_all(queues, ids)
        return {client_id: list(queues[index :: len(ids)]) for client_id, index in places(ids).items()}
