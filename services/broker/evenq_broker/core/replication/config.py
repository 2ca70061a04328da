"""Configuration of a replica, constant while it lives: its place in the group, what counts as a copy, its times."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

BLIND_MS_MIN = 100  # owners report the time more often than this


class Mode(StrEnum):
    """State in which a record counts as copied."""

    REPL_SYNC = "repl_sync"  # synced to disk
    REPL_MEMORY = "repl_memory"  # written to the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times, ms of each process's own monotonic clock. They decide when to try, never what is safe."""

    # Together they bound a failover: 6 s of silence, up to 2 s to elect, cut and swap one copy. D11 allows 10 s.
    renew_ms: int = 2_000  # interval of a leader's signs of life
    suspect_ms: int = 6_000
    """Time without a sign of life of the leader after which an in-sync follower stands for election."""
    backoff_ms: int = 500  # further wait for each better follower before it
    # Every commit waits for all in sync, so a dead follower stalls writes for this time (D11 allows 5 s).
    lag_ms: int = 3_000
    """A follower that is silent or behind for this time leaves the in-sync set."""
    retry_ms: int = 500
    """Interval of repeats of what may be lost: requests, reads, unknown compare-and-sets, signs of life to peers."""
    drain_ms: int = 10_000  # longest wait of a drain for a successor
    relief_ms: int = 60_000
    """A leader with a full disk hands over for that once in this time, and not before it has led for it; 0: never."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ms <= self.renew_ms < self.suspect_ms:
            raise ValueError(
                f"retry {self.retry_ms} ms <= renew {self.renew_ms} ms < suspect {self.suspect_ms} ms does not hold"
            )
        if min(self.backoff_ms, self.lag_ms, self.drain_ms) <= 0:
            raise ValueError("backoff_ms, lag_ms and drain_ms must be over 0")

    @property
    def blind_ms(self) -> int:
        """Time without a read of the record, after which nothing follows from the leader's silence in it. Small enough:
        a leader that was about to renew the record when it became unreadable is not suspected before.
        """
        return max((self.suspect_ms - self.renew_ms) // 2, self.retry_ms, BLIND_MS_MIN)

    @property
    def pause_ms(self) -> int:
        """Time without a tick, after which this process counts as paused and concludes nothing from silence."""
        return max(min(self.blind_ms, self.lag_ms // 2), BLIND_MS_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Constant settings of one replica."""

    cluster: str
    broker_id: int
    members: tuple[int, ...]  # broker ids of the group, for the first record
    min_isr: int = 2  # minimum of copies in sync, for the first record
    founds: bool = False
    """True on the one broker that may write the first record of a new group."""
    restored_epoch: int = 0
    """Over 0: the log was restored from a backup, and this is the highest epoch of all its copies."""
    adopts: bool = False
    """True: it may found the group with a log that it wrote without copies, as its only copy. `members` and `min_isr`
    are then those that the group is to have.
    """
    mode: Mode = Mode.REPL_SYNC
    timing: Timing = field(default_factory=Timing)
    # Without it leader and follower took turns: an empty follower copied half as fast (decision 77).
    ahead: int = 4 << 20
    """As a follower: how much may come ahead of what is written, in the owner's unit of offsets, and one message more.
    0: it requests each message.
    """
    gather: int = 0
    """As a leader: less than this, in the owner's unit of offsets, waits until the follower has written what it was
    sent. So small groups are sent together. 0: nothing waits.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStop:
    """A store's record of its last stop."""

    clean: bool  # True: everything was synced, and the mark of that was written
    boot_id: str  # the kernel's boot id while it ran
    acted: bool = True  # False: the store never entered an epoch of the group


def keeps_identity(mode: Mode, stop: LastStop | None, *, boot_id: str) -> bool:
    """Returns True if the store is still the one that confirmed its records. `stop` None: it was just formatted.

    One that may have lost confirmed records must not pass for the old store (R10). With REPL_MEMORY a confirmed record
    may have been in the page cache only. So after an unclean stop and another start of the kernel the store is a new
    one, too. The exception is a store that never entered an epoch. It confirmed nothing (R3), and a group that it was
    about to found would wait for it for ever.
    """
    if stop is None:
        return False
    # The same boot of the kernel keeps the page cache over a kill -9. An unknown boot id counts as another one: an
    # identity that is given up needlessly costs a copy, one that is kept wrongly costs acknowledged messages.
    return mode is Mode.REPL_SYNC or stop.clean or not stop.acted or (stop.boot_id == boot_id and bool(boot_id))
