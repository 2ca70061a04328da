"""Conversions between the messages of replicas (`core.replication.messages`) and `evenq.v1.ReplicationMessage`.

Total in both directions. An envelope becomes one message or several pieces, none over 1 MiB of payload. Bytes become an
opening, an envelope, nothing yet, or `MalformedMessage`. This module only checks that bytes are a message; `fault_of`
in the core checks its values and its sender. Used by the links (`loops.replication`) and by the calls that serve them
(`rpc.replication`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.core.replication.epoch_table import ENTRIES_MAX, EpochStart, EpochTable
from evenq_broker.core.replication.messages import (
    Body,
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    LastRecord,
    Nomination,
    Records,
    Refusal,
)

PIECE_BYTES_MAX = 1 << 20
"""Payload of one message: far below the limit of each server of a broker."""
RECORDS_BYTES_MAX = 64 << 20
"""Payload of one Records: the largest group of records."""
ENVELOPE_BYTES = 256
"""Approximate size of an envelope without payload and epochs, for counting."""
ENTRY_BYTES = 24
REASON_MAX = 500


class MalformedMessage(BadRequest):
    """Bytes of a peer are not a message of replication, or not the expected one. Their link ends."""


@dataclass(frozen=True, slots=True)
class LinkOpening:
    """The first message of a link: its sender and receiver."""

    cluster: str
    broker_name: str
    """Of the group."""
    sender: int
    """Broker id."""
    receiver: int
    """Broker id."""
    reads_crc32: bool = False
    """Whether the sender, if it leads one day, accepts messages with a CRC32 (`core.sending.body_digest`)."""


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Why a link is closed by the side that receives."""

    reason: str
    """For operators, never empty."""
    taken_over: bool = False
    """A newer link of the same sender has its place."""


# ------------------------------------------------------------------------------------------------------------- out


def opening_message(opening: LinkOpening) -> bytes:
    """Returns the first message of a link."""
    return pb.ReplicationMessage(
        cluster=opening.cluster,
        sender=opening.sender,
        opening=pb.LinkOpening(
            broker_name=opening.broker_name, receiver=opening.receiver, reads_crc32=opening.reads_crc32
        ),
    ).SerializeToString()


def envelope_bytes(envelope: Envelope) -> int:
    """Returns the approximate size in memory, bytes. Raises MalformedMessage for records that cannot be sent."""
    body = envelope.body
    if isinstance(body, Records):
        return ENVELOPE_BYTES + len(_payload_of(body)) + ENTRY_BYTES * len(body.epochs)
    table = body.table if isinstance(body, (EpochsReply, EpochsRequest)) else None
    return ENVELOPE_BYTES + ENTRY_BYTES * (0 if table is None else len(table.entries))


def envelope_pieces(envelope: Envelope) -> Iterator[bytes]:
    """Yields the messages of one envelope, one by one, to be sent in this order. Raises MalformedMessage."""
    message = pb.ReplicationMessage()
    body = envelope.body
    rest = memoryview(b"")
    try:
        message.cluster, message.store_id = envelope.cluster, envelope.store_id
        message.sender, message.session, message.epoch = envelope.sender, envelope.session, envelope.epoch
        if isinstance(body, Records):
            payload = _payload_of(body)
            rest = payload[PIECE_BYTES_MAX:]
            _put_records(message.records, body, payload)
        else:
            _put(message, body)
    except (ValueError, TypeError) as error:  # a number that exceeds its wire type
        raise MalformedMessage(f"{type(body).__name__} of broker {envelope.sender} cannot be sent: {error}") from error
    yield message.SerializeToString()
    while rest:
        piece, rest = rest[:PIECE_BYTES_MAX], rest[PIECE_BYTES_MAX:]
        more = pb.RecordsPiece(payload=bytes(piece), more=bool(rest))
        yield pb.ReplicationMessage(piece=more).SerializeToString()


def _payload_of(records: Records) -> memoryview:
    payload = records.payload
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise MalformedMessage(f"records with {type(payload).__name__} for a payload; it must be bytes")
    view = memoryview(payload).cast("B")
    if len(view) > RECORDS_BYTES_MAX:
        raise MalformedMessage(f"records with {len(view)} bytes; at most {RECORDS_BYTES_MAX} go into one message")
    return view


