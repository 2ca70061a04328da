"""Resets of streams whose answers were sent: raw frames, bounds, and a server on a socket."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable

import pytest
from evenq_proofs.rpcs import fake_rpc

from evenq.runtime.clock import SystemClock
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.http2 import sent_answers
from evenq.serving.http2.connection import Connection
from evenq.serving.http2.events import AnswerRefused, StreamReset
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.messages import OK_HEAD, OK_TAIL
from evenq.serving.http2.sent_answers import SentAnswers
from evenq.serving.rpc import Access, Action, CallKind, Frames, Resource, RpcContext
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
HELLO = f.PREFACE + f.settings({})
REQUEST = encode([
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", RECEIVE.encode()), (b":authority", b"h"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"),
])  # fmt: skip
LIMITS = Http2Limits(keepalive_ms=1_000, keepalive_timeout_ms=500)


def call(stream_id: int) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, REQUEST) + f.frame(f.DATA, f.END_STREAM, stream_id, bytes(5))


class Peer:
    """A connection, and who was told."""

    def __init__(self, totals: Totals | None = None, hello: bytes = HELLO) -> None:
        self.told: list[int] = []
        self.totals = totals or Totals(connections=1)
        self.core = Connection(LIMITS, self.totals, 0)
        self.core.receive(hello, 0)

    def answer(
        self, stream_id: int, now_ms: int = 0, *, asks: bool = True, size: int = 5, deadline_ms: int | None = None
    ) -> None:
        """One call, answered in full."""
        self.core.receive(call(stream_id), now_ms)
        stream = self.core.streams[stream_id]
        self.core.send_headers(stream, OK_HEAD)
        self.core.send_data(stream, bytes(size))
        if asks:
            self.core.tell_if_untaken(stream, functools.partial(self.told.append, stream_id), deadline_ms)
        self.core.send_end(stream, OK_TAIL)
        self.core.take(1 << 20)

    def reset(self, stream_id: int, now_ms: int = 0, code: ErrorCode = ErrorCode.CANCEL) -> int:
        """What comes of it; how many events there were."""
        events = self.core.receive(f.reset(stream_id, code), now_ms)
        for event in events:
            if isinstance(event, AnswerRefused):
                event.untaken()
        return len(events)

    def pong(self, now_ms: int) -> None:
        """The PING behind the answers is answered."""
        self.core.receive(f.ping(sent_answers.PROBE, ack=True), now_ms)

    def pinged(self, now_ms: int) -> bool:
        """Does a PING leave at a look at this time?"""
        self.core.look(now_ms)
        return sent_answers.PROBE in self.core.take(1 << 20)


def test_a_reset_behind_a_whole_answer_is_told_once_to_who_asked() -> None:
    peer = Peer()
    peer.answer(1)
    peer.answer(3, asks=False)
    peer.answer(5)
    assert not peer.core.streams
    assert [peer.reset(stream_id) for stream_id in (1, 1, 3, 5)] == [1, 0, 0, 1]
    assert peer.told == [1, 5]
    assert (peer.totals.untaken, peer.totals.sent_answers) == (2, 0)


def test_a_connection_that_never_asked_keeps_nothing() -> None:
    peer = Peer()
    peer.answer(1, asks=False)
    assert peer.core.sent_answers is None
    peer.core.look(10_000)


def test_a_reset_without_an_error_says_nothing() -> None:
    """As Node.js's gRPC may send it for a call that ended well."""
    peer = Peer()
    peer.answer(1)
    assert peer.reset(1, code=ErrorCode.NO_ERROR) == 0
    assert peer.told == []


def test_an_answer_that_still_waits_for_the_peers_window_is_told_of_too() -> None:
    """Its handler is over, so nothing else would end it."""
    peer = Peer()
    peer.answer(1, size=100_000)
    assert peer.core.streams[1].queued_bytes
    [refused, reset] = peer.core.receive(f.reset(1, ErrorCode.CANCEL), 0)
    assert isinstance(refused, AnswerRefused)
    assert isinstance(reset, StreamReset)
    refused.untaken()
    assert peer.told == [1]


def test_an_answer_that_we_throw_away_is_told_of() -> None:
    peer = Peer()
    peer.answer(1, size=100_000)
    peer.core.reset(peer.core.streams[1], ErrorCode.ENHANCE_YOUR_CALM)
    assert peer.told == [1]
    assert peer.reset(1) == 0


def test_nothing_is_told_when_the_connection_ends() -> None:
    peer = Peer()
    peer.answer(1)
    peer.answer(3, size=100_000)
    peer.core.release()
    assert peer.told == []
    assert peer.totals.sent_answers == 0
    peer.core.release()
    assert peer.totals.sent_answers == 0


def test_an_answer_is_known_for_longer_than_a_silent_connection_lives() -> None:
    peer = Peer()
    peer.answer(1)
    peer.answer(3, now_ms=1)
    assert peer.core.sent_answers is not None
    assert peer.core.sent_answers.keep_ms == 3_000
    peer.core.look(2_999)
    assert len(peer.core.sent_answers) == 2
    peer.core.look(3_000)
    assert [peer.reset(1, 3_000), peer.reset(3, 3_000)] == [0, 1]
    assert peer.told == [3]


