"""Balance policy of a group besides its strategy: weights, a limit of moves, holds for members that are replaced.

Brokers keep one per group, and the rebalancer applies it. With the defaults all queues and members count the same,
moves have no limit, and nothing is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOVES_MAX: Final = 1_000_000
HOLD_MAX_MS: Final = 3_600_000


class Weight(StrEnum):
    """Measure of balance."""

    EVEN = ""
    """Every queue and every member counts the same."""
    LAG = "LAG"
    """Queues count by their lag."""
    CAPACITY = "CAPACITY"
    """Members count by the capacity that they report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePolicy:
    """One policy. Raises ValueError for numbers out of range."""

    weight: Weight = Weight.EVEN
    moves_max: int = 0
    """Most queues that one decision moves for balance alone, 0 .. 1,000,000; 0 = no limit."""
    hold_ms: int = 0
    """Time that queues of a member that is being replaced wait for its successor, 0 ms to 1 hour; 0 = not at all."""
    hold_lag_max: int = 0
    """Lag of a queue above which it is no longer held, messages; 0 = no limit."""

    def __post_init__(self) -> None:
        if not 0 <= self.moves_max <= MOVES_MAX:
            raise ValueError(f"moves_max is {self.moves_max}, the range is 0 (no limit) to {MOVES_MAX} queues")
        if not 0 <= self.hold_ms <= HOLD_MAX_MS:
            raise ValueError(f"a hold of {self.hold_ms} ms is outside 0 (none) to {HOLD_MAX_MS} ms (1 hour)")
        if not 0 <= self.hold_lag_max < 1 << 63:
            raise ValueError(f"hold_lag_max is {self.hold_lag_max} messages; give 0 (no limit) or more")
        if self.hold_lag_max and not self.hold_ms:
            raise ValueError(f"hold_lag_max {self.hold_lag_max} limits a hold, but hold_ms is 0; give hold_ms too")


EVEN_BALANCE: Final = BalancePolicy()
"""The default policy."""
