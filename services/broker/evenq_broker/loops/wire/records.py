"""Messages by which a copy fetches records that its disk has damaged, unchecked (`loops.replication.record_fetch`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, LinkOpening, MalformedMessage


@dataclass(frozen=True, slots=True)
class WantedRecords:
    """A part of the log, between records of one file."""

    start: int
    """Log offset."""
    end: int
    """Log offset, exclusive."""
    epoch: int
    """Epoch of the record at `start`, as the requesting replica knows it; 0: not known."""
    next_crc: int | None = None
    """CRC32C of the record that begins at `end` in the requesting replica's log; None: there is none."""


def ask_records(who: LinkOpening, wanted: WantedRecords) -> bytes:
    """Requests records of the broker `who.receiver`."""
    return pb.FetchRecordsRequest(
        cluster=who.cluster,
        broker_name=who.broker_name,
        sender=who.sender,
        receiver=who.receiver,
        start=wanted.start,
        end=wanted.end,
        epoch=wanted.epoch,
        next_crc32c=wanted.next_crc,
    ).SerializeToString()


def wanted_of(request: pb.FetchRecordsRequest) -> tuple[LinkOpening, WantedRecords]:
    """Returns the requesting replica, and the requested records."""
    who = LinkOpening(request.cluster, request.broker_name, request.sender, request.receiver)
    next_crc = request.next_crc32c if request.HasField("next_crc32c") else None
    return who, WantedRecords(request.start, request.end, request.epoch, next_crc)


def record_pieces(data: bytes) -> Iterator[bytes]:
    """Yields the messages of the stream."""
    for at in range(0, len(data), PIECE_BYTES_MAX):
        yield pb.FetchedRecords(data=data[at : at + PIECE_BYTES_MAX]).SerializeToString()


def data_of(message: bytes) -> bytes:
    """Returns the data of one piece. Raises MalformedMessage."""
    try:
        data: bytes = pb.FetchedRecords.FromString(message).data
    except DecodeError as error:
        raise MalformedMessage(f"{len(message)} bytes that are not a piece of records: {error}") from error
    if not 0 < len(data) <= PIECE_BYTES_MAX:
        raise MalformedMessage(f"a piece of {len(data)} bytes of records; it has 1 to {PIECE_BYTES_MAX}")
    return data
