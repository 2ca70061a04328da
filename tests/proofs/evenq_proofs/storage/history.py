"""What was asked of a store and what it answered, each with the number of disk operations done by then.

A group is one append call. The groups' order is the log's, so what a crash leaves must be a prefix of them: `Expected`
says how long at least (what was acknowledged) and at most (what was asked), for a crash after this number of operations.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from evenq.store import Append, TimerAppend

NEVER = 1 << 60
Queue = tuple[int, int]


def state_of(number: int) -> bytes:
    """The n-th state record of every workload."""
    return b"state %d;" % number + b"%d" % (number % 7) * (number * 37 % 300)


@dataclass(slots=True)
class Group:
    """One append call."""

    messages: list[Append]
    state: int | None
    """Number of its state record, if it has one."""
    tried_at: int
    future: asyncio.Future[None] | None = None
    timers: list[TimerAppend] = field(default_factory=list)
    acked_at: int = NEVER
    log_end: int = NEVER
    """The log's safe end when it was acknowledged: at or behind its own."""
    ended: list[bytes] = field(default_factory=list)
    """Heads of the timers that it ends."""


@dataclass(slots=True)
class History:
    """All of one workload, over stops and starts."""

    groups: list[Group] = field(default_factory=list)
    synced: list[tuple[int, int]] = field(default_factory=list)
    """(operations, log offset): from then on the store said that the log was on disk so far."""
    states: int = 0
    """State records tried."""
    cancelled: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(operations when tried, when done, head): that timer never fires."""
    expired: list[tuple[int, int]] = field(default_factory=list)
    """(operations, ms): from then on messages stored before that time may be gone."""

    def cut(self, groups: int) -> History:
        """The first `count` groups, all of them acknowledged: what a start has found."""
        kept = [
            Group(group.messages, group.state, 0, None, group.timers, 0, 0, group.ended)
            for group in self.groups[:groups]
        ]  # fmt: skip
        states = sum(group.state is not None for group in kept)
        return History(kept, [], states, list(self.cancelled), list(self.expired))

    def tried(self, at: int) -> int:
        """Groups that may be there after a crash at operation `at`."""
        return sum(group.tried_at <= at for group in self.groups)

    def acked(self, at: int) -> int:
        """Groups that must be there if their acknowledgement was a promise."""
        return max((n + 1 for n, group in enumerate(self.groups) if group.acked_at <= at), default=0)

    def certain(self, at: int) -> int:
        """Groups that must be there because the store said that it had synced them."""
        synced = max((offset for operations, offset in self.synced if operations <= at), default=0)
        found = (n + 1 for n, group in enumerate(self.groups) if group.acked_at <= at and group.log_end <= synced)
        return max(found, default=0)

    def expired_before(self, at: int) -> int:
        """Messages stored before this time may be gone after a crash at operation `at`."""
        return max((store_ms for operations, store_ms in self.expired if operations <= at), default=0)
