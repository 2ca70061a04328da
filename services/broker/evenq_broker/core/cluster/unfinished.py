"""Unread messages where queues are to be closed or a broker is to end."""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Messages of one queue that one group has not finished."""

    queue: MessageQueue
    group: str
    lag: int  # Messages, including those in flight
    inflight: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """Messages in queues that are to be closed."""

    unfinished: tuple[Unfinished, ...]  # of groups that read the topic
    unread: int  # messages that no group has read: a later group would miss them
    stored: int  # all messages


@dataclass(frozen=True, slots=True)
class Left:
    """Messages left at a broker that is to end."""

    unfinished: tuple[Unfinished, ...]
    delayed: int  # messages whose delivery time has not come, and open transactions
    unread: int  # messages of topics that no group ever read
    dead_letters: int
    schedules: tuple[str, ...] = ()  # topic and name of each, ascending

    @property
    def empty(self) -> bool:
        """True if no group misses anything when the broker ends. Messages that no group reads cannot be waited for."""
        return not self.unfinished and not self.delayed
