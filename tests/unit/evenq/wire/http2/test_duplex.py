"""Messages both ways on one connection: cut by frames and windows in any way, and calls that end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.serving.http2.messages import RequestMessageReader, prefix
from evenq.wire.http2 import frames as f
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, Status
from evenq.wire.http2.duplex import DuplexConnection
from evenq.wire.http2.hpack import encode
from evenq.wire.http2.unary import CallLimits

HEADERS = request_headers("/s/M", scheme="http", authority="a:1", timeout_ms=None, metadata=[("who", "me")])
HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
LIMITS = CallLimits(
    stream_window_bytes=8_000, connection_window_bytes=16_000, frame_bytes_max=1_000, answer_bytes_max=5_000
)


def headers(block: bytes, *, flags: int = 0) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS | flags, 1, block)


def tail(code: int = 0) -> bytes:
    return headers(encode([(b"grpc-status", b"%d" % code), (b"grpc-message", b"why")]), flags=f.END_STREAM)


def data(*messages: bytes) -> bytes:
    return b"".join(f.frame(f.DATA, 0, 1, prefix(len(message)) + message) for message in messages)


def begun(server: dict[int, int] | None = None) -> DuplexConnection:
    """A call to a server with these SETTINGS."""
    core = DuplexConnection(LIMITS)
    assert core.take().startswith(f.PREFACE)
    core.receive(f.settings(server or {}))
    core.open(HEADERS)
    assert HEADERS.block in core.take()
    return core


class Server:
    """Reads what a client writes, with windows of its own."""

    def __init__(self, window: int) -> None:
        self.reader = RequestMessageReader(1 << 30, "identity")
        self.windows = {0: 65_535, 1: window}
        self.ended = False
        self.resets: list[int] = []

    def take(self, written: bytes) -> list[bytes]:
        """The messages that are whole."""
        while written:
            high, low, kind, flags, stream = f.HEADER.unpack(written[: f.HEADER_BYTES])
            length = high << 8 | low
            payload, written = written[f.HEADER_BYTES :][:length], written[f.HEADER_BYTES + length :]
            assert len(payload) == length, "a frame is written whole"
            if kind == f.DATA:
                assert stream == 1
                assert length <= f.FRAME_BYTES_DEFAULT
                for one in (0, 1):
                    self.windows[one] -= length
                    assert self.windows[one] >= 0, "no more than the windows allow"
                self.reader.put(payload)
                self.ended = self.ended or bool(flags & f.END_STREAM)
            elif kind == f.RST_STREAM:
                self.resets.append(int.from_bytes(payload, "big"))
        found: list[bytes] = []
        while (message := self.reader.next()) is not None:
            found.append(message)
        return found

    def more(self, stream: int, size: int) -> bytes:
        self.windows[stream] += size
        return f.window_update(stream, size)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.binary(max_size=200) | st.integers(15_000, 40_000).map(bytes), max_size=6),
    st.integers(0, 70_000),
    st.lists(st.integers(1, 30_000), min_size=1),
)
@pytest.mark.slow
def test_messages_leave_whole_and_in_order_whatever_the_windows_are(
    messages: list[bytes], window: int, steps: list[int]
) -> None:
    core, server = begun({f.INITIAL_WINDOW_SIZE: window}), Server(window)
    result: list[bytes] = []
    for message in messages:
        core.send(message)
    result += server.take(core.take())
    turn = 0
    while core.unsent_bytes:
        step = steps[turn % len(steps)]
        turn += 1
        core.feed(server.more(1, step))
        core.feed(server.more(0, step))
        result += server.take(core.take())
    assert result == messages
    assert not server.ended
    assert core.running


def test_a_call_whose_window_is_used_up_says_what_waits_and_goes_on_when_it_opens() -> None:
    core, server = begun({f.INITIAL_WINDOW_SIZE: 10}), Server(10)
    core.send(b"123456789")
    assert core.unsent_bytes == 4
    assert server.take(core.take()) == []
    core.feed(f.window_update(0, 1_000))
    assert core.take() == b""
    core.feed(server.more(1, 4))
    assert (server.take(core.take()), core.unsent_bytes) == ([b"123456789"], 0)
    core.send(b"x")
    core.feed(f.settings({f.INITIAL_WINDOW_SIZE: 16}))  # of streams that run, too
    server.windows[1] += 6
    assert server.take(core.take()) == [b"x"]


ANSWERS = st.lists(st.binary(max_size=300) | st.integers(500, 4_000).map(bytes), max_size=8)


@settings(max_examples=150, deadline=None)
@given(ANSWERS, st.lists(st.integers(1, 700), min_size=1), st.booleans())
def test_answers_arrive_whole_whatever_pieces_they_come_in(
    answers: Sequence[bytes], sizes: list[int], at_once: bool
) -> None:
    """Torn anywhere: within frames, prefixes and messages; also with the greeting in one piece."""
    body = b"".join(prefix(len(answer)) + answer for answer in answers)
    parts = [headers(HEAD)]
    for begin in range(0, len(body), 900):
        parts += [f.frame(f.DATA, 0, 1, body[begin : begin + 900]), f.ping(b"question")]
    came = b"".join(parts)
    core = DuplexConnection(LIMITS)
    core.receive(f.settings({}))
    core.open(HEADERS)
    result: list[bytes] = []
    position, turn = 0, 0
    while position < len(came):
        size = len(came) if at_once else sizes[turn % len(sizes)]
        core.feed(came[position : position + size])
        position, turn = position + size, turn + 1
        result += map(bytes, core.messages)
        core.messages.clear()
    assert result == list(answers)
    assert core.running
    assert core.take().count(f.ping(b"question", ack=True)) == len(parts) // 2
    core.feed(tail())
    assert (core.running, core.status, core.leaving) == (False, 0, True)


def test_half_a_frame_behind_the_greeting_belongs_to_the_call() -> None:
    core = DuplexConnection(LIMITS)
    ping = f.ping(b"question")
    core.receive(f.settings({}) + ping[:11])
    assert core.greeted
    core.open(HEADERS)
    core.feed(ping[11:] + headers(HEAD) + data(b"one"))
    assert [bytes(message) for message in core.messages] == [b"one"]
    assert f.ping(b"question", ack=True) in core.take()


@pytest.mark.parametrize(
    ("came", "status", "words"),
    [
        (headers(HEAD) + tail(7), 7, "why"),
        (tail(14), 14, "why"),
        (headers(HEAD) + f.frame(f.DATA, f.END_STREAM, 1, prefix(2) + b"ab"), Status.UNKNOWN, "without a status"),
        (f.reset(1, ErrorCode.REFUSED_STREAM), Status.UNAVAILABLE, "REFUSED_STREAM"),
        (f.go_away(0, ErrorCode.NO_ERROR), Status.UNAVAILABLE, "GOAWAY"),
        (headers(HEAD) + f.frame(f.DATA, 0, 1, prefix(5_001)), Status.INTERNAL, "5001 bytes"),
        (headers(HEAD) + f.frame(f.DATA, 0, 1, prefix(50) + b"half") + tail(), Status.INTERNAL, "within a message"),
    ],
)
def test_a_call_that_the_server_ends_says_why_and_sends_nothing_more(came: bytes, status: int, words: str) -> None:
    core = begun({f.INITIAL_WINDOW_SIZE: 3})
    core.send(bytes(100))
    core.take()
    core.feed(came)
    assert not core.running
    assert (core.status, core.unsent_bytes, core.leaving) == (status, 0, True)
    assert words in core.details
    core.send(b"more")
    core.feed(f.window_update(1, 1_000))
    assert core.take() == b""


def test_a_server_that_leaves_lets_the_call_go_on() -> None:
    core, server = begun(), Server(65_535)
    core.feed(f.go_away(1, ErrorCode.NO_ERROR))
    core.send(b"still")
    assert (server.take(core.take()), core.running) == ([b"still"], True)


def test_a_call_that_is_given_up_resets_its_stream_once() -> None:
    core, server = begun({f.INITIAL_WINDOW_SIZE: 3}), Server(3)
    core.send(b"12345")
    server.take(core.take() + core.give_up() + core.give_up())
    assert server.resets == [ErrorCode.CANCEL]
    assert core.unsent_bytes == 0


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (data(b"early"), "before HEADERS"),
        (headers(HEAD) + f.frame(f.DATA, 0, 1, bytes(1_001)), "over 1000 bytes"),
        (f.window_update(1, 0), "grows by nothing"),
        (f.frame(f.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), "over 2"),
        (f.frame(f.PUSH_PROMISE, f.END_HEADERS, 1, bytes(8)), "pushes"),
        (f.frame(f.DATA, 0, 3, b"x"), "idle"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_left(came: bytes, words: str) -> None:
    with pytest.raises(ConnectionFault, match=words):
        begun().feed(came)


def test_windows_are_opened_while_answers_come() -> None:
    core, size = begun(), 905
    core.feed(headers(HEAD) + b"".join(data(bytes(900)) for _ in range(40)))
    assert len(core.messages) == 40
    updates = f.window_update(1, 0)[:-4]
    assert core.take().count(updates) >= 40 * size // LIMITS.stream_window_bytes
