"""CONFIG: a fixed list of queues per member, independent of the group (AL-13).

The strategy does not check that the lists cover each queue once (AL-14); call `coverage` with the lists of all members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Config:
    queues: tuple[MessageQueue, ...] = ()
    name: str = "CONFIG"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Returns the configured list, whatever the arguments are. No errors."""
        del group, own_id, queues, ids
        return list(self.queues)
