"""How many messages one listener call takes (CC-3): many when the listener is fast, one when it is slow.

Called by the dispatch loop. Hopping to a thread and back costs about as much as a trivial listener, so a fast
listener gets chunks worth `TARGET_MS` of its time; a slow one gets single messages, so that all threads stay busy
and a hand-over waits for little.
"""

from __future__ import annotations

__all__ = ["ChunkSizer"]

TARGET_MS = 10.0


class ChunkSizer:
    """Learns the listener's time per message as a moving mean."""

    __slots__ = ("_maximum", "_mean_ms")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._mean_ms = TARGET_MS

    def learn(self, messages: int, duration_ms: float) -> None:
        """A chunk took this long."""
        self._mean_ms += 0.2 * (duration_ms / max(1, messages) - self._mean_ms)

    @property
    def size(self) -> int:
        """Messages for the next chunk, 1 .. maximum."""
        return max(1, min(self._maximum, int(TARGET_MS / max(self._mean_ms, 0.001))))
