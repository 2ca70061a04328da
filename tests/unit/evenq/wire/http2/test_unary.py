"""The client's side of a connection: what a server may say, in any pieces; and our own server's core opposite."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from evenq.serving.http2.connection import Connection
from evenq.serving.http2.events import DataReceived, RequestStarted
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.messages import OK_HEAD, OK_TAIL, prefix
from evenq.wire.http2 import frames as f
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, Status
from evenq.wire.http2.hpack import encode
from evenq.wire.http2.unary import CallLimits, UnaryConnection

HEADERS = request_headers("/s/M", scheme="http", authority="a:1", timeout_ms=3_000, metadata=[("x-mq", "1")])
HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc+proto")])
OK = encode([(b"grpc-status", b"0"), (b"grpc-message", b"")])
GREETING = f.settings({f.MAX_CONCURRENT_STREAMS: 100})
INDEXED = b"\x40\x03a-b\x03c-d"
"""A field that enters the table."""


def headers(block: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS | flags, stream, block)


def data(body: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    return f.frame(f.DATA, flags, stream, body)


def message(body: bytes) -> bytes:
    return prefix(len(body)) + body


def answer(body: bytes, *, stream: int = 1, tail: bytes = OK) -> bytes:
    return headers(HEAD, stream=stream) + data(message(body), stream=stream) + trailers(tail, stream=stream)


def trailers(block: bytes = OK, *, stream: int = 1) -> bytes:
    return headers(block, stream=stream, flags=f.END_STREAM)


def greeted(limits: CallLimits | None = None, greeting: bytes = GREETING) -> UnaryConnection:
    calling = UnaryConnection(limits or CallLimits())
    assert calling.take().startswith(f.PREFACE)
    assert calling.receive(greeting)
    assert calling.greeted
    calling.take()
    return calling


def begun(limits: CallLimits | None = None, request: bytes = b"ask", greeting: bytes = GREETING) -> UnaryConnection:
    calling = greeted(limits, greeting)
    assert calling.begin(HEADERS, request)
    return calling


def frames_of(output: bytes) -> list[tuple[int, int, int, bytes]]:
    found, position = [], 0
    while position < len(output):
        high, low, kind, flags, stream = f.HEADER.unpack_from(output, position)
        position += f.HEADER_BYTES
        found.append((kind, flags, stream, output[position : position + (high << 8 | low)]))
        position += high << 8 | low
    assert position == len(output)
    return found


def outcome(calling: UnaryConnection) -> tuple[int, bytes, str, list[tuple[str, str]]]:
    assert not calling.running
    return calling.status, bytes(calling.message), calling.details, list(calling.trailers)


CONVERSATION = b"".join(
    (
        f.ping(b"12345678"),
        f.window_update(0, 5),
        f.frame(0xBE, 0, 7, b"unknown"),
        f.frame(f.HEADERS, f.PADDED, 1, b"\x03" + HEAD[:4] + bytes(3)),
        f.frame(f.CONTINUATION, f.END_HEADERS, 1, HEAD[4:]),
        f.window_update(1, 5),
        f.settings({f.INITIAL_WINDOW_SIZE: 70_000}),
        f.frame(f.DATA, f.PADDED, 1, b"\x02" + message(b"hello world")[:7] + bytes(2)),
        data(b""),
        data(message(b"hello world")[7:]),
        trailers(INDEXED + OK),
    )
)


@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=40))
def test_an_answer_is_the_same_however_its_bytes_are_split(cuts: list[int]) -> None:
    calling, output, over = begun(), b"", []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(CONVERSATION)], strict=True):
        over.append(calling.receive(CONVERSATION[start:end]))
        output += calling.take()
    assert over[-1]
    assert outcome(calling) == (0, b"hello world", "", [("a-b", "c-d")])
    assert frames_of(output) == [(f.PING, f.ACK, 0, b"12345678"), (f.SETTINGS, f.ACK, 0, b"")]
    assert calling.kept_bytes == 0
    calling.begin(HEADERS, b"next")
    assert calling.receive(answer(b"again", stream=3, tail=b"\xbe" + OK))  # the field that entered the table
    assert outcome(calling) == (0, b"again", "", [("a-b", "c-d")])


def test_a_call_is_three_frames_in_one_piece_and_numbers_are_odd() -> None:
    calling = greeted()
    for stream in (1, 3, 5):
        first, second = frames_of(calling.begin(HEADERS, b"ask"))
        assert first == (f.HEADERS, f.END_HEADERS, stream, HEADERS.block)
        assert second == (f.DATA, f.END_STREAM, stream, message(b"ask"))
        assert calling.receive(answer(b"", stream=stream))
        assert outcome(calling) == (0, b"", "", [])


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    request=st.integers(0, 60_000), reply=st.integers(0, 100_000), window=st.integers(1, 40_000),
    answers=st.integers(2, 40_000), piece=st.integers(1, 30_000), calls=st.integers(1, 3),
)  # fmt: skip
def test_with_our_servers_core_opposite_all_sizes_go_through_all_windows(
    request: int, reply: int, window: int, answers: int, piece: int, calls: int
) -> None:
    window = max(window, request // 200)
    answers = max(answers, reply // 200)
    piece = max(piece, (request + reply) // 500)
    totals = Totals()
    limits = Http2Limits(stream_window_bytes=window, connection_window_bytes=max(70_000, window * 2))
    server = Connection(limits, totals, 0)
    client = UnaryConnection(CallLimits(stream_window_bytes=answers, connection_window_bytes=max(70_000, answers * 2)))
    asked, said = bytes(request), bytes(reply)
    to_server, to_client = client.take(), b""
    for number in range(calls + 1):
        got = bytearray()
        if number:
            to_server += client.begin(HEADERS, asked)
        for _ in range(20_000):
            for event in server.receive(to_server[:piece], 0):
                if isinstance(event, DataReceived):
                    got += event.data
                    server.consumed(event.stream, len(event.data))
                    if event.ended:
                        assert got == message(asked)
                        server.respond(event.stream, OK_HEAD, message(said), OK_TAIL)
                else:
                    assert isinstance(event, RequestStarted)
            to_server, to_client = to_server[piece:], to_client + server.take(1 << 20)
            over = client.receive(to_client[:piece]) and client.greeted
            to_client, to_server = to_client[piece:], to_server + client.take()
            if over:
                break
        assert over
        if number:
            assert outcome(client) == (0, said, "", [])
    assert not server.ended


def test_a_request_waits_for_both_windows_and_frames_are_of_the_servers_size() -> None:
    calling = greeted(greeting=f.settings({f.INITIAL_WINDOW_SIZE: 10, f.MAX_FRAME_SIZE: 20_000}))
    request = bytes(100_000)
    assert [len(frame[3]) for frame in frames_of(calling.begin(HEADERS, request))[1:]] == [10]
    assert not calling.written
    assert not calling.receive(f.window_update(0, 5))
    assert calling.take() == b""
    assert not calling.receive(f.window_update(1, 40_000))
    assert [len(frame[3]) for frame in frames_of(calling.take())] == [20_000, 20_000]
    assert not calling.receive(f.settings({f.INITIAL_WINDOW_SIZE: 0}))  # ten fewer
    assert not calling.receive(f.window_update(1, 9))
    assert [frame[0] for frame in frames_of(calling.take())] == [f.SETTINGS]
    assert not calling.receive(f.window_update(1, 100_000))
    assert sum(len(frame[3]) for frame in frames_of(calling.take())) == 65_535 + 5 - 40_010
    assert not calling.receive(f.window_update(0, 100_000))
    rest = frames_of(calling.take())
    assert sum(len(frame[3]) for frame in rest) == 100_005 - 65_540
    assert rest[-1][1] == f.END_STREAM
    assert calling.written
    assert calling.receive(answer(b"x"))


def test_windows_that_servers_open_again_and_again_do_not_add_up() -> None:
    calling = greeted()
    for stream in range(1, 41, 2):
        calling.begin(HEADERS, bytes(1_000))
        calling.receive(f.window_update(stream, (1 << 31) - 1 - 65_535) + f.window_update(0, 1_005))
        assert calling.receive(answer(b"x", stream=stream))


def test_answers_get_window_as_they_come() -> None:
    calling = begun(CallLimits(stream_window_bytes=20_000, connection_window_bytes=65_535))
    body = message(bytes(1_000_000))
    calling.receive(headers(HEAD))
    stream_left, connection_left, position = 20_000, 65_535, 0
    while position < len(body):
        size = min(9_000, stream_left, connection_left, len(body) - position)
        assert size > 0
        assert not calling.receive(data(body[position : position + size]))
        position, stream_left, connection_left = position + size, stream_left - size, connection_left - size
        for kind, _, stream, payload in frames_of(calling.take()):
            assert kind == f.WINDOW_UPDATE
            if stream:
                stream_left += int.from_bytes(payload, "big")
            else:
                connection_left += int.from_bytes(payload, "big")
    assert calling.receive(trailers())
    assert len(calling.message) == 1_000_000


def test_trailers_alone_are_an_answer() -> None:
    calling = begun()
    tail = encode([(b"grpc-status", b"9"), (b"grpc-message", b"gr%C3%BCn%0A%"), (b"evenq-code", b"40402")])
    assert calling.receive(trailers(HEAD + tail))
    assert outcome(calling) == (9, b"", "grün\n%", [("evenq-code", "40402")])
    assert calling.take() == b""


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (headers(encode([(b":status", b"503"), (b"content-type", b"text/html")])), Status.UNAVAILABLE, "503"),
        (trailers(encode([(b":status", b"404")])), Status.UNIMPLEMENTED, "404"),
        (headers(encode([(b":status", b"200"), (b"content-type", b"text/html")])), Status.UNKNOWN, "200"),
        (headers(HEAD) + data(message(b"x"), flags=f.END_STREAM), Status.UNKNOWN, "without a status"),
        (trailers(HEAD), Status.UNKNOWN, "without a status"),
        (headers(HEAD) + trailers(), Status.INTERNAL, "no message"),
        (headers(HEAD) + data(message(b"xx")[:-1]) + trailers(), Status.INTERNAL, "a part"),
        (headers(HEAD) + data(message(b"x") * 2), Status.INTERNAL, "more than one"),
        (headers(HEAD) + data(b"\1" + message(b"x")[1:]), Status.INTERNAL, "flag 1"),
        (headers(HEAD) + headers(OK), Status.INTERNAL, "between"),
        (headers(HEAD) + data(b"\0\xff\xff\xff\xff"), Status.INTERNAL, "are allowed"),
        (trailers(encode([(b":status", b"100")])), Status.INTERNAL, "informational"),
        (headers(HEAD + encode([(b"a", bytes(20_000).replace(b"\0", b"a"))])), Status.RESOURCE_EXHAUSTED, "metadata"),
        (f.reset(1, ErrorCode.CANCEL), Status.CANCELLED, "RST_STREAM with CANCEL"),
        (f.reset(1, ErrorCode.ENHANCE_YOUR_CALM), Status.RESOURCE_EXHAUSTED, "CALM"),
        (headers(HEAD) + f.frame(f.RST_STREAM, 0, 1, b"\0\0\0\x77"), Status.INTERNAL, "RST_STREAM with INTERNAL_ERROR"),
    ],
)  # fmt: skip
def test_what_is_no_good_answer_ends_the_call_and_not_the_connection(said: bytes, status: Status, words: str) -> None:
    calling = begun()
    assert calling.receive(said)
    assert calling.status is status
    assert words in calling.details
    ended = any(flags & f.END_STREAM or kind == f.RST_STREAM for kind, flags, _, _ in frames_of(said))
    assert frames_of(calling.take()) == ([] if ended else [(f.RST_STREAM, 0, 1, b"\0\0\0\x08")])
    assert not calling.refused
    calling.begin(HEADERS, b"next")
    assert calling.receive(answer(b"fine", stream=3))
    assert outcome(calling)[:2] == (0, b"fine")


def test_informational_headers_are_passed_over() -> None:
    calling = begun()
    assert not calling.receive(headers(encode([(b":status", b"103")])))
    assert calling.receive(answer(b"x"))
    assert outcome(calling)[:2] == (0, b"x")


def test_an_answer_before_the_end_of_the_request_ends_the_request() -> None:
    calling = begun(request=bytes(1 << 20))
    assert calling.receive(trailers(HEAD + encode([(b"grpc-status", b"8")])))
    assert frames_of(calling.take()) == [(f.RST_STREAM, 0, 1, b"\0\0\0\x08")]
    assert calling.receive(f.reset(1, ErrorCode.NO_ERROR) + f.window_update(1, 10))
    assert calling.status == 8
    calling.begin(HEADERS, b"next")


def test_what_the_server_refused_it_has_not_done() -> None:
    for said, leaving in (
        (f.reset(1, ErrorCode.REFUSED_STREAM), False),
        (f.go_away(0, ErrorCode.NO_ERROR), True),
        (f.go_away(f.WINDOW_MAX, ErrorCode.NO_ERROR) + f.go_away(0, ErrorCode.NO_ERROR), True),
    ):
        calling = begun()
        assert calling.receive(said)
        assert (calling.status, calling.refused, calling.leaving) == (Status.UNAVAILABLE, True, leaving)


def test_a_call_that_goaway_names_goes_on() -> None:
    calling = begun()
    assert not calling.receive(f.go_away(f.WINDOW_MAX, ErrorCode.NO_ERROR) + f.ping(b"evenq-go"))
    assert calling.leaving
    assert frames_of(calling.take()) == [(f.PING, f.ACK, 0, b"evenq-go")]
    assert not calling.receive(f.go_away(1, ErrorCode.ENHANCE_YOUR_CALM) + headers(HEAD))
    assert calling.receive(data(message(b"x")) + trailers())
    assert outcome(calling)[:2] == (0, b"x")


def test_a_server_that_takes_no_streams_is_left() -> None:
    assert greeted(greeting=f.settings({f.MAX_CONCURRENT_STREAMS: 0})).leaving


def test_frames_of_a_call_that_was_given_up_are_read_over() -> None:
    calling = begun(CallLimits(connection_window_bytes=70_000))
    assert not calling.receive(headers(HEAD) + data(message(bytes(30_000))[:16_000]))
    assert frames_of(calling.give_up()) == [(f.RST_STREAM, 0, 1, b"\0\0\0\x08")]
    assert calling.give_up() == b""
    calling.begin(HEADERS, b"next")
    for _ in range(10):
        assert not calling.receive(data(bytes(16_000)))
    assert frames_of(calling.take()), "what was thrown away counts, too"
    assert calling.receive(trailers(INDEXED + OK) + answer(b"fine", stream=3, tail=b"\xbe" + OK))
    assert outcome(calling) == (0, b"fine", "", [("a-b", "c-d")])


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (f.ping(b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.SETTINGS, f.ACK, 0), ErrorCode.PROTOCOL_ERROR),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCode.FRAME_SIZE_ERROR),
        (b"\x15\x03\x03\x00\x02\x02\x46", None),  # an alert of TLS: less than a frame
    ],
)
def test_who_does_not_greet_is_no_server_of_http2(said: bytes, code: ErrorCode | None) -> None:
    calling = UnaryConnection()
    if code is None:
        calling.receive(said)
        assert not calling.greeted
        return
    with pytest.raises(ConnectionFault) as fault:
        calling.receive(said)
    assert fault.value.code is code


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (headers(HEAD, stream=3), ErrorCode.PROTOCOL_ERROR),
        (headers(HEAD, stream=2), ErrorCode.PROTOCOL_ERROR),
        (data(b"x"), ErrorCode.PROTOCOL_ERROR),
        (data(b"x", stream=0), ErrorCode.PROTOCOL_ERROR),
        (headers(b"\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (f.frame(f.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.CONTINUATION, f.END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.HEADERS, 0, 1, HEAD) + f.ping(b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.HEADERS, 0, 1) + f.frame(f.CONTINUATION, 0, 1) * 17, ErrorCode.ENHANCE_YOUR_CALM),
        (f.frame(f.PING, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (f.frame(f.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.SETTINGS, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (f.settings({f.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (f.settings({f.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (f.window_update(0, f.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (f.window_update(1, f.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (f.window_update(0, 0), ErrorCode.FLOW_CONTROL_ERROR),
        (f.window_update(5, 1), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.WINDOW_UPDATE, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (f.frame(f.RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (f.reset(7, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (f.frame(f.GOAWAY, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
        (headers(HEAD) + data(bytes(65_536)), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_a_server_that_breaks_the_protocol_ends_the_connection(said: bytes, code: ErrorCode) -> None:
    calling = begun(CallLimits(connection_window_bytes=65_535, stream_window_bytes=65_535))
    with pytest.raises(ConnectionFault) as fault:
        calling.receive(said)
    assert fault.value.code is code


def test_data_beyond_the_streams_window_ends_the_connection() -> None:
    calling = begun(CallLimits(stream_window_bytes=100))
    calling.receive(headers(HEAD))
    with pytest.raises(ConnectionFault) as fault:
        calling.receive(data(message(bytes(200))))
    assert fault.value.code is ErrorCode.FLOW_CONTROL_ERROR


PIECES: list[Callable[[int, bytes], bytes]] = [
    lambda number, body: headers(HEAD, stream=number),
    lambda number, body: headers(body, stream=number),
    lambda number, body: trailers(stream=number),
    lambda number, body: data(body, stream=number),
    lambda number, body: data(message(body), stream=number),
    lambda number, body: f.window_update(number, len(body)),
    lambda number, body: f.reset(number, ErrorCode.CANCEL),
    lambda number, body: f.go_away(number, ErrorCode.NO_ERROR),
    lambda number, body: f.frame(number & 15, len(body) & 0x2F, number, body),
    lambda number, body: body,
]


@settings(max_examples=300, deadline=None)
@given(
    said=st.lists(st.tuples(st.sampled_from(range(len(PIECES))), st.integers(0, 5), st.binary(max_size=40))),
    size=st.integers(1, 50), request=st.sampled_from([b"", b"ask", bytes(70_000)]),
)  # fmt: skip
def test_arbitrary_input_ends_in_an_outcome_or_a_fault_and_keeps_little(
    said: list[tuple[int, int, bytes]], size: int, request: bytes
) -> None:
    calling = begun(request=request)
    stream = b"".join(PIECES[kind](number, body) for kind, number, body in said)
    try:
        for piece in cut(stream, size):
            calling.receive(piece)
            calling.take()
            assert calling.kept_bytes <= (64 << 10) + 9 + size
            if not calling.running:
                assert calling.status or calling.message is not None
                if calling.leaving:
                    return
                calling.begin(HEADERS, request)
    except ConnectionFault:
        pass


def cut(whole: bytes, size: int) -> Iterable[bytes]:
    return (whole[start : start + size] for start in range(0, len(whole), size))
