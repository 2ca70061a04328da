"""Records that one copy fetches from another, as they travel."""

import pytest
from evenq_broker.loops.wire.records import WantedRecords, ask_records, data_of, record_pieces, wanted_of
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, LinkOpening, MalformedMessage

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb


@pytest.mark.parametrize("next_crc", [None, 0, 0xFFFF_FFFF])
def test_a_question_names_who_asks_whom_for_what(next_crc: int | None) -> None:
    who, wanted = LinkOpening("c", "broker-a", 1, 2), WantedRecords(70, 900, 4, next_crc)
    assert wanted_of(pb.FetchRecordsRequest.FromString(ask_records(who, wanted))) == (who, wanted)


@pytest.mark.parametrize("size", [1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])
def test_bytes_travel_in_pieces_of_a_mebibyte_at_most(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    pieces = list(record_pieces(data[:size]))
    assert len(pieces) == -(-size // PIECE_BYTES_MAX)
    assert b"".join(map(data_of, pieces)) == data[:size]


def test_what_is_no_piece_is_refused_with_its_size() -> None:
    with pytest.raises(MalformedMessage, match="3 bytes that are not a piece"):
        data_of(b"\xff\xff\xff")
    with pytest.raises(MalformedMessage, match="a piece of 0 bytes"):
        data_of(b"")
    with pytest.raises(MalformedMessage, match=f"a piece of {PIECE_BYTES_MAX + 1} bytes"):
        data_of(pb.FetchedRecords(data=bytes(PIECE_BYTES_MAX + 1)).SerializeToString())
