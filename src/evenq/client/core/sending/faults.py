"""Brokers to be left alone for a while (PR-4, PR-5): by the latency of their answers, and by tries that failed.

Pure; owned by a producer's loop, and used only if `ProducerOptions.latency_faults` is on (XO-14: off by default). The
steps are RocketMQ 4.9's. A slow answer means a pause by its latency; failures in a row mean growing pauses, the first
one none, because another queue of the same broker is tried first. A broker in its pause still gets a share of its
messages: so the others do not get all of them at once, and its recovery is seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["AVOID_MS", "KEPT_SHARE", "LATENCY_MS", "FaultTable"]

LATENCY_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
"""From this latency on ... (RocketMQ 4.9 producer)"""
AVOID_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""... a broker is avoided for this time."""
KEPT_SHARE = 5
"""Of this number of messages that would go to an avoided broker, one still does (PR-5: a cap on the share moved)."""

_FIRST_FAILURE = 1  # its step: no pause yet


class _BrokerFaults:
    __slots__ = ("failures", "passed", "until_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0
        self.passed = 0


class FaultTable:
    """What is known of the brokers of one producer."""

    __slots__ = ("_faults",)

    def __init__(self) -> None:
        self._faults: dict[str, _BrokerFaults] = {}

    def answered(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """A try was stored. A quick answer ends the pause."""
        step = bisect_right(LATENCY_MS, latency_ms) - 1
        pause_ms = AVOID_MS[step] if step >= 0 else 0
        if pause_ms or broker in self._faults:
            fault = self._faults.setdefault(broker, _BrokerFaults())
            fault.failures = 0
            fault.until_ms = now_ms + pause_ms

    def failed(self, broker: str, now_ms: int) -> None:
        """A try failed (a timeout and the like)."""
        fault = self._faults.setdefault(broker, _BrokerFaults())
        step = min(_FIRST_FAILURE + fault.failures, len(AVOID_MS) - 1)
        fault.failures += 1
        fault.until_ms = max(fault.until_ms, now_ms + AVOID_MS[step])

    def avoided(self, broker: str, now_ms: int) -> bool:
        """Whether the broker is in a pause."""
        fault = self._faults.get(broker)
        return fault is not None and fault.until_ms > now_ms

    def admits(self, broker: str, now_ms: int) -> bool:
        """Whether this message may go there: always without a pause, one of `KEPT_SHARE` in it."""
        fault = self._faults.get(broker)
        if fault is None or fault.until_ms <= now_ms:
            return True
        fault.passed += 1
        return fault.passed % KEPT_SHARE == 0

    def soonest(self, brokers: Iterable[str]) -> str:
        """The broker whose pause ends first, for when all are in one."""
        return min(brokers, key=lambda name: self._faults[name].until_ms if name in self._faults else 0)