def test_the_newest_answers_of_a_connection_are_known() -> None:
    peer = Peer()
    for number in range(sent_answers.CONNECTION_MAX + 2):
        peer.answer(2 * number + 1)
    assert peer.totals.sent_answers == sent_answers.CONNECTION_MAX
    assert [peer.reset(1), peer.reset(3), peer.reset(5)] == [0, 0, 1]


def test_many_connections_have_a_share_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_answers, "ALL_MAX", 20)
    totals = Totals(connections=4)
    kept = [SentAnswers(LIMITS, totals, 0) for _ in range(4)]
    for number in range(50):
        for one in kept:
            one.add(2 * number + 1, lambda: None, 0, None)
    assert totals.sent_answers == sum(map(len, kept)) <= 20 + 4
    assert all(len(one) >= 5 for one in kept)
    totals.connections = 1_000
    for one in kept:
        one.add(1_001, lambda: None, 0, None)
        assert one.reset(1_001, ErrorCode.CANCEL) is not None
    for one in kept:
        one.clear()
    assert totals.sent_answers == 0


def test_a_ping_that_is_answered_soon_says_that_all_before_it_was_read() -> None:
    peer = Peer()
    assert not peer.pinged(100)
    peer.answer(1, now_ms=1_000, deadline_ms=1_100)
    assert peer.pinged(1_100)
    peer.answer(3, now_ms=1_200, deadline_ms=9_000)
    assert not peer.pinged(1_300), "one at a time"
    peer.pong(1_900)
    assert (peer.told, peer.totals.sent_answers) == ([], 1)
    assert peer.pinged(2_000)
    peer.pong(2_001)
    assert (peer.told, peer.totals.sent_answers) == ([], 0)
    assert not peer.pinged(3_500)
    assert peer.told == []
    assert [peer.reset(1), peer.reset(3)] == [0, 0]


def test_what_was_read_only_after_its_deadline_was_not_taken() -> None:
    """Go's client reads such an answer to its end, drops it and resets nothing."""
    peer = Peer()
    peer.answer(1, now_ms=1_000, deadline_ms=2_000)
    peer.answer(3, now_ms=1_000, deadline_ms=70_000)
    peer.answer(5, now_ms=1_000)
    assert peer.pinged(1_100)
    peer.answer(7, now_ms=1_500, deadline_ms=2_500)  # behind the PING: read later still
    peer.answer(9, now_ms=1_500, deadline_ms=70_000)
    for now_ms in range(1_600, 3_000, 500):
        assert not peer.pinged(now_ms)
    peer.pong(3_000)
    peer.core.look(3_500)
    assert peer.told == [], "it may have taken them after all, and say so"
    peer.core.look(4_000)
    assert peer.told == [1, 7]
    assert peer.totals.untaken == 2


def test_a_connection_that_ends_meanwhile_is_left_to_its_clients_lease() -> None:
    peer = Peer()
    peer.answer(1, now_ms=1_000, deadline_ms=2_000)
    assert peer.pinged(1_100)
    peer.pong(2_500)
    peer.core.release()
    peer.core.look(9_000)
    assert peer.told == []


def test_a_server_that_stood_still_itself_takes_nobody_for_late() -> None:
    for look_first in (True, False):
        peer = Peer()
        peer.answer(1, now_ms=1_000, deadline_ms=4_000)
        assert peer.pinged(1_100)
        if look_first:
            peer.core.look(60_000)
        peer.pong(60_001)
        peer.core.look(62_000)
        assert peer.told == []


def test_a_ping_says_nothing_of_an_answer_that_waits_for_a_window() -> None:
    peer = Peer()
    peer.answer(1, now_ms=1_000, size=100_000, deadline_ms=9_000)
    assert not peer.pinged(1_100)
    assert peer.reset(1, 1_200) == 2
    assert peer.told == [1]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_handler_is_told_over_a_socket(asks: bool) -> None:
    told: list[str] = []

    async def handler(_: bytes, context: RpcContext) -> AsyncIterator[Frames]:
        yield [b"\x0a\x00", b"\x12\x00"]
        if asks:
            context.untaken = lambda: told.append(context.method)

    async with asyncio.timeout(30):
        access = Access(resource=Resource.NONE, action=Action.CONSUME)
        rpc = fake_rpc(RECEIVE, handler, service_pb2.ReceiveMessageResponse, kind=CallKind.SERVER_STREAM, access=access)
        server = Http2GrpcServer([rpc], clock=SystemClock(), options=GrpcServerOptions())
        await server.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HELLO + call(1) + call(3) + call(5))
            read = await _until(reader, lambda data: data.count(b"grpc-status") == 3)
            assert read
            writer.write(f.reset(1, ErrorCode.CANCEL) + f.reset(3, ErrorCode.NO_ERROR) + f.ping(b"12345678"))
            await _until(reader, lambda data: b"12345678" in data)
            assert told == ([RECEIVE] if asks else [])
            assert (server.totals.untaken, server.totals.sent_answers) == ((1, 2) if asks else (0, 0))
            writer.close()
            while server.totals.connections:
                await SystemClock().sleep_ms(5)
            assert len(told) == asks
            assert server.totals.sent_answers == 0
        finally:
            await server.stop(0)


async def _until(reader: asyncio.StreamReader, complete: Callable[[bytes], bool]) -> bytes:
    data = b""
    while not complete(data):
        piece = await reader.read(1 << 16)
        assert piece, "the server ended the connection"
        data += piece
    return data