def _put(message: pb.ReplicationMessage, body: Body) -> None:
    match body:
        case EpochsRequest(number, own, end):
            message.epochs_request.number = number
            if own is not None:
                log = pb.EpochsOfLog(start=own.start, table=_entries(own.entries), end=end)
                message.epochs_request.log.CopyFrom(log)
        case EpochsReply(number, session, table, end, last):
            reply = pb.EpochsReply(number=number, session=session, table_start=table.start, end=end)
            reply.table.extend(_entries(table.entries))
            if last is not None:
                reply.last.CopyFrom(pb.LastRecord(start=last.start, end=last.end, crc32c=last.crc32c))
            message.epochs_reply.CopyFrom(reply)
        case FollowerProgress(end, confirmed, wants, ahead, queued, again, has_room):
            message.progress.CopyFrom(
                pb.ReplicationProgress(
                    end=end,
                    confirmed=confirmed,
                    wants=wants,
                    ahead=ahead,
                    queued=queued,
                    again=again,
                    has_room=has_room,
                )
            )
        case Nomination(end):
            message.nomination.CopyFrom(pb.Nomination(end=end))
        case Refusal():
            message.refusal.CopyFrom(pb.Refusal())
        case _:
            raise TypeError(f"{type(body).__name__} is not a body of one message")


def _put_records(message: pb.ReplicationRecords, body: Records, payload: memoryview) -> None:
    message.start, message.end, message.previous_epoch = body.start, body.end, body.previous_epoch
    message.committed, message.rank = body.committed, body.rank
    message.epochs.extend(_entries(body.epochs))
    message.payload_bytes = len(payload)
    message.payload = bytes(payload[:PIECE_BYTES_MAX])
    message.more = len(payload) > PIECE_BYTES_MAX


def _entries(entries: Iterable[EpochStart]) -> Iterator[pb.EpochStart]:
    return (pb.EpochStart(epoch=entry.epoch, offset=entry.offset) for entry in entries)


# -------------------------------------------------------------------------------------------------------------- in


class MessageReader:
    """Reads the messages of one link. Holds one incomplete Records at most: `RECORDS_BYTES_MAX` and an eighth more."""

    def __init__(self) -> None:
        self.opening: LinkOpening | None = None
        self._first: pb.ReplicationMessage | None = None
        """Records whose pieces are being received."""
        self._payload = BytesIO()  # grows in place, and gives its bytes away without a copy

    @property
    def kept_bytes(self) -> int:
        """Payload of incomplete Records."""
        return self._payload.tell()

    def feed(self, data: bytes) -> Envelope | None:
        """Returns the envelope that a message completes, or None. MalformedMessage makes the link unreadable."""
        try:
            message = pb.ReplicationMessage.FromString(data)
        except DecodeError as error:
            raise MalformedMessage(f"{len(data)} bytes that are not a message of replication: {error}") from error
        kind = message.WhichOneof("body")
        if kind is None:
            raise MalformedMessage("a message without a body that this version knows")
        if self.opening is None:
            if kind != "opening":
                raise MalformedMessage(f"a link that begins with {kind}; it must begin with an opening")
            self.opening = _opening_of(message)
            return None
        if (kind == "piece") != (self._first is not None):
            wanted = "a piece of the records before it" if self._first is not None else "a message of its own"
            raise MalformedMessage(f"{kind} came where {wanted} was expected")
        match kind:
            case "opening":
                raise MalformedMessage("a second opening on one link")
            case "piece":
                return self._add(message.piece.payload, more=message.piece.more)
            case "records":
                return self._begin(message)
        return _envelope_of(message, _body_of(message))

    def _begin(self, message: pb.ReplicationMessage) -> Envelope | None:
        records = message.records
        size = len(records.payload)
        if not 0 <= records.payload_bytes <= RECORDS_BYTES_MAX:
            raise MalformedMessage(f"records with {records.payload_bytes} bytes; 0 to {RECORDS_BYTES_MAX} are taken")
        if size > PIECE_BYTES_MAX or (records.more and not size):
            raise MalformedMessage(f"a first piece with {size} bytes; it has at most {PIECE_BYTES_MAX}")
        if not records.more:
            return self._whole(message, records.payload)
        self._first = message
        self._payload.write(records.payload)
        records.ClearField("payload")
        return None

    def _add(self, payload: bytes, *, more: bool) -> Envelope | None:
        assert self._first is not None
        if not 1 <= len(payload) <= PIECE_BYTES_MAX:
            raise MalformedMessage(f"a piece with {len(payload)} bytes; it has 1 to {PIECE_BYTES_MAX}")
        total = self._first.records.payload_bytes
        if self.kept_bytes + len(payload) > total:
            raise MalformedMessage(f"pieces of more than the {total} bytes that the records were to have")
        self._payload.write(payload)
        if more:
            return None
        first, kept = self._first, self._payload
        self._first, self._payload = None, BytesIO()
        return self._whole(first, kept.getvalue())

    def _whole(self, message: pb.ReplicationMessage, payload: bytes) -> Envelope:
        records = message.records
        if len(payload) != records.payload_bytes:
            raise MalformedMessage(f"records of {len(payload)} bytes that were to have {records.payload_bytes}")
        body = Records(
            start=records.start,
            end=records.end,
            previous_epoch=records.previous_epoch,
            epochs=_starts(records.epochs),
            committed=records.committed,
            rank=records.rank,
            payload=payload,
        )
        return _envelope_of(message, body)


