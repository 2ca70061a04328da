"""How a group's queues are shared beyond its strategy: weights, a budget of moves, a hold for replaced members.

Pure values; brokers keep one for each group, the rebalancer follows it. All zero means: every queue and member counts
alike, no limit of moves, nothing is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["EVEN_BALANCE", "BalancePolicy", "Weight"]

MOVES_MAX: Final = 1_000_000
HOLD_MAX_MS: Final = 3_600_000


class Weight(StrEnum):
    """What counts as balanced."""

    EVEN = ""
    """Every queue and every member counts alike."""
    LAG = "LAG"
    """Queues count by the messages that wait in them."""
    CAPACITY = "CAPACITY"
    """Members count by what they say they can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePolicy:
    """One policy. Raises ValueError for numbers outside their ranges; the sentence says which."""

    weight: Weight = Weight.EVEN
    moves_max: int = 0
    """Queues that one decision moves only for balance, 0 .. 1,000,000; 0 = no limit. Queues without an owner are always
    given."""
    hold_ms: int = 0
    """How long the queues of a member that is being replaced wait for its successor, 0 ms to 1 hour; 0 = not at all."""
    hold_lag_max: int = 0
    """Messages waiting in one queue that break its hold; 0 = no limit."""

    def __post_init__(self) -> None:
        if not 0 <= self.moves_max <= MOVES_MAX:
            raise ValueError(f"moves_max is {self.moves_max}, the range is 0 (no limit) to {MOVES_MAX} queues")
        if not 0 <= self.hold_ms <= HOLD_MAX_MS:
            raise ValueError(f"a hold of {self.hold_ms} ms is outside 0 (none) to {HOLD_MAX_MS} ms (1 hour)")
        if not 0 <= self.hold_lag_max < 1 << 63:
            raise ValueError(f"hold_lag_max is {self.hold_lag_max} messages; give 0 (no limit) or more")
        if self.hold_lag_max and not self.hold_ms:
            raise ValueError(f"hold_lag_max {self.hold_lag_max} breaks a hold, but hold_ms is 0; give hold_ms too")


EVEN_BALANCE: Final = BalancePolicy()
"""What a group has unless it is configured otherwise."""
