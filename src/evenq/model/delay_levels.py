"""Delay levels: numbers for fixed delays of a message's delivery (RD-9 to RD-12, XO-12).

Level 1 is the first delay of the text. A level above the highest counts as the highest; 0 and less mean no delay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evenq.errors import BadRequest

CLASSIC_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # XO-12
UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_MAX: Final = 64

_DELAY = re.compile(r"([1-9][0-9]{0,8})([smhd])")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """A table of delays, ms."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """Parses a text like `1s 5s 1m 2h 1d`, one delay per level. Raises BadRequest with the wrong part."""
        parts = text.split()
        if not 1 <= len(parts) <= LEVELS_MAX:
            raise BadRequest(f"the delay levels {text!r} have {len(parts)} delays: give 1 to {LEVELS_MAX}")
        delays = []
        for part in parts:
            match = _DELAY.fullmatch(part)
            if match is None:
                raise BadRequest(f"the delay {part!r} in the delay levels {text!r} is not like 10s, 5m, 2h or 1d")
            delays.append(int(match[1]) * UNIT_MS[match[2]])
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """Number of levels; 18 in the classic table (RD-9)."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """Returns the delay of this level, ms; 0 for level 0 and less."""
        if level <= 0:
            return 0
        return self.delays_ms[min(level, self.highest) - 1]

    def retry_level(self, delivery_attempt: int) -> int:
        """Returns the level of the pause after this number of failed deliveries (1 = the first): 3 and up (RD-10)."""
        return min(2 + max(1, delivery_attempt), self.highest)


CLASSIC: Final = DelayLevels.parse(CLASSIC_TEXT)
"""The 18 default levels of a broker (RD-9)."""
