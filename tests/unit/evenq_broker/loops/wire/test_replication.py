"""What replicas say comes back as it was said, and whatever else comes is a typed error."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from evenq_broker.core.replication.epoch_table import ENTRIES_MAX, EpochStart, EpochTable
from evenq_broker.core.replication.messages import (
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    LastRecord,
    Nomination,
    Records,
    Refusal,
)
from evenq_broker.loops.wire import replication as wire
from evenq_broker.loops.wire.replication import (
    PIECE_BYTES_MAX,
    RECORDS_BYTES_MAX,
    STANDS,
    LinkEnd,
    LinkOpening,
    MalformedMessage,
    MessageReader,
    closed_event,
    envelope_bytes,
    envelope_pieces,
    link_end,
    opening_message,
)
from hypothesis import given
from hypothesis import strategies as st

from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb

OPENING = LinkOpening("cluster", "broker-a", 1, 0, reads_crc32=True)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(max_size=40)
ENTRIES = st.lists(st.builds(EpochStart, NUMBERS, NUMBERS), max_size=5).map(tuple)
LASTS = st.builds(LastRecord, NUMBERS, NUMBERS, st.integers(0, (1 << 32) - 1))
BODIES = st.one_of(
    st.builds(EpochsRequest, NUMBERS),
    st.builds(EpochsRequest, NUMBERS, st.builds(EpochTable, NUMBERS, ENTRIES), NUMBERS),
    st.builds(EpochsReply, NUMBERS, NUMBERS, st.builds(EpochTable, NUMBERS, ENTRIES), NUMBERS, st.none() | LASTS),
    st.builds(FollowerProgress, NUMBERS, NUMBERS, st.booleans(), NUMBERS, NUMBERS, st.booleans(), st.booleans()),
    st.builds(Records, NUMBERS, NUMBERS, NUMBERS, ENTRIES, NUMBERS, NUMBERS, st.binary(max_size=64)),
    st.builds(Nomination, NUMBERS),
    st.just(Refusal()),
)
ENVELOPES = st.builds(Envelope, TEXTS, NUMBERS, TEXTS, NUMBERS, NUMBERS, BODIES)


def reader() -> MessageReader:
    one = MessageReader()
    assert one.feed(opening_message(OPENING)) is None
    assert one.opening == OPENING
    return one


def records(payload: object, *, epochs: tuple[EpochStart, ...] = ()) -> Envelope:
    return Envelope("c", 1, "a" * 32, 7, 2, Records(10, 20, 1, epochs, 5, 0, payload))


def message(**fields: object) -> pb.ReplicationMessage:
    first = pb.ReplicationRecords(payload_bytes=6, payload=b"abc", more=True)
    one = pb.ReplicationMessage(cluster="c", sender=1, records=first)
    for name, value in fields.items():
        setattr(one.records, name, value)
    return one


def piece(payload: bytes, *, more: bool = False) -> bytes:
    return pb.ReplicationMessage(piece=pb.RecordsPiece(payload=payload, more=more)).SerializeToString()


@given(st.lists(ENVELOPES, min_size=1, max_size=4), st.integers(1, 20))
def test_every_envelope_comes_back_as_it_went_in_its_order(envelopes: list[Envelope], piece_max: int) -> None:
    whole, wire.PIECE_BYTES_MAX = wire.PIECE_BYTES_MAX, piece_max  # so that small payloads travel in pieces, too
    try:
        one = reader()
        came = [one.feed(data) for envelope in envelopes for data in envelope_pieces(envelope)]
    finally:
        wire.PIECE_BYTES_MAX = whole
    assert [envelope for envelope in came if envelope is not None] == envelopes
    assert one.kept_bytes == 0


def told_by(progress: FollowerProgress) -> Envelope:
    return Envelope("c", 1, "b" * 32, 11, 3, progress)


OLD_PROGRESS = bytes.fromhex("0a016310011a20" + "62" * 32 + "200b28034a060814100a1801")
"""`FollowerProgress(20, 10, True)` as version 0.1 writes it, before followers were sent anything ahead."""


def test_a_follower_of_an_older_version_takes_nothing_ahead() -> None:
    assert reader().feed(OLD_PROGRESS) == told_by(FollowerProgress(20, 10, True, ahead=0, queued=0, again=False))


def test_a_leader_of_an_older_version_reads_what_it_knows_of_a_report() -> None:
    assert list(envelope_pieces(told_by(FollowerProgress(20, 10, True)))) == [OLD_PROGRESS]
    [new] = envelope_pieces(told_by(FollowerProgress(20, 10, True, ahead=4096, queued=5, again=True, has_room=True)))
    old = pb.ReplicationMessage.FromString(OLD_PROGRESS)
    read = pb.ReplicationMessage.FromString(new)
    for field in ("ahead", "queued", "again", "has_room"):
        read.progress.ClearField(field)
    assert read == old, "the fields that it does not know are beside those that it does"


def test_a_large_payload_travels_in_pieces_of_one_mebibyte() -> None:
    payload = bytes(range(256)) * (3 << 12) + b"rest"
    pieces = list(envelope_pieces(records(payload)))
    assert len(pieces) == 4
    assert max(map(len, pieces)) < PIECE_BYTES_MAX + 200
    one = reader()
    assert [one.feed(data) for data in pieces[:-1]] == [None] * 3
    assert one.kept_bytes == 3 * PIECE_BYTES_MAX
    envelope = one.feed(pieces[-1])
    assert envelope == records(payload)
    assert isinstance(envelope.body.payload, bytes)  # type: ignore[union-attr]
    assert one.kept_bytes == 0


def test_the_largest_records_can_be_sent_and_no_larger_ones() -> None:
    size = sum(len(data) for data in envelope_pieces(records(bytes(RECORDS_BYTES_MAX))))
    assert RECORDS_BYTES_MAX < size < RECORDS_BYTES_MAX + 64 * 64
    for refused in (envelope_bytes, lambda one: list(envelope_pieces(one))):
        with pytest.raises(MalformedMessage, match=f"{RECORDS_BYTES_MAX + 1} bytes; at most {RECORDS_BYTES_MAX}"):
            refused(records(bytes(RECORDS_BYTES_MAX + 1)))
        with pytest.raises(MalformedMessage, match="tuple"):
            refused(records((1, 2)))


def test_the_largest_records_are_put_together_in_seventy_two_mebibytes() -> None:
    payload = bytes(RECORDS_BYTES_MAX)
    one, last = reader(), None
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for data in envelope_pieces(records(payload)):
            last = one.feed(data)
            del data
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last == records(payload)
    assert RECORDS_BYTES_MAX < most - before < 80 << 20  # with some copies of one piece


@pytest.mark.parametrize("payload", [bytearray(b"abc"), memoryview(b"abc")])
def test_a_payload_may_be_any_bytes(payload: object) -> None:
    assert [reader().feed(data) for data in envelope_pieces(records(payload))] == [records(b"abc")]


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_the_wire_has_no_room_for_is_a_typed_error(number: int) -> None:
    for envelope in (
        Envelope("c", 1, "a", number, 1, Refusal()),
        Envelope("c", 1, "a", 1, 1, FollowerProgress(number, 0, False)),
        Envelope("c", 1, "a", 1, 1, Records(number, 1, 1, (), 1, 1, b"")),
        Envelope("c\ud800", 1, "a", 1, 1, Refusal()),
    ):
        with pytest.raises(MalformedMessage, match="cannot be sent"):
            list(envelope_pieces(envelope))


def test_what_an_envelope_holds_is_counted() -> None:
    assert envelope_bytes(records(bytes(5_000))) >= 5_000
    table = EpochTable(0, tuple(EpochStart(number + 1, number) for number in range(1_000)))
    assert envelope_bytes(Envelope("c", 1, "a", 1, 1, EpochsReply(1, 1, table, 5_000))) > 16_000
    assert envelope_bytes(Envelope("c", 1, "a", 1, 1, EpochsRequest(1, table, 5_000))) > 16_000
    assert envelope_bytes(Envelope("c", 1, "a", 1, 1, EpochsRequest(1))) > 0
    assert envelope_bytes(Envelope("c", 1, "a", 1, 1, Refusal())) > 0


def test_a_release_before_neither_says_its_epochs_nor_gets_a_record() -> None:
    old = pb.ReplicationMessage(epochs_request=pb.EpochsRequest(number=4)).SerializeToString()
    one = reader().feed(old)
    assert one is not None
    assert one.body == EpochsRequest(4)
    reply = pb.ReplicationMessage(epochs_reply=pb.EpochsReply(number=4, session=2, end=9)).SerializeToString()
    one = reader().feed(reply)
    assert one is not None
    assert one.body == EpochsReply(4, 2, EpochTable(), 9)


@given(st.binary(max_size=200))
def test_hostile_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    for one in (MessageReader(), reader()):
        with contextlib.suppress(MalformedMessage):
            one.feed(data)
        assert one.kept_bytes <= len(data)


@given(ENVELOPES, st.data())
def test_a_message_with_flipped_bytes_is_a_message_or_a_typed_error(envelope: Envelope, data: st.DataObject) -> None:
    one = reader()
    for sent in envelope_pieces(envelope):
        torn = bytearray(sent)
        for _ in range(data.draw(st.integers(1, 3))):
            if torn:
                torn[data.draw(st.integers(0, len(torn) - 1))] = data.draw(st.integers(0, 255))
        try:
            one.feed(bytes(torn))
        except MalformedMessage:
            return


def refused(one: MessageReader, *messages: bytes) -> str:
    *before, last = messages
    for data in before:
        assert one.feed(data) is None
    with pytest.raises(MalformedMessage) as raised:
        one.feed(last)
    return str(raised.value)


def test_a_link_begins_with_its_opening_and_has_no_second_one() -> None:
    [nomination] = envelope_pieces(Envelope("c", 1, "a", 1, 1, Nomination(1)))
    assert "must begin with an opening" in refused(MessageReader(), nomination)
    assert "second opening" in refused(reader(), opening_message(OPENING))
    assert "without a body" in refused(reader(), b"")
    unknown = b"\xfa\x06\x00"  # field 111, as a later version may have
    assert "without a body that this version knows" in refused(reader(), unknown)


def test_a_broken_sequence_of_pieces_is_refused() -> None:
    first = message().SerializeToString()
    [refusal] = envelope_pieces(Envelope("c", 1, "a", 1, 1, Refusal()))
    assert "piece came where a message of its own" in refused(reader(), piece(b"x"))
    assert "refusal came where a piece" in refused(reader(), first, refusal)
    assert "records came where a piece" in refused(reader(), first, first)
    assert "more than the 6 bytes" in refused(reader(), first, piece(b"abcd"))
    assert "5 bytes that were to have 6" in refused(reader(), first, piece(b"ab"))
    assert "a piece with 0 bytes" in refused(reader(), first, piece(b"", more=True))
    assert reader().feed(message(more=False, payload_bytes=3).SerializeToString()) is not None


def test_the_size_of_records_and_of_their_pieces_is_bounded_before_anything_is_kept() -> None:
    over = RECORDS_BYTES_MAX + 1
    one = reader()
    assert f"records with {over} bytes" in refused(one, message(payload_bytes=over).SerializeToString())
    assert one.kept_bytes == 0
    assert "records with -1 bytes" in refused(reader(), message(payload_bytes=-1).SerializeToString())
    large = bytes(PIECE_BYTES_MAX + 1)
    whole = message(payload=large, payload_bytes=len(large), more=False)
    assert "a first piece with" in refused(reader(), whole.SerializeToString())
    first = message(payload_bytes=RECORDS_BYTES_MAX).SerializeToString()
    assert f"a piece with {len(large)} bytes" in refused(reader(), first, piece(large))
    assert "a first piece with 0 bytes" in refused(reader(), message(payload=b"").SerializeToString())
    assert "3 bytes that were to have 6" in refused(reader(), message(more=False).SerializeToString())


def test_a_table_of_epochs_is_bounded() -> None:
    entries = tuple(EpochStart(number + 1, number) for number in range(ENTRIES_MAX + 1))
    table = EpochTable(0, entries)
    for body in (
        EpochsReply(1, 1, table, 5_000),
        EpochsRequest(1, table, 5_000),
        Records(0, 5_000, 0, entries, 0, 0, b""),
    ):
        [data] = envelope_pieces(Envelope("c", 1, "a", 1, 1, body))
        assert f"{ENTRIES_MAX + 1} epochs" in refused(reader(), data)


def test_the_answers_of_a_link() -> None:
    assert link_end(STANDS) is None
    assert link_end(b"") is None
    for end in (LinkEnd("it is over"), LinkEnd("a newer link came", taken_over=True)):
        assert link_end(closed_event(end)) == end
    assert link_end(closed_event(LinkEnd("x" * 10_000))) == LinkEnd("x" * 500)
    assert link_end(closed_event(LinkEnd(""))) == LinkEnd("it gave no reason")
    with pytest.raises(MalformedMessage, match="not an event of a link"):
        link_end(b"\xff")


@pytest.mark.parametrize("cause", [b"", b"\x10\x63"], ids=["none, as of a release before", "99, of a later one"])
def test_a_link_that_is_closed_for_a_cause_that_is_not_known_was_not_taken_over(cause: bytes) -> None:
    closed = b"\x0a\x0ait is over" + cause
    assert link_end(b"\x12" + bytes([len(closed)]) + closed) == LinkEnd("it is over")
