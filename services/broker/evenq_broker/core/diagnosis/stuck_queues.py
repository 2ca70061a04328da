"""Time for which each group's oldest unfinished message of a queue is the same, and groups that went back by
themselves.

`loops.diagnosis.watching` updates it every few seconds; the diagnosis of a group and metrics read it. Progress itself
keeps no times, so that receiving and committing cost nothing for this. Pure: times are monotonic ms; an answer is as
exact as the looks are frequent.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

BACK_MAX = 1_000
BACK_KEPT_MS = 3_600_000

QueueKey = tuple[int, int, int]  # Group, topic and queue number


@dataclass(frozen=True, slots=True)
class Back:
    """A group went back in a queue."""

    from_offset: int
    to_offset: int
    at_ms: int


class StuckQueues:
    """One entry for each group and queue with progress, and the newest `back_max` that went back."""

    __slots__ = ("_at", "_back", "_back_max", "_seen")

    def __init__(self, *, back_max: int = BACK_MAX) -> None:
        self._at: dict[QueueKey, tuple[int, int]] = {}
        self._seen: dict[QueueKey, tuple[int, int]] = {}
        self._back: OrderedDict[QueueKey, Back] = OrderedDict()
        self._back_max = back_max

    def look(self, queue_key: QueueKey, committed: int, *, waits: bool, now_ms: int) -> None:
        """Takes in the group's present offset; `waits`: there is something it has not finished."""
        known = self._at.get(queue_key)
        if known is not None and committed < known[0]:
            self._back[queue_key] = Back(known[0], committed, now_ms)
            self._back.move_to_end(queue_key)
            if len(self._back) > self._back_max:
                self._back.popitem(last=False)
        stays = known is not None and known[0] == committed and waits
        self._seen[queue_key] = known if stays and known is not None else (committed, now_ms)

    def end_of_round(self) -> None:
        """Ends a round: queues that were not looked at are gone."""
        self._at, self._seen = self._seen, {}

    def meant(self, queue_key: QueueKey, committed: int, *, now_ms: int) -> None:
        """Notes that an operator moved the group there, which does not count as going back."""
        self._back.pop(queue_key, None)
        for places in (self._at, self._seen):
            if queue_key in places:
                places[queue_key] = (committed, now_ms)

    def unmoved_ms(self, queue_key: QueueKey, committed: int, *, now_ms: int) -> int:
        """Returns how long the group has waited at `committed`; 0 if it has moved since the last look."""
        known = self._at.get(queue_key)
        return now_ms - known[1] if known is not None and known[0] == committed else 0

    def back(self, queue_key: QueueKey, *, now_ms: int) -> Back | None:
        """Returns its last step back, if that was within the last hour."""
        step = self._back.get(queue_key)
        return step if step is not None and now_ms - step.at_ms <= BACK_KEPT_MS else None

    def stuck(self, limit_ms: int, *, now_ms: int) -> list[tuple[QueueKey, int]]:
        """Returns queues that have waited at one offset for at least `limit_ms`, with the offset."""
        return [(queue_key, at) for queue_key, (at, since_ms) in self._at.items() if now_ms - since_ms >= limit_ms]

    def __len__(self) -> int:
        return len(self._at)
