"""How these tests look for a state: often at first, as most come at once, then less and less often.

A look asks brokers, Spark's JVM or a whole Spark job, and takes the processor from what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FIRST_S, LONGEST_S, GROWTH = 0.02, 0.25, 1.2


def seconds_until(condition: Callable[[], Any], *, within_s: float) -> float | None:
    """How long it took until it held; None: `within_s` were not enough."""
    began, pause = time.monotonic(), FIRST_S
    while not condition():
        if time.monotonic() - began > within_s:
            return None
        time.sleep(pause)
        pause = min(GROWTH * pause, LONGEST_S)
    return time.monotonic() - began


def within(seconds: float, condition: Callable[[], Any]) -> bool:
    """Whether it came to hold in this time."""
    return seconds_until(condition, within_s=seconds) is not None
