"""What earlier owners of a queue had of it, as its broker said with the lock: which delivery comes next.

Used by `core.process_queue` while it takes what was pulled. A count of its own is certain: an owner began that
delivery, or failed. Below `given_until` a message was in the hands of a member that vanished; most likely no listener
had it. It counts as delivered once, but that alone never takes away the last delivery. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenq.client.core.calls import FINISHED

__all__ = ["PastDeliveries"]


@dataclass(frozen=True, slots=True)
class PastDeliveries:
    """Of one queue, when it was taken."""

    given_until: int
    counts: Mapping[int, int]
    """Offset to deliveries so far, or to FINISHED."""
    attempts_max: int
    """Deliveries that a message may have."""

    @property
    def end(self) -> int:
        """From this offset on nothing is known."""
        return max(self.given_until, max(self.counts, default=-1) + 1)

    def finished(self, offset: int) -> bool:
        """True if no owner needs the message any more."""
        return self.counts.get(offset) == FINISHED

    def attempt(self, offset: int, own_number: int) -> tuple[int | None, bool]:
        """Which delivery the next one is, if the message says of itself that it is number `own_number`, and whether it
        must run apart; None: no owner had the message before.
        """
        counted = self.counts.get(offset)
        if counted is not None:
            return max(own_number, counted + 1), True
        if offset >= self.given_until:
            return None, False
        number = max(own_number, min(own_number + 1, self.attempts_max))
        return number, number >= self.attempts_max
