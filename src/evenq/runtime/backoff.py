"""Growing delays after failures, with jitter, up to a bound."""

from __future__ import annotations

import random


class Backoff:
    """Delays from `first_ms` by `factor` up to `max_ms`, spread by +-20 % so that peers do not retry in step."""

    def __init__(self, rng: random.Random, *, first_ms: int = 100, max_ms: int = 5_000, factor: float = 2.0) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._factor = factor
        self._next_ms = float(first_ms)

    def next_ms(self) -> int:
        """Returns the delay before the next attempt, ms."""
        delay = self._next_ms
        self._next_ms = min(delay * self._factor, self._max_ms)
        return max(1, int(delay * self._rng.uniform(0.8, 1.2)))

    def reset(self) -> None:
        """Starts again with `first_ms`, after a success."""
        self._next_ms = float(self._first_ms)
