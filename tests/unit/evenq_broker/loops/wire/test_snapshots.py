"""The pieces of a snapshot as a follower reads them."""

import pytest
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.wire.records import ReceivedPiece, piece_of
from evenq_broker.loops.wire.replication import MalformedMessage

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb


def test_the_first_piece_lists_the_files() -> None:
    piece = pb.SnapshotPiece()
    piece.head.log_offset, piece.head.log_start = 900, 100
    piece.head.files.add(name="snapshots/9", bytes=7)
    received = piece_of(piece.SerializeToString())
    assert received.listing == SnapshotListing(900, 100, (SnapshotFile("snapshots/9", 7),))
    assert received.crc32c is None


@pytest.mark.parametrize("crc32c", [None, 0, 77])
def test_a_part_of_a_file_says_where_it_begins_and_maybe_a_checksum(crc32c: int | None) -> None:
    piece = pb.SnapshotPiece(name="snapshots/9", offset=3, total=7, data=b"data")
    if crc32c is not None:
        piece.crc32c = crc32c
    assert piece_of(piece.SerializeToString()) == ReceivedPiece(None, "snapshots/9", 3, 7, b"data", crc32c)


def test_what_is_no_piece_is_refused_with_its_size() -> None:
    with pytest.raises(MalformedMessage, match="3 bytes that are not a piece"):
        piece_of(b"\xff\xff\xff")
