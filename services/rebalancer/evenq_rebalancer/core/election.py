"""Who of several rebalancers leads: the state machine of one candidate for a lease that all of them can read and
compare-and-set. The idea is Kubernetes' (client-go's leader election); the lease may be a file just as well.

Called by `loops/leading.py`: events in (what was read, what was written, that time passed), commands out. Always true:
a leader stops believing `renew_ms` after it BEGAN its last successful write, and another candidate takes the lease no
sooner than the lease's duration after it SAW that write; so at no moment two candidates believe, however their wall
clocks differ, as long as no clock runs `duration_ms / renew_ms` times as fast as another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Begin", "Command", "Elector", "End", "LeaseTiming", "Read", "Record", "SeenRecord", "Write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Times of an election, ms. `retry_ms` < `renew_ms` < `duration_ms`."""

    duration_ms: int = 6_000
    """How long another candidate waits after the last sign of life that it saw, ms."""
    renew_ms: int = 4_000
    """How long a leader goes on without a successful renewal, ms."""
    retry_ms: int = 1_000
    """Between two looks at the lease, and two renewals."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ms < self.renew_ms < self.duration_ms:
            raise ValueError(
                f"retry {self.retry_ms} ms < renew {self.renew_ms} ms < duration {self.duration_ms} ms does not hold"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a lease says."""

    holder: str
    """Identity of the leader; empty: the last one has let go."""
    duration_ms: int
    """How long the holder asks others to wait after each sign of life."""
    began_ms: int
    """When the holder began to lead, ms since the epoch, and bigger than that of every holder before: its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecord:
    """A record as it was read."""

    record: Record
    version: str
    """Changes with each write; what a compare-and-set compares."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the lease, then tell `observed` (or `failed`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write `record` if the lease still has `version` (empty: if there is no lease), then tell `written`, `lost_race`
    or `failed`.
    """

    record: Record
    version: str
    started_ms: int
    """When the command was given: from then on a success counts."""


@dataclass(frozen=True, slots=True)
class Begin:
    """This candidate leads from now on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class End:
    """This candidate must stop deciding at once."""

    reason: str


Command: TypeAlias = Read | Write | Begin | End


