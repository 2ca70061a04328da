"""Result of the checker: anomalies by kind, recovery time of each fault, and counts. Read by tests and people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Anomaly", "AnomalyKind", "FaultRecovery", "Report", "Tolerances"]


class AnomalyKind(StrEnum):
    """Everything that must not happen, as the history shows it."""

    LOST = "lost"
    """Sent OK, and gone from the queue."""
    UNSEEN = "unseen after drain"
    """Stored, but a group that drained its topic never received it."""
    PHANTOM = "phantom"
    """Delivered, but never sent."""
    FAILED_DELIVERED = "definite failure delivered"
    """The send was refused, but the message was delivered."""
    STORED_TWICE = "stored twice"
    """One send, whose attempts all had one message id, has two places at one broker."""
    DUPLICATE_AFTER_ACK = "duplicate after OK ack"
    """Redelivered to a group that had finished it."""
    DUPLICATE_GRACEFUL = "duplicate in graceful phase"
    """Redelivered although nothing broke, no invisible time ended and no consumer returned it."""
    REORDERED_IN_QUEUE = "reordered in queue"
    """A later send has the smaller offset, or a group received a queue out of order."""
    REORDERED_IN_MESSAGE_GROUP = "reordered in message group"
    """A group received messages of one message group out of order."""
    SKIP = "skip"
    """A group's committed offset passed a message that it never received."""
    TWO_BODIES = "two bodies at one offset"
    """One place in a queue had two messages."""
    OFFSET_BACKWARD = "offset backward"
    """A group's stored progress became smaller without a reset."""
    TWO_OWNERS = "two owners"
    """Two members held one queue at the same time."""
    EARLY_DELAY = "early delay"
    """Delivered before its delivery time."""
    HALF_VISIBLE = "half message visible"
    """Delivered before its transaction was committed, or although it was rolled back."""
    DEAD_LETTERS = "dead letters not conserved"
    """A received message is neither finished nor a dead letter, or both, or a dead letter twice."""
    SLOW_RECOVERY = "slow recovery"
    """After a fault no operation succeeded within the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Limits within which the checker reports no anomaly."""

    clock_slack_ms: int = 1
    """Rounding between the history's clock and the servers' clocks."""
    delivery_slack_ms: int = 1_000
    """Longest transfer of an answer: an invisible time counts from this long before the answer arrived."""
    recovery_ms_max: int = 30_000
    """From a fault (or its heal, if that came first) to the first operation that succeeds."""
    examples_max: int = 20
    """Anomalies of one kind that are described; all are counted."""
    stored_once: bool = False
    """Check `STORED_TWICE`: sends repeat their message ids within the brokers' window, without replays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One finding. `line` counts from 1 and is 0 if only the end of the history shows it."""

    kind: AnomalyKind
    line: int
    text: str


@dataclass(slots=True, kw_only=True)
class FaultRecovery:
    """One fault, and the time until an operation that it had affected succeeded again."""

    name: str
    target: str
    at_ms: int
    line: int
    heal_ms: int | None = None
    recovered_ms: int | None = None
    tried: bool = False
    """An operation was invoked after the fault."""

    @property
    def rto_ms(self) -> int | None:
        """Recovery time from the fault, ms; None if no operation succeeded."""
        return None if self.recovered_ms is None else self.recovered_ms - self.at_ms


@dataclass(slots=True, kw_only=True)
class Report:
    """Result of a check. A test asserts `ok` and prints `str(report)`."""

    counts: Counter[AnomalyKind] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)
    faults: list[FaultRecovery] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    """Ended operations as `op outcome`, e.g. `send ok`."""
    events: int = 0
    sent_ok: int = 0
    delivered: int = 0
    """Deliveries, repeats included."""
    repeats: int = 0
    """Deliveries of a message that the group had received before, excused ones included."""
    examples_max: int = 20

    @property
    def ok(self) -> bool:
        return not self.counts

    def add(self, kind: AnomalyKind, line: int, text: str) -> None:
        """Counts one finding, and keeps its text up to `examples_max`."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.examples_max:
            self.anomalies.append(Anomaly(kind=kind, line=line, text=text))

    def __str__(self) -> str:
        ended = sum(self.operations.values())
        counts = f"sent OK {self.sent_ok:,}   delivered {self.delivered:,}   repeats {self.repeats:,}"
        rows = [f"operations  {ended:>10,}   {counts}"]
        rows += [f"{name:<32} {count:>10,}" for name, count in sorted(self.operations.items())]
        if self.faults:
            rows.append("fault                            at ms      RTO ms")
            for fault in self.faults:
                rto = "none" if fault.rto_ms is None else f"{fault.rto_ms:,}"
                rows.append(f"{(fault.name + ' ' + fault.target)[:30]:<30} {fault.at_ms:>7} {rto:>11}")
        rows.append("anomaly                               found")
        rows += [f"{kind.value:<32} {self.counts[kind]:>10,}" for kind in AnomalyKind]
        rows += [f"  line {anomaly.line}: {anomaly.kind}: {anomaly.text}" for anomaly in self.anomalies]
        rows.append("OK: no anomaly" if self.ok else f"BAD: {sum(self.counts.values()):,} anomalies")
        return "\n".join(rows)
