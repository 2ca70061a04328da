"""Outages of brokers as their watcher saw them, which excuse late and repeated messages. Pure."""

from __future__ import annotations

SHADOW_MS = 10_000
"""Time within which clients and brokers reconnect after a broker is back."""


class Outages:
    """The outages of all brokers. Times are ms of one clock."""

    def __init__(self) -> None:
        self._away_since: dict[str, int] = {}
        self._ended: list[tuple[int, int]] = []

    def away(self, broker: str, *, since_ms: int) -> None:
        """Notes that a broker does not answer; its last answer was at `since_ms`."""
        self._away_since.setdefault(broker, since_ms)

    def back(self, broker: str, now_ms: int) -> None:
        since_ms = self._away_since.pop(broker, None)
        if since_ms is not None:
            self._ended.append((since_ms, now_ms))

    def touched(self, since_ms: int, until_ms: int) -> bool:
        """Returns whether a broker was away, or just back, at some time between the two."""
        if any(begun <= until_ms for begun in self._away_since.values()):
            return True
        return any(begun <= until_ms and ended + SHADOW_MS >= since_ms for begun, ended in self._ended)

    @property
    def any(self) -> bool:
        return self.count > 0

    @property
    def count(self) -> int:
        return len(self._ended) + len(self._away_since)

    def longest_ms(self, now_ms: int) -> int:
        """Returns the longest outage until now."""
        open_ms = [now_ms - since_ms for since_ms in self._away_since.values()]
        return max([ended - begun for begun, ended in self._ended] + open_ms, default=0)
