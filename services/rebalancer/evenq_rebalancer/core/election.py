"""Leader election of rebalancers: the state machine of one candidate for a lease. Pure, driven by `loops/leading.py`.

Problem: at most one rebalancer may decide at a time, although processes pause, calls hang and wall clocks differ.

Idea: all candidates read one shared record, the lease, and write it by compare-and-set on its version. Only the holder
leads, and it renews the lease every `retry_ms`. All waiting is measured on the candidate's own monotonic clock, and
times inside the record are never compared with it. The two sides count from different moments, with a margin:

- a leader stops leading `renew_ms` after it STARTED its last successful write;
- another candidate takes the lease `duration_ms` or more after it SAW the lease change for the last time.

A write is seen after it was started, and `renew_ms` < `duration_ms`, so the leader stops before another one begins.
This holds while no clock runs `duration_ms / renew_ms` (by default 1.5) times as fast as another.

Example with the defaults (6,000, 4,000 and 1,000 ms). A starts a renewal at 0 ms and is paused. B sees that write at
500 ms. From 4,000 ms on `leads` of A is False, which A checks before each decision. B takes the lease in its first
round after 6,500 ms. In between no candidate leads, and brokers keep their last answers.

Invariants:

- Each term has an epoch greater than that of the record before it, also where the wall clock is behind. Brokers follow
  no older generation, so a late decision of an ended term is harmless.
- An epoch that ended never begins again: a write that is confirmed afterwards is ignored.
- After any doubt (a lost race, a failed call) the lease is read before it is written.
- A deleted lease counts as held until the time of the last seen holder has passed. A candidate that never saw a record
  creates the lease immediately; the old leader may then lead until its next renewal fails, and epochs protect brokers.

Literature: Gray and Cheriton, "Leases" (SOSP 1989); the leader election of Kubernetes' client-go has the same timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Times of an election. `retry_ms` < `renew_ms` < `duration_ms`."""

    duration_ms: int = 6_000
    """Time from the last seen change of the lease until another candidate may take it, ms."""
    renew_ms: int = 4_000
    """Longest time that a leader leads without a successful renewal, ms."""
    retry_ms: int = 1_000
    """Time between two reads of the lease, and between two renewals, ms."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ms < self.renew_ms < self.duration_ms:
            raise ValueError(
                f"retry {self.retry_ms} ms < renew {self.renew_ms} ms < duration {self.duration_ms} ms does not hold"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Content of a lease."""

    holder: str
    """Identity of the leader; empty: it released the lease."""
    duration_ms: int
    """Time that other candidates wait after each change of the lease, ms."""
    began_ms: int
    """Epoch of the holder: ms since the epoch when it began to lead, and larger than that of every previous holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecord:
    """A record with its version."""

    record: Record
    version: str
    """Changes with each write; the compare-and-set compares it."""


@dataclass(frozen=True, slots=True)
class Read:
    """Command to read the lease, then call `observed` or `failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Command to write `record` if the lease has `version`, then call `written`, `lost_race` or `failed`."""

    record: Record
    version: str
    """Empty: the lease must not exist."""
    started_ms: int
    """Monotonic ms at which the command was given; `renew_ms` counts from it."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Command to begin to lead."""

    epoch: int


@dataclass(frozen=True, slots=True)
class End:
    """Command to stop deciding immediately."""

    reason: str


Command: TypeAlias = Read | Write | Begin | End


class Elector:
    """One candidate. `now_ms` is monotonic and its own, `wall_ms` is ms since the epoch."""

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        """`identity` is unique among all candidates and all starts of this process."""
        if not identity:
            raise ValueError("a candidate needs an identity")
        self.identity = identity
        self._timing = timing
        self._seen: SeenRecord | None = None
        """The newest record that was read or written; kept when the lease is deleted. None: none was ever seen."""
        self._seen_ms = 0
        """Monotonic ms at which the version of `_seen` was seen first."""
        self._must_read = True
        """True until a read succeeds: at the start, and after each lost race or failed call."""
        self._epoch = 0
        """Epoch of this candidate's present term; 0: it does not lead."""
        self._until_ms = 0
        """End of the term unless it is renewed, monotonic ms; 0 exactly when `_epoch` is 0."""
        self._over = 0
        """The last epoch that ended here; a write with this epoch or a smaller one never begins a term."""
        self._resigned = False
        """Set once and never reset: no further write but the release of the lease."""

    # --- views

    def leads(self, now_ms: int) -> bool:
        """True while this candidate may decide. Call it before each decision: the process may have been paused."""
        return self._epoch > 0 and now_ms < self._until_ms

    def holder(self, now_ms: int) -> str:
        """Identity of the leader as far as this candidate can know; empty: none, or its lease has expired."""
        if self._seen is None or (self._seen.record.holder != self.identity and self._is_over(self._seen, now_ms)):
            return ""
        holder = self._seen.record.holder
        return "" if holder == self.identity and not self.leads(now_ms) else holder

    # --- events

    def due(self, *, now_ms: int) -> list[Command]:
        """Starts a round (every `retry_ms`): renews the lease if this candidate leads, otherwise reads it."""
        ended: list[Command] = [*self.tick(now_ms)]
        # Leading and sure of the version: renew without a read. `tick` ended nothing, or `_epoch` would be 0.
        if self._epoch and not self._must_read and self._seen is not None:
            return [self._write(self._epoch, self._seen.version, now_ms)]
        return [*ended, Read()]

    def observed(self, seen: SeenRecord | None, *, now_ms: int, wall_ms: int) -> list[Command]:
        """Handles a read of the lease; None: it does not exist, or was deleted."""
        ended: list[Command] = [*self.tick(now_ms)]
        self._must_read = False
        if seen is not None and (self._seen is None or seen.version != self._seen.version):
            # The wait counts from this moment on this clock; times inside the lease belong to another clock.
            self._seen, self._seen_ms = seen, now_ms
        if self._resigned:  # only follows who leads, for `holder`
            return ended
        if seen is None:  # deleted, or never created
            return [*ended, *self._end("the lease is gone"), *self._make(now_ms, wall_ms)]
        record = seen.record
        if record.holder == self.identity and self._epoch == record.began_ms:  # read after a doubt, still ours: renew
            return [*ended, self._write(self._epoch, seen.version, now_ms)]
        ended += self._end(f"the lease belongs to {record.holder}" if record.holder else "the lease is free")
        # Released, left from an ended term of this process, or expired: take it.
        if record.holder in {"", self.identity} or self._is_over(seen, now_ms):
            # Above the last epoch also where this wall clock is behind: brokers follow no older generation.
            return [*ended, self._write(max(wall_ms, record.began_ms + 1), seen.version, now_ms)]
        return ended  # another candidate holds it: wait

    def written(self, write: Write, version: str, *, now_ms: int) -> list[Command]:
        """Handles a successful write; the lease now has `version`."""
        self._seen, self._seen_ms = SeenRecord(record=write.record, version=version), now_ms
        # The release of the lease, a confirmation after `resign`, or one of a term that ended meanwhile.
        if write.record.holder != self.identity or self._resigned or write.record.began_ms <= self._over:
            return []
        until_ms = write.started_ms + self._timing.renew_ms
        if now_ms >= until_ms:  # the write took longer than the term that it grants
            return [*self._end("the lease was renewed too late")]
        # A first write begins a term; a renewal only extends it.
        began: list[Command] = [] if self._epoch == write.record.began_ms else [Begin(write.record.began_ms)]
        self._epoch, self._until_ms = write.record.began_ms, until_ms
        return began

    def lost_race(self, *, now_ms: int) -> list[Command]:
        """Handles a write that another candidate's write preceded."""
        self._must_read = True
        return [*self.tick(now_ms)]

    def failed(self, *, now_ms: int) -> list[Command]:
        """Handles a call that failed, or whose outcome is not known."""
        self._must_read = True
        return [*self.tick(now_ms)]

    def tick(self, now_ms: int) -> list[End]:
        """Ends the term if it was not renewed in time."""
        if self._epoch and now_ms >= self._until_ms:
            return self._end(f"the lease could not be renewed for {self._timing.renew_ms} ms")
        return []

    def resign(self, *, now_ms: int) -> list[Command]:
        """Ends this candidacy for good and releases the lease if held, so that other candidates need not wait."""
        ended = self._end("this rebalancer stops")
        self._resigned = True
        if not ended or self._seen is None or self._seen.record.holder != self.identity:
            return [*ended]  # nothing to release
        record = Record(holder="", duration_ms=self._timing.duration_ms, began_ms=self._seen.record.began_ms)
        return [*ended, Write(record=record, version=self._seen.version, started_ms=now_ms)]

    # --- inside

    def _is_over(self, seen: SeenRecord, now_ms: int) -> bool:
        # Candidates may be configured differently, and an unreadable record has duration 0: the longer time is safe.
        wait_ms = max(seen.record.duration_ms, self._timing.duration_ms)
        return now_ms - self._seen_ms >= wait_ms

    def _make(self, now_ms: int, wall_ms: int) -> list[Command]:
        last = self._seen
        if last is None:  # the first start of the cluster
            return [self._write(max(1, wall_ms), "", now_ms)]
        if last.record.holder not in {"", self.identity} and not self._is_over(last, now_ms):
            return []  # deleted while held: its holder may not have noticed yet
        return [self._write(max(wall_ms, last.record.began_ms + 1), "", now_ms)]

    def _write(self, epoch: int, version: str, now_ms: int) -> Write:
        record = Record(holder=self.identity, duration_ms=self._timing.duration_ms, began_ms=epoch)
        return Write(record=record, version=version, started_ms=now_ms)

    def _end(self, reason: str) -> list[End]:
        if not self._epoch:
            return []
        self._over, self._epoch, self._until_ms = self._epoch, 0, 0
        return [End(reason)]
