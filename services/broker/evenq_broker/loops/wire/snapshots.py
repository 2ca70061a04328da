"""Messages by which a follower fetches a snapshot (`loops.replication.snapshot_fetch`); they are checked elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.wire.replication import LinkOpening, MalformedMessage


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
