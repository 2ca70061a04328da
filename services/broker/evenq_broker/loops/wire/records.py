"""Messages by which a copy fetches records that its disk has damaged (`loops.replication.record_repair`), or a snapshot
(`loops.replication.snapshot_fetch`). Both are checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, LinkOpening, MalformedMessage


class ReceivedPiece(NamedTuple):
    """One message of the stream: the list of files, or a part of one."""

    listing: SnapshotListing | None
    """The list of files; None: it is a part of one."""
    name: str
    offset: int
    """Place of the part in its file."""
    total: int
    data: bytes
    crc32c: int | None
    """Of the whole file; None: not in this part."""


def ask_snapshot(who: LinkOpening) -> bytes:
    """Requests the newest snapshot of the broker `who.receiver`."""
    return pb.FetchSnapshotRequest(
        cluster=who.cluster, broker_name=who.broker_name, sender=who.sender, receiver=who.receiver
    ).SerializeToString()


def piece_of(data: bytes) -> ReceivedPiece:
    """Returns one message of the stream. Raises MalformedMessage."""
    try:
        piece = pb.SnapshotPiece.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(f"{len(data)} bytes that are not a piece: {error}") from error
    listing = None
    if piece.HasField("head"):
        head = piece.head
        files = tuple(SnapshotFile(file.name, file.bytes) for file in head.files)
        listing = SnapshotListing(head.log_offset, head.log_start, files)
    crc = piece.crc32c if piece.HasField("crc32c") else None
    return ReceivedPiece(listing, piece.name, piece.offset, piece.total, piece.data, crc)


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
