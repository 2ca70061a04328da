"""What does not change while a replica lives: its place in the group, what counts as a copy, and its times."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Mode", "ReplicationConfig", "Timing"]

BLIND_MS_MIN = 100
"""Owners tell what time it is more often than this."""


class Mode(StrEnum):
    """What counts as a copy."""

    REPL_SYNC = "repl_sync"
    """Synced to disk."""
    REPL_MEMORY = "repl_memory"
    """Written to the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times, ms of each process's own monotonic clock. They decide when to try, never what is safe."""

    # Together they bound a failover: 6 s of silence, up to 2 s to elect, cut and swap one copy, so that D11's 10 s are
    # kept.
    renew_ms: int = 2_000
    """Between two signs of life of a leader."""
    suspect_ms: int = 6_000
    """After this time without a sign of life of the leader, an in-sync follower stands for election."""
    backoff_ms: int = 500
    """How much longer it waits for each better one before it."""
    # Every commit waits for all in sync, so this is also how long a dead follower stalls writes (D11 allows 5 s).
    lag_ms: int = 3_000
    """A follower that is silent or behind for this time leaves the in-sync set."""
    retry_ms: int = 500
    """Between repeats of what may have been lost: requests, reads, unknown compare-and-sets, signs of life to peers."""
    drain_ms: int = 10_000
    """Longest wait of a drain for a successor."""
    relief_ms: int = 60_000
    """A leader whose disk is full hands over for that once in this time, and not before it has led for it; 0: never."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ms <= self.renew_ms < self.suspect_ms:
            raise ValueError(
                f"retry {self.retry_ms} ms <= renew {self.renew_ms} ms < suspect {self.suspect_ms} ms does not hold"
            )
        if min(self.backoff_ms, self.lag_ms, self.drain_ms) <= 0:
            raise ValueError("backoff_ms, lag_ms and drain_ms must be over 0")

    @property
    def blind_ms(self) -> int:
        """Who has not read the record for longer than this says nothing of a leader's silence by that. Small enough
        that a leader which was about to renew the record when it went away is not suspected before.
        """
        return max((self.suspect_ms - self.renew_ms) // 2, self.retry_ms, BLIND_MS_MIN)

    @property
    def pause_ms(self) -> int:
        """Whose owner did not tell the time for longer than this did not run, and takes nobody for silent by that."""
        return max(min(self.blind_ms, self.lag_ms // 2), BLIND_MS_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """What does not change while a replica lives."""

    cluster: str
    broker_id: int
    members: tuple[int, ...]
    """Broker ids of the group, for the first record."""
    min_isr: int = 2
    """The same."""
    founds: bool = False
    """True on the one broker that may write the first record of a new group."""
    restored_epoch: int = 0
    """Over 0: the log was restored from a backup, and this is the highest epoch that any copy of it had."""
    adopts: bool = False
    """True: it may found it with a log that it wrote while it had no copies, as its only copy; `members` and `min_isr`
    are then what the group is to become.
    """
    mode: Mode = Mode.REPL_SYNC
    timing: Timing = field(default_factory=Timing)
    # Without it leader and follower took turns: an empty follower copied half as fast (decision 77).
    ahead: int = 4 << 20
    """As a follower: how much may come ahead of what is written, in the owner's unit of offsets, and one message more.
    0: it asks for each message.
    """
    gather: int = 0
    """As a leader: less than this, in the owner's unit of offsets, waits while the follower has not written what it was
    sent, so that small groups leave together. 0: nothing waits.
    """
