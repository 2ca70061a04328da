"""Actions that a replica requests of its owner, which carries them out in their order.

`PersistEpoch`, `AppendEpochStart`, `AppendRecords`, `Truncate` and `Reset` go to the one writer of the log. It does
them in order and answers each with its event, also in order; behind a `PersistEpoch` it refuses appends of lower
epochs. All others may be done immediately. After `Fence` the owner ends the process: nothing follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evenq_broker.core.replication.messages import Envelope, LastRecord, Records
from evenq_broker.core.replication.record import GroupRecord, Seen


@dataclass(frozen=True, slots=True)
class Send:
    """Message to a broker; it may be lost."""

    to: int
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class SendEpochs:
    """Reply to complete and send: the owner reads the last record below `match`, where both logs part by their epochs,
    and puts it into the EpochsReply. If that fails it sends the reply without; once the replica is in another epoch it
    sends nothing, because its log may have been cut.
    """

    to: int
    envelope: Envelope
    match: int


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Whole records from `start`, at most to `end`, to be read and sent in the message that `Leader.records` makes."""

    to: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Write of `proposed` if the record still has the token of `expected` (None: if there is no record). The owner then
    calls `cas_done`, `cas_conflict` or `cas_unknown` with the number.
    """

    number: int
    expected: Seen | None
    proposed: GroupRecord


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read of the record, after which the owner calls `observed`, or nothing if it cannot be read."""


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Sync of the highest epoch seen: later appends of lower ones are refused. Then `epoch_persisted` is called."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendEpochStart:
    """Append of the record that begins the epoch, then `appended` is called."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append of the leader's records, byte for byte, then `copied` (or `not_copied`) is called."""

    records: Records


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut of the log at `end`: the owner syncs it, rebuilds what is derived from the log, and calls `truncated`. If
    that cannot be rebuilt from the rest, it does as for a Reset to `start` and calls `emptied`. Before all of it: if
    the own log has another record below `end` than `last`, it is of another history, and the process ends.
    """

    end: int
    start: int = 0  # start of the leader's log
    unclean: int = 0  # epoch of the unclean election for which committed records may be cut (R20); 0: none may
    last: LastRecord | None = None  # last record of the leader's log below `end`; None: the leader did not name it


@dataclass(frozen=True, slots=True)
class Reset:
    """Removal of the whole log: an empty one begins at `start`, then `emptied` is called."""

    start: int
    unclean: int = 0  # as for a Truncate


@dataclass(frozen=True, slots=True)
class Serve:
    """Start of service: answer clients as leader of the epoch, which routes carry (R14)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StopServing:
    """End of service: refuse clients immediately, and fail calls that wait for a commit as unknown."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """New end of what is committed: answer what waited for it, show it to readers."""

    end: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """End of a drain: `leader` leads or has sent a higher epoch, or no copy took over in time (NO_LEADER)."""

    leader: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClosePeer:
    """Close of the link to a broker that sent what no replica of ours sends."""

    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordTooOld:
    """Notice that a record of a lower epoch than this broker has acted in was read: a late read, or a coordinator that
    was restored from a backup. It is not used; the owner reports it to the operator if it lasts.
    """

    epoch: int
    epoch_seen: int


@dataclass(frozen=True, slots=True)
class Fence:
    """End of the process, because its state in memory cannot be trusted."""

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