class Elector:
    """One candidate. `now_ms` is monotonic and its own, `wall_ms` is ms since the epoch."""

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        """`identity` is no other candidate's, and of this start of the process only."""
        if not identity:
            raise ValueError("a candidate needs an identity")
        self.identity = identity
        self._timing = timing
        self._seen: SeenRecord | None = None
        self._seen_ms = 0
        self._must_read = True
        self._epoch = 0
        """Of this candidate's leadership; 0: it does not lead."""
        self._until_ms = 0
        self._over = 0
        """Its last epoch that ended: it never begins again."""
        self._resigned = False

    # --- views

    def leads(self, now_ms: int) -> bool:
        """True while this candidate may decide. Ask before each decision: a process may have been paused."""
        return self._epoch > 0 and now_ms < self._until_ms

    def holder(self, now_ms: int) -> str:
        """Identity of who leads as far as this candidate can know; empty: no candidate, or it has been silent too
        long.
        """
        if self._seen is None or (self._seen.record.holder != self.identity and self._is_over(self._seen, now_ms)):
            return ""
        holder = self._seen.record.holder
        return "" if holder == self.identity and not self.leads(now_ms) else holder

    # --- events

    def due(self, *, now_ms: int) -> list[Command]:
        """It is time for a round (every `retry_ms`): renew if this candidate leads, else look."""
        ended: list[Command] = [*self.tick(now_ms)]
        if self._epoch and not self._must_read and self._seen is not None:
            return [self._write(self._epoch, self._seen.version, now_ms)]
        return [*ended, Read()]

    def observed(self, seen: SeenRecord | None, *, now_ms: int, wall_ms: int) -> list[Command]:
        """The lease was read; None: there is none (yet, or it was deleted)."""
        ended: list[Command] = [*self.tick(now_ms)]
        self._must_read = False
        if seen is not None and (self._seen is None or seen.version != self._seen.version):
            # What counts is when this clock saw the lease change; times in the lease are those of another one.
            self._seen, self._seen_ms = seen, now_ms
        if self._resigned:
            return ended
        if seen is None:
            return [*ended, *self._end("the lease is gone"), *self._make(now_ms, wall_ms)]
        record = seen.record
        if record.holder == self.identity and self._epoch == record.began_ms:
            return [*ended, self._write(self._epoch, seen.version, now_ms)]
        ended += self._end(f"the lease is {record.holder}'s" if record.holder else "the lease is free")
        if record.holder in {"", self.identity} or self._is_over(seen, now_ms):
            # Above the last epoch also where this wall clock is behind: brokers follow no older generation.
            return [*ended, self._write(max(wall_ms, record.began_ms + 1), seen.version, now_ms)]
        return ended

    def written(self, write: Write, version: str, *, now_ms: int) -> list[Command]:
        """The write succeeded; `version` is the lease's now."""
        self._seen, self._seen_ms = SeenRecord(record=write.record, version=version), now_ms
        if write.record.holder != self.identity or self._resigned or write.record.began_ms <= self._over:
            return []
        until_ms = write.started_ms + self._timing.renew_ms
        if now_ms >= until_ms:  # it took too long for anybody to build on it
            return [*self._end("the lease was renewed too late")]
        began: list[Command] = [] if self._epoch == write.record.began_ms else [Begin(write.record.began_ms)]
        self._epoch, self._until_ms = write.record.began_ms, until_ms
        return began

    def lost_race(self, *, now_ms: int) -> list[Command]:
        """Another candidate wrote in between: look before the next write."""
        self._must_read = True
        return [*self.tick(now_ms)]

    def failed(self, *, now_ms: int) -> list[Command]:
        """A read or write failed, or it is not known whether it succeeded."""
        self._must_read = True
        return [*self.tick(now_ms)]

    def tick(self, now_ms: int) -> list[End]:
        """Time passed."""
        if self._epoch and now_ms >= self._until_ms:
            return self._end(f"the lease could not be renewed for {self._timing.renew_ms} ms")
        return []

    def resign(self, *, now_ms: int) -> list[Command]:
        """Lead never again, only look who does; if this candidate leads, end that and let go of the lease, so that
        others need not wait.
        """
        ended = self._end("this rebalancer stops")
        self._resigned = True
        if not ended or self._seen is None or self._seen.record.holder != self.identity:
            return [*ended]
        record = Record(holder="", duration_ms=self._timing.duration_ms, began_ms=self._seen.record.began_ms)
        return [*ended, Write(record=record, version=self._seen.version, started_ms=now_ms)]

    # --- inside

    def _is_over(self, seen: SeenRecord, now_ms: int) -> bool:
        # The holder knows its own duration; one who says nothing sensible is given ours.
        wait_ms = max(seen.record.duration_ms, self._timing.duration_ms)
        return now_ms - self._seen_ms >= wait_ms

    def _make(self, now_ms: int, wall_ms: int) -> list[Command]:
        last = self._seen
        if last is None:
            return [self._write(max(1, wall_ms), "", now_ms)]
        if last.record.holder not in {"", self.identity} and not self._is_over(last, now_ms):
            return []  # its holder may not know yet that it is gone
        return [self._write(max(wall_ms, last.record.began_ms + 1), "", now_ms)]

    def _write(self, epoch: int, version: str, now_ms: int) -> Write:
        record = Record(holder=self.identity, duration_ms=self._timing.duration_ms, began_ms=epoch)
        return Write(record=record, version=version, started_ms=now_ms)

    def _end(self, reason: str) -> list[End]:
        if not self._epoch:
            return []
        self._over, self._epoch, self._until_ms = self._epoch, 0, 0
        return [End(reason)]
