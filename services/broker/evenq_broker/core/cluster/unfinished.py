"""What is left unread where queues are to be closed or a broker is to end."""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import MessageQueue

__all__ = ["Hidden", "Left", "Unfinished"]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What one group has not finished of one queue."""

    queue: MessageQueue
    group: str
    lag: int
    """Messages, those in flight included."""
    inflight: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """What lies in queues that are to be closed."""

    unfinished: tuple[Unfinished, ...]
    """By groups that read the topic."""
    unread: int
    """Messages that no group has read: one that comes later would miss them."""
    stored: int
    """All messages."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left at a broker that is to end. It is empty when the first three are."""

    unfinished: tuple[Unfinished, ...]
    delayed: int
    """Messages whose delivery time has not come, and open transactions."""
    unread: int
    """Messages of topics that no group ever read."""
    dead_letters: int

    @property
    def empty(self) -> bool:
        """True if no group misses anything when the broker ends. What no group reads cannot be waited for."""
        return not self.unfinished and not self.delayed
