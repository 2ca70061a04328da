"""AVG, the default: each member gets one page of the sorted queues (AL-5 to AL-10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.allocation.strategy import checked, checked_all, places
from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Averagely:
    """Pages of neighbouring queues; the first members get one queue of the remainder each (AL-6)."""

    name: str = "AVG"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Errors: AL-2; own id not among the ids: nothing (AL-3)."""
        del group
        if not checked(own_id, queues, ids):
            return []
        return _page(queues, ids.index(own_id), len(ids))

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        del group
        checked_all(queues, ids)
        return {client_id: _page(queues, index, len(ids)) for client_id, index in places(ids).items()}


def _page(queues: Sequence[MessageQueue], index: int, count: int) -> list[MessageQueue]:
    page, rest = divmod(len(queues), count)
    first_pages = index < rest
    size = 1 if len(queues) <= count else page + first_pages
    start = index * size if first_pages else index * size + rest
    return list(queues[start : start + size])  # empty behind the last queue (AL-9)
