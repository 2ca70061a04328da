"""Brokers that a producer avoids for a while (PR-4, PR-5), by the latency of their answers and by failed tries.

Owned by a producer's loop, and used only if `ProducerOptions.latency_faults` is on (XO-14: off by default). The steps
are those of RocketMQ 4.9. A slow answer causes a pause that depends on its latency. Failures in a row cause growing
pauses; the first failure causes none, because another queue of the same broker is tried first. A paused broker still
gets a share of its messages. So the others do not get all of them at the same time, and a recovery is noticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

LATENCY_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
"""Lower bounds of the latency classes, ms (RocketMQ 4.9 producer)."""
AVOID_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""Time for which a broker of each latency class is avoided, ms."""
KEPT_SHARE = 5
"""One of this number of messages for an avoided broker is still sent to it (PR-5: a cap on the share moved)."""

_FIRST_FAILURE = 1  # its class: no pause yet


class _BrokerFaults:
    __slots__ = ("failures", "passed", "until_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0
        self.passed = 0


class FaultTable:
    __slots__ = ("_faults",)

    def __init__(self) -> None:
        self._faults: dict[str, _BrokerFaults] = {}

    def answered(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """Notes a successful try. A quick answer ends the pause."""
        step = bisect_right(LATENCY_MS, latency_ms) - 1
        pause_ms = AVOID_MS[step] if step >= 0 else 0
        if pause_ms or broker in self._faults:
            fault = self._faults.setdefault(broker, _BrokerFaults())
            fault.failures = 0
            fault.until_ms = now_ms + pause_ms

    def failed(self, broker: str, now_ms: int) -> None:
        """Notes a failed try, such as a timeout."""
        fault = self._faults.setdefault(broker, _BrokerFaults())
        step = min(_FIRST_FAILURE + fault.failures, len(AVOID_MS) - 1)
        fault.failures += 1
        fault.until_ms = max(fault.until_ms, now_ms + AVOID_MS[step])

    def avoided(self, broker: str, now_ms: int) -> bool:
        fault = self._faults.get(broker)
        return fault is not None and fault.until_ms > now_ms

    def admits(self, broker: str, now_ms: int) -> bool:
        """True if this message may be sent to the broker: always without a pause, one of `KEPT_SHARE` in a pause."""
        fault = self._faults.get(broker)
        if fault is None or fault.until_ms <= now_ms:
            return True
        fault.passed += 1
        return fault.passed % KEPT_SHARE == 0

    def soonest(self, brokers: Iterable[str]) -> str:
        """Returns the broker whose pause ends first; used when all are in a pause."""
        return min(brokers, key=lambda name: self._faults[name].until_ms if name in self._faults else 0)
