"""The number of messages of one listener call (CC-3): many for a fast listener, one for a slow listener.

Passing a call to a thread costs about as much as a trivial listener, so a fast listener gets `TARGET_MS` worth of
messages. A slow listener gets single messages: all threads stay busy, and a hand-over waits only for a short call.
"""

from __future__ import annotations

TARGET_MS = 10.0


class ChunkSizer:
    """The chunk size of one listener, from a moving mean of its time per message."""

    __slots__ = ("_maximum", "_mean_ms")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._mean_ms = TARGET_MS

    def learn(self, messages: int, duration_ms: float) -> None:
        """Notes how long a chunk took."""
        self._mean_ms += 0.2 * (duration_ms / max(1, messages) - self._mean_ms)

    @property
    def size(self) -> int:
        """Messages for the next chunk, 1 .. maximum."""
        return max(1, min(self._maximum, int(TARGET_MS / max(self._mean_ms, 0.001))))
