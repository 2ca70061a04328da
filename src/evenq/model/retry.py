"""Pauses before a failed message is redelivered to a consumer group (wire contract 4.3, 4.4; RD-4, RD-10).

CLASSIC is the cluster's table of delay levels from level 3 up: 10 s, 30 s, 1 min ... 2 h, 16 pauses. CUSTOMIZED is a
list of the group, whose last pause repeats. EXPONENTIAL grows from `initial_ms` by `multiplier` up to `max_ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from evenq.model.delay_levels import CLASSIC as CLASSIC_LEVELS
from evenq.model.delay_levels import DelayLevels

PAUSES_MAX: Final = 64
PAUSE_MAX_MS: Final = 7 * 86_400_000
MULTIPLIER_MAX: Final = 100.0
_FIRST_LEVEL = 3  # RD-10


class RetryKind(StrEnum):
    CLASSIC = "CLASSIC"
    CUSTOMIZED = "CUSTOMIZED"
    EXPONENTIAL = "EXPONENTIAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """One policy. Raises ValueError for numbers out of range."""

    kind: RetryKind = RetryKind.CLASSIC
    delays_ms: tuple[int, ...] = ()
    """CUSTOMIZED: 1 to 64 pauses, each 0 ms to 7 days."""
    initial_ms: int = 0
    """EXPONENTIAL: the first pause, 1 ms to 7 days."""
    max_ms: int = 0
    """EXPONENTIAL: the longest pause, `initial_ms` to 7 days."""
    multiplier: float = 2.0
    """EXPONENTIAL: 1 to 100."""

    def __post_init__(self) -> None:
        if self.kind is RetryKind.CUSTOMIZED:
            if not 1 <= len(self.delays_ms) <= PAUSES_MAX:
                raise ValueError(f"the retry policy has {len(self.delays_ms)} pauses, give 1 to {PAUSES_MAX}")
            for delay_ms in self.delays_ms:
                if not 0 <= delay_ms <= PAUSE_MAX_MS:
                    raise ValueError(f"a retry pause of {delay_ms} ms is outside 0 to {PAUSE_MAX_MS} ms (7 days)")
        elif self.kind is RetryKind.EXPONENTIAL:
            if not 1 <= self.initial_ms <= self.max_ms <= PAUSE_MAX_MS:
                raise ValueError(
                    f"an exponential retry from {self.initial_ms} ms to {self.max_ms} ms is not within 1 to "
                    f"{PAUSE_MAX_MS} ms (7 days), the first pause not above the longest"
                )
            if not 1.0 <= self.multiplier <= MULTIPLIER_MAX:
                raise ValueError(f"a retry multiplier of {self.multiplier} is outside 1 to {MULTIPLIER_MAX:.0f}")

    def delay_ms(self, attempts: int, *, levels: DelayLevels = CLASSIC_LEVELS) -> int:
        """Returns the pause after `attempts` failed deliveries (1 = the first), ms. `levels`: for CLASSIC."""
        attempts = max(1, attempts)
        if self.kind is RetryKind.EXPONENTIAL:
            # A float would overflow long before the 1,000th attempt: stop multiplying at `max_ms`.
            delay = float(self.initial_ms)
            for _ in range(attempts - 1):
                if delay >= self.max_ms or self.multiplier == 1.0:
                    break
                delay *= self.multiplier
            return min(int(delay), self.max_ms)
        pauses = self.delays_ms if self.kind is RetryKind.CUSTOMIZED else levels.delays_ms[_FIRST_LEVEL - 1 :]
        return pauses[min(attempts, len(pauses)) - 1] if pauses else levels.delays_ms[-1]

    def pauses_ms(self, count: int, *, levels: DelayLevels = CLASSIC_LEVELS) -> Sequence[int]:
        """Returns the first pauses, at least one and at most `count`; ends where the pauses stop changing."""
        pauses = [self.delay_ms(attempt, levels=levels) for attempt in range(1, max(2, min(count, PAUSES_MAX) + 1))]
        while len(pauses) > 1 and pauses[-1] == pauses[-2]:
            pauses.pop()
        return pauses

    def __str__(self) -> str:
        match self.kind:
            case RetryKind.CLASSIC:
                return "classic"
            case RetryKind.CUSTOMIZED:
                return " ".join(map(_short, self.delays_ms))
            case RetryKind.EXPONENTIAL:
                return f"{_short(self.initial_ms)} x{self.multiplier:g} to {_short(self.max_ms)}"


def _short(delay_ms: int) -> str:
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if delay_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms}ms"


CLASSIC_RETRY: Final = RetryPolicy()
"""The default policy."""