def _opening_of(message: pb.ReplicationMessage) -> LinkOpening:
    opening = message.opening
    return LinkOpening(
        message.cluster, opening.broker_name, message.sender, opening.receiver, reads_crc32=opening.reads_crc32
    )


def _envelope_of(message: pb.ReplicationMessage, body: Body) -> Envelope:
    return Envelope(message.cluster, message.sender, message.store_id, message.session, message.epoch, body)


def _body_of(message: pb.ReplicationMessage) -> Body:
    match message.WhichOneof("body"):
        case "epochs_request":
            request = message.epochs_request
            if not request.HasField("log"):
                return EpochsRequest(request.number)
            log = request.log
            return EpochsRequest(request.number, EpochTable(log.start, _starts(log.table)), log.end)
        case "epochs_reply":
            reply = message.epochs_reply
            table = EpochTable(reply.table_start, _starts(reply.table))
            last = LastRecord(reply.last.start, reply.last.end, reply.last.crc32c) if reply.HasField("last") else None
            return EpochsReply(reply.number, reply.session, table, reply.end, last)
        case "progress":
            progress = message.progress
            return FollowerProgress(
                progress.end,
                progress.confirmed,
                progress.wants,
                progress.ahead,
                progress.queued,
                progress.again,
                progress.has_room,
            )
        case "nomination":
            return Nomination(message.nomination.end)
        case "refusal":
            return Refusal()
        case other:
            raise MalformedMessage(f"{other} is not a body of one message")


def _starts(entries: Collection[pb.EpochStart]) -> tuple[EpochStart, ...]:
    if len(entries) > ENTRIES_MAX:
        raise MalformedMessage(f"{len(entries)} epochs in one message, at most {ENTRIES_MAX}")
    return tuple(EpochStart(entry.epoch, entry.offset) for entry in entries)


# ---------------------------------------------------------------------------------------------------------- answers

STANDS = pb.LinkEvent(stands=pb.LinkStands()).SerializeToString()
"""Sign that the link is alive."""


def closed_event(end: LinkEnd) -> bytes:
    """Returns the last event of a link."""
    cause = pb.LinkClosed.TAKEN_OVER if end.taken_over else pb.LinkClosed.UNKNOWN
    return pb.LinkEvent(closed=pb.LinkClosed(reason=end.reason[:REASON_MAX], cause=cause)).SerializeToString()


def link_end(data: bytes) -> LinkEnd | None:
    """Returns why the other side closes the link; None: it is alive. Raises MalformedMessage."""
    try:
        event = pb.LinkEvent.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(f"{len(data)} bytes that are not an event of a link: {error}") from error
    if event.WhichOneof("event") == "closed":
        closed = event.closed
        return LinkEnd(
            closed.reason[:REASON_MAX] or "it gave no reason", taken_over=closed.cause == pb.LinkClosed.TAKEN_OVER
        )
    return None
