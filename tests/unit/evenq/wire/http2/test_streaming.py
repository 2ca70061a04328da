"""A stream of messages from a server: in any frames, in any pieces, put where it was asked for or fed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.serving.http2.messages import prefix
from evenq.wire.http2 import frames as f
from evenq.wire.http2 import streaming
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, Status
from evenq.wire.http2.hpack import encode
from evenq.wire.http2.streaming import StreamConnection
from evenq.wire.http2.unary import CallLimits

HEADERS = request_headers("/s/M", scheme="http", authority="a:1", timeout_ms=3_000, metadata=[])
HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
LIMITS = CallLimits(
    stream_window_bytes=8_000, connection_window_bytes=16_000, frame_bytes_max=1_000, answer_bytes_max=5_000
)


def tail(code: int = 0) -> bytes:
    return encode([(b"grpc-status", b"%d" % code), (b"grpc-message", b"why")])


def headers(block: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS | flags, stream, block)


def answer(messages: Iterable[bytes], cut: int, *, padded: bool = False, stream: int = 1, code: int = 0) -> bytes:
    """All messages in DATA frames of `cut` bytes."""
    body = b"".join(prefix(len(message)) + message for message in messages)
    found = [headers(HEAD, stream=stream)]
    for begin in range(0, len(body), cut):
        piece = body[begin : begin + cut]
        found.append(
            f.frame(f.DATA, f.PADDED, stream, b"\x03" + piece + bytes(3)) if padded
            else f.frame(f.DATA, 0, stream, piece)
        )  # fmt: skip
        if begin % 3 == 0:
            found.append(f.ping(b"question"))
    return b"".join([*found, headers(tail(code), stream=stream, flags=f.END_STREAM)])


def begun(limits: CallLimits = LIMITS) -> StreamConnection:
    made = StreamConnection(limits)
    made.take()
    made.receive(f.settings({}))
    made.take()
    assert made.begin(HEADERS, b"ask")
    return made


def put(core: StreamConnection, data: bytes, sizes: Iterable[int] = (), *, looks: bool = True) -> list[bytes]:
    """Put bytes where the core wants them, some at a time; the messages. `looks`: a reader keeps them all in sight."""
    steps, found, kept, position = iter(sizes), [], [], 0
    while position < len(data) and core.running:
        rooms = core.room()
        size = min(sum(map(len, rooms)), len(data) - position, max(1, next(steps, 1 << 20)))
        end = position + size
        for room in rooms:
            piece = data[position : min(end, position + len(room))]
            room[: len(piece)] = piece
            position += len(piece)
        core.received(size)
        while core.messages:
            kept.append(core.messages.popleft())
            found.append(bytes(kept[-1]))
            if not looks:
                kept.clear()
    assert not looks or [bytes(one) for one in kept] == found
    return found


MESSAGES = st.lists(st.binary(max_size=300) | st.integers(500, 4_000).map(bytes), max_size=8)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.integers(1, 900), st.lists(st.integers(1, 700)), st.booleans(), st.booleans(), st.booleans())
def test_messages_arrive_whole_whatever_frames_and_pieces_they_come_in(
    messages: list[bytes], cut: int, sizes: list[int], padded: bool, looks: bool, feeds: bool
) -> None:
    core, data = begun(), answer(messages, cut, padded=padded)
    if feeds:
        result: list[bytes] = []
        for begin in range(0, len(data), size := (sizes or [1 << 20])[0]):
            core.feed(data[begin : begin + size])
            result += map(bytes, core.messages)
            core.messages.clear()
    else:
        result = put(core, data, sizes, looks=looks)
    assert result == messages
    assert not core.running
    assert (core.status, core.leaving) == (0, False)


def test_windows_are_opened_while_messages_come_and_a_server_that_passes_them_is_left() -> None:
    core = begun()
    put(core, answer([bytes(4_000)] * 10, 1_000))
    updates = core.take()
    assert updates.count(f.window_update(1, 4_000)) == 10
    assert f.ping(b"question", ack=True) in updates
    core = begun()
    core._stream_receive_left = 100
    with pytest.raises(ConnectionFault, match="stream's window"):
        put(core, answer([bytes(400)], 200))


def test_a_connection_serves_one_stream_after_another_also_if_half_a_frame_came_between() -> None:
    core = begun()
    assert put(core, answer([b"one"], 100)) == [b"one"]
    between = f.ping(b"question")
    core.receive(between[:5])
    core.begin(HEADERS, b"ask")
    assert put(core, between[5:] + answer([b"two"], 100, stream=3)) == [b"two"]
    assert f.ping(b"question", ack=True) in core.take()
    assert not core.leaving


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (headers(HEAD) + f.frame(f.DATA, 0, 1, b"\x01\0\0\0\x01x"), Status.INTERNAL, "compression"),
        (headers(HEAD) + f.frame(f.DATA, 0, 1, prefix(5_001)), Status.INTERNAL, "5001 bytes, more than the 5000"),
        (headers(HEAD) + f.frame(f.DATA, 0, 1, prefix(9) + b"x") + headers(tail(), flags=f.END_STREAM),
         Status.INTERNAL, "within a message"),
        (headers(HEAD) + f.frame(f.DATA, f.END_STREAM, 1, prefix(1) + b"x"), Status.UNKNOWN, "without a status"),
        (answer([b"one"], 9, code=14), Status.UNAVAILABLE, "why"),
        (headers(HEAD) + f.reset(1, ErrorCode.CANCEL), Status.CANCELLED, "CANCEL"),
    ],
)  # fmt: skip
def test_an_answer_that_ends_badly_says_how(data: bytes, status: Status, words: str) -> None:
    core = begun()
    put(core, data)
    assert not core.running
    assert core.status == status
    assert words in core.details


def test_a_frame_that_is_too_long_ends_the_connection_before_it_is_read() -> None:
    core = begun()
    with pytest.raises(ConnectionFault, match="over 1000 bytes"):
        put(core, headers(HEAD) + f.frame(f.DATA, 0, 1, bytes(1_001)))


def test_memory_serves_again_once_nobody_looks_at_it_and_never_before() -> None:
    core = begun()
    data = answer([bytes([number]) * 2_000 for number in range(6)], 1_000)
    assert len(put(core, data, looks=False)) == 6
    assert len(core._rooms) == 1
    core = begun()
    assert len(put(core, data, looks=True)) == 6
    assert len(core._rooms) == streaming.ROOMS_MAX
