"""Messages, statuses and heads of the gRPC mapping."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.serving.http2.messages import JOINED_MAX, GrpcFault, RequestMessageReader, head, prefix, status
from evenq.serving.http2.requests import RequestHead, request_head, timeout_ms
from evenq.wire.http2.codes import Status
from evenq.wire.http2.hpack import Decoder, encode


def complete(reader: RequestMessageReader) -> list[bytes]:
    """All that are complete."""
    return list(iter(reader.next, None))


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(0, 90), max_size=20))
def test_messages_come_out_as_they_went_in_however_they_are_split(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(prefix(len(message)) + message for message in messages)
    reader, out, position = RequestMessageReader(1_000, "identity"), [], 0
    for cut in [*cuts, len(stream)]:
        reader.put(stream[position : position + cut])
        position += cut
        out += complete(reader)
        assert reader.kept_bytes <= 205
    assert out == messages
    assert reader.clean


@given(st.lists(st.binary(max_size=3_000), max_size=8), st.lists(st.tuples(st.integers(0, 2_500), st.integers(0, 3))))
def test_messages_wait_as_they_came_until_they_are_asked_for(
    messages: list[bytes], steps: list[tuple[int, int]]
) -> None:
    stream = b"".join(prefix(len(message)) + message for message in messages)
    reader, out, position = RequestMessageReader(3_000, "identity"), [], 0
    for size, asked in [*steps, (len(stream), 0)]:
        reader.put(stream[position : position + size])
        position = min(len(stream), position + size)
        for _ in range(asked):
            assert reader.ready() == (reader.ready() and True)
            one = reader.next()
            out += [] if one is None else [one]
        taken = sum(len(message) + 5 for message in out)
        assert 0 <= position - taken - reader.kept_bytes <= 5, "it keeps what was not taken, but for a prefix"
    assert out + complete(reader) == messages
    assert reader.clean
    assert not reader.kept_bytes


def test_many_small_messages_are_kept_as_bytes_and_not_as_objects() -> None:
    reader, one = RequestMessageReader(100, "identity"), prefix(22) + bytes(22)
    reader.put(one * 500)
    for _ in range(10_000):
        reader.put(one)
    assert reader.kept_bytes == 10_500 * len(one)
    assert len(reader._chunks) < 30
    assert [reader.next() for _ in range(10_500)] == [bytes(22)] * 10_500
    assert reader.next() is None


def test_a_long_message_in_single_bytes_costs_no_object_a_byte() -> None:
    reader, body = RequestMessageReader(100_000, "identity"), bytes(range(256)) * 300
    stream = prefix(len(body)) + body
    for byte in stream:
        assert reader.next() is None
        reader.put(bytes((byte,)))
    assert reader.next() == body
    reader.put(stream[:2_000])
    for byte in stream[2_000:60_000]:
        reader.put(bytes((byte,)))
    assert len(reader._chunks) <= 2 + 58_000 // JOINED_MAX


@pytest.mark.parametrize(
    ("data", "encoding", "code", "words"),
    [
        (b"\0\0\0\x03\xe9", "identity", Status.RESOURCE_EXHAUSTED, "larger than max (1001 vs. 1000)"),
        (b"\1\0\0\0\1x", "gzip", Status.UNIMPLEMENTED, "gzip"),
        (b"\1\0\0\0\1x", "identity", Status.INTERNAL, "no grpc-encoding"),
        (b"\7\0\0\0\1x", "identity", Status.INTERNAL, "flag 7"),
    ],
)
def test_what_is_not_read_is_refused_by_its_first_five_bytes(
    data: bytes, encoding: str, code: Status, words: str
) -> None:
    reader = RequestMessageReader(1_000, encoding)
    reader.put(data)
    with pytest.raises(GrpcFault) as fault:
        reader.ready()
    assert fault.value.code == code
    assert words in fault.value.message


@given(st.text(max_size=300))
def test_a_status_message_is_printable_ascii_and_says_the_same(text: str) -> None:
    fields = dict(field.pair for field in Decoder().decode(status(5, text, [("a-bin", b"\xff")]).block).fields)
    assert fields["grpc-status"] == "5"
    assert fields["a-bin"] == "/w"
    if text:
        assert all(" " <= character <= "~" for character in fields["grpc-message"])
        assert unquote(fields["grpc-message"], errors="replace") == text.encode("utf-8", "replace").decode()


def test_metadata_of_an_answer_stands_behind_its_headers() -> None:
    fields = [field.pair for field in Decoder().decode(head([("x", "y")]).block).fields]
    assert fields == [(":status", "200"), ("content-type", "application/grpc"), ("x", "y")]


USUAL = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/M"), (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]  # fmt: skip


def read(*fields: tuple[bytes, bytes]) -> RequestHead:
    return request_head(Decoder().decode(encode(fields)))


def test_a_head_has_what_handlers_ask_for_and_not_what_is_the_transports() -> None:
    known = read(*USUAL, (b"grpc-timeout", b"1500u"), (b"x-a", b"1"), (b"b-bin", b"/w"), (b"grpc-encoding", b"gzip"))
    assert (known.path, known.timeout_ms, known.encoding) == ("/s/M", 2, "gzip")
    assert list(known.metadata) == [("x-a", "1"), ("b-bin", b"\xff")]
    assert not known.malformed
    assert not known.not_grpc


@pytest.mark.parametrize(
    "field",
    [
        (b"X", b"y"),
        (b"connection", b"close"),
        (b"te", b"gzip"),
        (b":status", b"200"),
        (b":path", b"/b"),
        (b"a", b"b\r\nc"),
    ],
)
def test_a_field_that_no_request_has_makes_it_malformed(field: tuple[bytes, bytes]) -> None:
    assert read(*USUAL, field).malformed


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_request_without_one_of_the_three_pseudo_headers_is_malformed(missing: int) -> None:
    assert read(*(field for number, field in enumerate(USUAL) if number != missing)).malformed


@pytest.mark.parametrize(
    ("content_type", "code"), [(b"application/grpc+proto", 0), (b"application/grpc-web", 415), (b"text/html", 415)]
)
def test_what_is_no_grpc_is_told_so_by_http(content_type: bytes, code: int) -> None:
    assert read(*USUAL[:3], (b"content-type", content_type)).not_grpc == code


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1H", 3_600_000),
        ("2M", 120_000),
        ("3S", 3_000),
        ("4m", 4),
        ("5u", 1),
        ("6n", 1),
        ("0n", 0),
        ("99999999H", 359_999_996_400_000),
    ],
)
def test_a_timeout_is_read_in_each_unit(text: str, ms: int) -> None:
    assert timeout_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "S", "-1S", "123456789S", "1x", "1.5S", "²S"])
def test_a_timeout_that_is_none_is_found(text: str) -> None:
    assert timeout_ms(text) is None


def facts_of(known: RequestHead) -> tuple[object, ...]:
    """All that a server takes from a head."""
    names = ("x-mq-request-id", "x-mq-client-id", "x-mq-namespace", "none", "b-bin")
    firsts = [known.headers.first(name) for name in names]
    return (
        known.path, known.authority, sorted(known.metadata, key=str), known.timeout_ms, known.bad_timeout, known.encoding,
        known.malformed, known.not_grpc, firsts, sorted(known.headers.texts.items()), known.headers.namespace,
    )  # fmt: skip


@given(
    st.sampled_from([(b"x-mq-namespace", b"n"), (b"x-mq-client-id", b"c"), (b"b-bin", b"/w"), (b":status", b"1")]),
    st.lists(
        st.tuples(st.sampled_from([b"7S", b"9n", b"", b"7", b"5x"]) | st.none(), st.sampled_from([b"a", b"", b"\x00"])),
        min_size=2, max_size=4,
    ),
)  # fmt: skip
def test_a_head_like_one_before_tells_what_it_tells_by_itself(
    extra: tuple[bytes, bytes], calls: list[tuple[bytes | None, bytes]]
) -> None:
    decoder = Decoder()
    for timeout, request_id in calls:
        deadline = [] if timeout is None else [(b"grpc-timeout", timeout)]
        block = b"\x20" + encode([*USUAL, *deadline, extra, (b"x-mq-request-id", request_id)])
        assert facts_of(request_head(decoder.decode(block))) == facts_of(request_head(Decoder().decode(block)))
