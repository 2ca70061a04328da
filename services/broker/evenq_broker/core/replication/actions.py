"""What a replica asks its owner to do. The owner carries actions out in their order.

`PersistEpoch`, `AppendEpochStart`, `AppendRecords`, `Truncate` and `Reset` go to the one writer of the log, which does
them in order and answers each with its event, also in order; behind a `PersistEpoch` it refuses appends of lower
epochs. All others may be done at once. After `Fence` the owner ends the process: nothing follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evenq_broker.core.replication.messages import Envelope, LastRecord, Records
from evenq_broker.core.replication.record import GroupRecord, Seen

__all__ = [
    "Action",
    "AppendEpochStart",
    "AppendRecords",
    "ClosePeer",
    "CommitAdvanced",
    "CompareAndSet",
    "Fence",
    "HandedOver",
    "PersistEpoch",
    "ReadRecord",
    "RecordTooOld",
    "Reset",
    "Send",
    "SendEpochs",
    "SendRecords",
    "Serve",
    "StopServing",
    "Truncate",
]


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message to a broker. May be lost."""

    to: int
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class SendEpochs:
    """Read the last record below `match`, where both logs part by their epochs, put it into the EpochsReply, send that.
    If it cannot be read, send it without; not at all, once the replica is in another epoch: its log may have been cut.
    """

    to: int
    envelope: Envelope
    match: int


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Read whole records from `start`, at most to `end`, make the message with `Replica.records`, send it."""

    to: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Write `proposed` if the record still has the token of `expected` (None: if there is none), then tell `cas_done`,
    `cas_conflict` or `cas_unknown` with the number.
    """

    number: int
    expected: Seen | None
    proposed: GroupRecord


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record, then tell `observed` (or nothing, if it cannot be read)."""


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Sync the highest epoch seen, refuse appends of lower ones from then on, then tell `epoch_persisted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendEpochStart:
    """Append the record that begins the epoch, then tell `appended`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append what came from the leader, byte for byte, then tell `copied`."""

    records: Records


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `end`, sync that, rebuild what is derived from it, then tell `truncated`. If what is derived
    cannot be rebuilt from the rest, do as for a Reset to `start`, and tell `emptied`. Before all of it: if the own log
    has another record below `end` than `last`, it is of another history, and the process ends.
    """

    end: int
    start: int = 0
    """Where the leader's log begins."""
    unclean: int = 0
    """Epoch of the unclean election for which committed records may go (R20); 0: none may."""
    last: LastRecord | None = None
    """Of the leader's log, below `end`; None: it did not say."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the whole log and begin an empty one at `start`, then tell `emptied`."""

    start: int
    unclean: int = 0
    """As of a Truncate."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer clients as leader of the epoch; routes carry it (R14)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StopServing:
    """Refuse clients at once; fail what waits for a commit as unknown."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """All below `end` is committed: answer what waited for it, show it to readers."""

    end: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A drain is over: another broker leads (`leader`, or who told of the higher epoch), or no copy took over in time
    (NO_LEADER).
    """

    leader: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClosePeer:
    """Close the link to the broker: it sent what no replica of ours sends."""

    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordTooOld:
    """A record of a lower epoch than this broker has acted in was read: a late read, or a coordinator that was restored
    from a backup. It is not used; say so to the operator if it lasts.
    """

    epoch: int
    epoch_seen: int


@dataclass(frozen=True, slots=True)
class Fence:
    """End the process: what it holds in memory cannot be trusted."""

    error: Exception


Action: TypeAlias = (
    Send
    | SendEpochs
    | SendRecords
    | CompareAndSet
    | ReadRecord
    | PersistEpoch
    | AppendEpochStart
    | AppendRecords
    | Truncate
    | Reset
    | Serve
    | StopServing
    | CommitAdvanced
    | HandedOver
    | ClosePeer
    | RecordTooOld
    | Fence
)
