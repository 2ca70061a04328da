"""What replicas say to each other, and what is refused of it before anything else looks at it.

Every message travels in an envelope with cluster, sender, store, start of the sender's process, and epoch. A message
of another cluster, of a broker that is no member, with a number outside its range or a table that is no table is
refused by `fault_of`, and the link it came on is closed. Lower and higher epochs are the replica's business (R3).
Nothing here is protobuf: `rpc` translates. The bytes of records are opaque (`payload`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.record import NUMBER_MAX, STORE_ID, GroupRecord

__all__ = [
    "Body",
    "Envelope",
    "EpochsReply",
    "EpochsRequest",
    "FollowerProgress",
    "LastRecord",
    "Nomination",
    "Records",
    "Refusal",
    "fault_of",
]

EPOCH_LEAP_MAX = 1_000_000  # a claim further ahead of what is known is nonsense, not an epoch (decision 47)


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record below a place of a log. By it two logs are told apart that have the same epochs and lengths."""

    start: int
    end: int
    """The place."""
    crc32c: int


@dataclass(frozen=True, slots=True)
class EpochsRequest:
    """Follower to leader: where do our logs part? `number` comes back in the reply."""

    number: int
    table: EpochTable | None = None
    """The own log; None: the sender is of a version that does not say."""
    end: int = 0


@dataclass(frozen=True, slots=True)
class EpochsReply:
    """Leader to follower: my log. Valid only for the start of the process, and the request, that asked: an older reply
    shows a shorter log, and who cut by it would cut what it confirmed since.
    """

    number: int
    session: int
    """`session` of the follower that asked."""
    table: EpochTable
    end: int
    last: LastRecord | None = None
    """The last record of what both logs have by their epochs; None: no comparison."""


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """Follower to leader: how far my log is (R5), and whether I want more. Offsets are ends, exclusive."""

    end: int
    """What is written; the next record wanted begins there."""
    confirmed: int
    """What counts: synced to disk with REPL_SYNC, written with REPL_MEMORY."""
    wants: bool
    """True: send records from `end` on, now or when there are some. Only who knows no `ahead` looks at it."""
    ahead: int = 0
    """How much may be sent behind `end` without being asked for; 0: one message for each time that I want more."""
    queued: int = 0
    """How much behind `end` has come and is not written yet."""
    again: bool = False
    """True: what was sent behind `end` + `queued` has not come, send it again."""
    has_room: bool = False
    """True: my disk has room for messages, should I lead (R22). False also of who says nothing of it."""


@dataclass(frozen=True, slots=True)
class Records:
    """Leader to follower: records [start, end), which may be none, and what is committed."""

    start: int
    end: int
    previous_epoch: int
    """Epoch of the record before `start`; 0: there is none."""
    epochs: tuple[EpochStart, ...]
    """Epochs that begin inside."""
    committed: int
    rank: int
    """Place of the follower among those in sync, 0 is the best: who is worse waits longer before it stands (R1)."""
    payload: object


@dataclass(frozen=True, slots=True)
class Nomination:
    """Draining leader to the best follower: elect yourself, my log ends at `end` (R13)."""

    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Your epoch is over; the envelope has the newer one."""


Body: TypeAlias = EpochsRequest | EpochsReply | FollowerProgress | Records | Nomination | Refusal


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message."""

    cluster: str
    sender: int
    """Broker id."""
    store_id: str
    session: int
    """Number that each start of the sender's process draws anew."""
    epoch: int
    body: Body


def fault_of(envelope: Envelope, *, cluster: str, own_id: int, epoch: int, record: GroupRecord) -> str:
    """Why a message must not be looked at, in a sentence; empty: it may be."""
    if envelope.cluster != cluster:
        return f"a message of cluster {envelope.cluster!r} in cluster {cluster!r}"
    # The newest record decides who is a member, not the sender's epoch: a removed copy does not know yet that it was
    # (R17).
    if envelope.sender == own_id or envelope.sender not in record.members:
        members = ", ".join(map(str, record.members))
        return f"broker {envelope.sender} is no other member of the group, whose copies are {members}"
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
