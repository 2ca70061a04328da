"""Messages between replicas, and the check that each passes before anything else looks at it.

Every message travels in an envelope with cluster, sender, store, start of the sender's process, and epoch. `fault_of`
refuses a message of another cluster, of a broker that is not a member, with a number outside its range or an invalid
table. The link that it came on is then closed. Lower and higher epochs are left to the replica (R3). Protobuf stays in
`rpc`, which translates. The bytes of records are opaque (`payload`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.record import NUMBER_MAX, STORE_ID, GroupRecord

EPOCH_LEAP_MAX = 1_000_000  # a claim further ahead of what is known is nonsense, not an epoch (decision 47)


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record below an offset of a log. It distinguishes logs that have the same epochs and lengths."""

    start: int
    end: int  # the offset
    crc32c: int


@dataclass(frozen=True, slots=True)
class EpochsRequest:
    """Follower's request for the place where the logs part. `number` comes back in the reply."""

    number: int
    table: EpochTable | None = None
    """The follower's log; None: its version does not send it."""
    end: int = 0


@dataclass(frozen=True, slots=True)
class EpochsReply:
    """Leader's log, for the start of the process and the request that it answers. An older reply shows a shorter log: a
    follower that cut by it would cut what it has confirmed since.
    """

    number: int
    session: int  # `session` of the requesting follower
    table: EpochTable
    end: int
    last: LastRecord | None = None  # the last record that both logs have by their epochs; None: no comparison


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """Follower's report of how far its log is (R5), and whether it wants more. Offsets are ends, exclusive."""

    end: int
    """End of what is written; the next record wanted begins there."""
    confirmed: int
    """End of what counts: synced to disk with REPL_SYNC, written with REPL_MEMORY."""
    wants: bool
    """True: send records from `end` on, now or when there are some. Read only where `ahead` is 0."""
    ahead: int = 0
    """How much may be sent behind `end` without a request; 0: one message for each `wants`."""
    queued: int = 0
    """How much behind `end` has come and is not written yet."""
    again: bool = False
    """True: what was sent behind `end` + `queued` has not come, send it again."""
    has_room: bool = False
    """True: the follower's disk has room for messages, should it lead (R22). False also if it does not report that."""


@dataclass(frozen=True, slots=True)
class Records:
    """Leader's records [start, end), maybe none, and what is committed."""

    start: int
    end: int
    previous_epoch: int  # epoch of the record before `start`; 0: there is none
    epochs: tuple[EpochStart, ...]  # epochs that begin inside
    committed: int
    rank: int  # rank of the follower among those in sync, 0 is the best: a worse one waits longer before it stands (R1)
    payload: object


@dataclass(frozen=True, slots=True)
class Nomination:
    """Draining leader's request to the best follower to stand for election; the leader's log ends at `end` (R13)."""

    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer to a message of a lower epoch; the envelope has the newer one."""


Body: TypeAlias = EpochsRequest | EpochsReply | FollowerProgress | Records | Nomination | Refusal


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message with its sender."""

    cluster: str
    sender: int  # broker id
    store_id: str
    session: int  # number that each start of the sender's process draws anew
    epoch: int
    body: Body


def fault_of(envelope: Envelope, *, cluster: str, own_id: int, epoch: int, record: GroupRecord) -> str:
    """Returns why a message must not be processed, as a sentence; empty: it may."""
    if envelope.cluster != cluster:
        return f"a message of cluster {envelope.cluster!r} in cluster {cluster!r}"
    # The newest record decides who is a member, not the sender's epoch: it may not know of its removal (R17).
    if envelope.sender == own_id or envelope.sender not in record.members:
        members = ", ".join(map(str, record.members))
        return f"broker {envelope.sender} is not another member of the group, whose copies are {members}"
    if not STORE_ID.fullmatch(envelope.store_id):
        return f"store id {envelope.store_id!r} is not 32 lower-case hexadecimal digits"
    if not 0 <= envelope.epoch <= epoch + EPOCH_LEAP_MAX:
        return f"epoch {envelope.epoch}, while {epoch} is known: at most {EPOCH_LEAP_MAX} ahead"
    return _fault_of_body(envelope.body)


def _fault_of_body(body: Body) -> str:
    match body:
        case FollowerProgress(end, confirmed, _, ahead, queued):
            if not 0 <= confirmed <= end < NUMBER_MAX:
                return f"confirmed {confirmed} of a log that ends at {end}"
            if not 0 <= ahead < NUMBER_MAX or not 0 <= queued < NUMBER_MAX - end:
                return f"{queued} queued and {ahead} ahead of a log that ends at {end}"
        case Records():
            return _fault_of_records(body)
        case EpochsReply(_, _, table, end, last):
            if last is not None and not 0 <= last.start < last.end <= end:
                return f"a last record from {last.start} to {last.end} of a log that ends at {end}"
            return _fault_of_log(table, end)
        case EpochsRequest(_, table, end) if table is not None:
            return _fault_of_log(table, end)
        case Nomination(end):
            if not 0 <= end < NUMBER_MAX:
                return f"a log that ends at {end}"
        case EpochsRequest() | Refusal():
            pass
    return ""


def _fault_of_log(table: EpochTable, end: int) -> str:
    return table.problem(end) if 0 <= end < NUMBER_MAX else f"a log that ends at {end}"


def _fault_of_records(body: Records) -> str:
    if not 0 <= body.start <= body.end < NUMBER_MAX or body.committed < 0 or body.rank < 0:
        return f"records from {body.start} to {body.end}, committed {body.committed}, rank {body.rank}"
    epoch, offset = body.previous_epoch, body.start - 1
    for entry in body.epochs:
        if entry.epoch <= epoch or not offset < entry.offset < body.end:
            return f"epoch {entry.epoch} at {entry.offset} in records from {body.start} to {body.end}"
        epoch, offset = entry
    return ""
