"""Deliveries of a queue's messages to earlier owners, as its broker reported them with the lock.

Used by `core.process_queue` when it takes pulled messages. A message with a count of its own was delivered: an owner
began that delivery, or it failed. A message below `given_until` was given to a member that vanished; most likely no
listener got it. It counts as delivered once, but that count alone never uses up the last delivery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenq.client.core.calls import FINISHED


@dataclass(frozen=True, slots=True)
class PastDeliveries:
    """The deliveries known for one queue when it was taken."""

    given_until: int
    counts: Mapping[int, int]
    """Offset to deliveries so far, or to FINISHED."""
    attempts_max: int
    """Deliveries that a message may have."""

    @property
    def end(self) -> int:
        """First offset of which no delivery is known."""
        return max(self.given_until, max(self.counts, default=-1) + 1)

    def finished(self, offset: int) -> bool:
        """True if the message is done."""
        return self.counts.get(offset) == FINISHED

    def attempt(self, offset: int, own_number: int) -> tuple[int | None, bool]:
        """Returns the number of the next delivery (None: no earlier owner had it), and whether it must run apart.

        `own_number` is the number that the message states.
        """
        counted = self.counts.get(offset)
        if counted is not None:
            return max(own_number, counted + 1), True
        if offset >= self.given_until:
            return None, False
        number = max(own_number, min(own_number + 1, self.attempts_max))
        return number, number >= self.attempts_max
