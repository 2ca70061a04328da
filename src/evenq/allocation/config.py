"""CONFIG: the queues that the user wrote down for this member, whatever the group looks like (AL-13).

Nothing checks that the lists of all members cover each queue once (AL-14); `coverage` over all members' lists does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.model import MessageQueue

__all__ = ["Config"]


@dataclass(frozen=True, slots=True)
class Config:
    """A fixed list, one per member, set in each member's own program."""

    queues: tuple[MessageQueue, ...] = ()
    name: str = "CONFIG"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The configured list; the arguments do not matter. No errors."""
        del group, own_id, queues, ids
        return list(self.queues)
