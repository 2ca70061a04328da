"""Every bound counts under its own name when it is reached; those that are settings are all tried."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from evenq_proofs.waiting import until_async

from evenq.runtime.clock import SystemClock
from evenq.serving.front_limits import FrontLimits
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.connection import Connection
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.server import Http2Server
from evenq.serving.rpc import CallKind
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode

COUNTED_UNDER = {"flood_per_s": "flood_burst", "resets_per_s": "resets_burst", "keepalive_ms": "keepalive_timeout_ms"}
"""The longer part of a bound that is two settings."""


async def echo(request: bytes, _call: Call) -> bytes:
    return request


async def park(_request: object, _call: Call) -> bytes:
    await asyncio.Event().wait()
    return b""


async def pour(_request: bytes, call: Call) -> None:
    for _ in range(100):
        await call.send(bytes(100_000))


async def ignore(_requests: AsyncIterator[bytes], _call: Call) -> None:
    await asyncio.Event().wait()


METHODS = {
    "/s/Echo": Method(CallKind.UNARY, echo), "/s/Park": Method(CallKind.UNARY, park),
    "/s/Pour": Method(CallKind.SERVER_STREAM, pour), "/s/Ignore": Method(CallKind.BIDI, ignore),
}  # fmt: skip
SHUT = {f.INITIAL_WINDOW_SIZE: 0}


def head(stream_id: int, path: str, *more: tuple[bytes, bytes]) -> bytes:
    block = encode([
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"h"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more,
    ])  # fmt: skip
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, block)


def call(stream_id: int, path: str, size: int = 0, *more: tuple[bytes, bytes]) -> bytes:
    body = f.frame(f.DATA, f.END_STREAM, stream_id, size.to_bytes(5, "big") + bytes(size))
    return head(stream_id, path, *more) + body


def begun(stream_id: int, path: str, size: int) -> bytes:
    """A call whose message of 1 MiB has come as far as `size` bytes."""
    pieces = [f.frame(f.DATA, 0, stream_id, bytes(16_000)) for _ in range(size // 16_000)]
    return head(stream_id, path) + f.frame(f.DATA, 0, stream_id, (1 << 20).to_bytes(5, "big")) + b"".join(pieces)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What reaches a bound."""

    limits: dict[str, int]
    sends: bytes = b""
    hello: bytes = f.PREFACE + f.settings({})
    connections: int = 1


OPEN = f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX}) + f.window_update(0, f.WINDOW_MAX - 65_535)
CLOSED = f.PREFACE + f.settings(SHUT)
PEERS = {
    "connections_max": Peer(limits={"connections_max": 1}, connections=2),
    "connections_per_address_max": Peer(limits={"connections_per_address_max": 1}, connections=2),
    "streams_per_connection_max": Peer(limits={"streams_per_connection_max": 1}, sends=call(1, "/s/Park") + call(3, "/s/Park")),
    "calls_per_address_max": Peer(limits={"calls_per_address_max": 1}, sends=call(1, "/s/Park") + call(3, "/s/Park")),
    "header_list_bytes_max": Peer(limits={"header_list_bytes_max": 400}, sends=call(1, "/s/Echo", 0, (b"x", b"v" * 300))),
    "message_bytes_max": Peer(limits={"message_bytes_max": 10}, sends=call(1, "/s/Echo", 11)),
    "frames_per_turn": Peer(limits={"frames_per_turn": 2}, sends=f.ping(bytes(8)) * 10),
    "stream_window_bytes": Peer(limits={"stream_window_bytes": 70_000}, sends=begun(1, "/s/Ignore", 160_000)),
    "connection_request_bytes_max": Peer(limits={"connection_request_bytes_max": 1_000}, sends=begun(1, "/s/Echo", 16_000)),
    "request_bytes_max": Peer(limits={"request_bytes_max": 1_000}, sends=begun(1, "/s/Echo", 16_000)),
    "stream_unread_bytes": Peer(limits={"stream_unread_bytes": 1_000}, hello=CLOSED, sends=call(1, "/s/Pour")),
    "connection_unread_bytes": Peer(limits={"connection_unread_bytes": 1_000}, hello=CLOSED, sends=call(1, "/s/Pour")),
    "connection_unread_bytes_max": Peer(
        limits={"connection_unread_bytes_max": 1_000}, hello=CLOSED, sends=call(1, "/s/Echo", 2_000)
    ),
    "address_unread_bytes": Peer(limits={"address_unread_bytes": 1_000}, hello=CLOSED, sends=call(1, "/s/Pour")),
    "unread_bytes": Peer(limits={"unread_bytes": 1_000}, hello=CLOSED, sends=call(1, "/s/Pour")),
    "preface_ms": Peer(limits={"preface_ms": 100}, hello=f.PREFACE[:5]),
    "request_ms": Peer(limits={"request_ms": 100}, sends=begun(1, "/s/Echo", 16_000)),
    "idle_ms": Peer(limits={"idle_ms": 100}),
    "keepalive_timeout_ms": Peer(limits={"keepalive_ms": 100, "keepalive_timeout_ms": 100}),
    "write_stall_ms": Peer(limits={"write_stall_ms": 100}, hello=OPEN, sends=call(1, "/s/Pour") + call(3, "/s/Pour")),
    "stall_ms": Peer(limits={"stall_ms": 100}, hello=CLOSED, sends=call(1, "/s/Echo", 100)),
    "pressed_stall_ms": Peer(
        limits={"pressed_stall_ms": 100, "unread_bytes": 1_000}, hello=CLOSED, sends=call(1, "/s/Echo", 20_000)
    ),
    "flood_burst": Peer(limits={"flood_burst": 20}, sends=f.ping(bytes(8)) * 100),
    "resets_burst": Peer(
        limits={"resets_burst": 20},
        sends=b"".join(head(one, "/s/Park") + f.reset(one, ErrorCode.CANCEL) for one in range(1, 101, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("limit", PEERS)
async def test_a_bound_that_is_reached_counts_under_its_name(limit: str) -> None:
    peer = PEERS[limit]
    server = Http2Server(METHODS, clock=SystemClock(), limits=Http2Limits(**peer.limits))
    port = await server.start("127.0.0.1", 0)
    made = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(peer.connections)]
    try:
        for one in made:
            await asyncio.to_thread(one.sendall, peer.hello + peer.sends)
        await until_async(lambda: limit in server.totals.reached, f"{limit} is not in {server.totals.reached}")
    finally:
        for one in made:
            one.close()
        await server.stop(0)


@asynccontextmanager
async def with_unread(limits: dict[str, int], sends: bytes) -> AsyncIterator[Http2Server]:
    """One peer whose windows stay shut."""
    server = Http2Server(METHODS, clock=SystemClock(), limits=Http2Limits(**limits))
    port = await server.start("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
            await asyncio.to_thread(peer.sendall, CLOSED + sends)
            yield server
    finally:
        await server.stop(0)
    assert server.totals.unread_bytes == server.totals.streams == 0


async def test_an_address_that_leaves_its_answers_unread_is_refused_more_of_them() -> None:

    sends = b"".join(call(one, "/s/Echo", 20_000) for one in range(1, 15, 2))
    async with with_unread({"address_unread_bytes": 50000}, sends) as server:
        await until_async(lambda: server.totals.calls_refused, "no call is refused")
        assert server.totals.calls_refused == 2
        assert server.totals.reached == {"address_unread_bytes": 2}
        assert 100_000 <= server.totals.unread_bytes < 101_000


async def test_an_unread_answer_counts_among_the_calls_of_its_address() -> None:
    """Its handler is over, but its stream is not: many small ones would pass every bound that counts bytes."""
    async with with_unread(
        {"calls_per_address_max": 3}, b"".join(call(one, "/s/Echo", 1) for one in (1, 3, 5, 7, 9))
    ) as server:
        await until_async(lambda: server.totals.calls_refused, "no call is refused")
        assert (server.totals.calls_refused, server.totals.streams) == (2, 3)
        assert server.totals.reached == {"calls_per_address_max": 2}


async def test_requests_are_not_read_while_the_answers_of_their_address_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of a bidirectional stream is given one message after the other, and none while its peer does not read
    what it asked for before, on whatever stream.
    """
    read: list[int] = []

    async def answer_each(requests: AsyncIterator[bytes], of: Call) -> None:
        async for _ in requests:
            read.append(of.stream.id)
            await of.send(bytes(20_000))

    message = b"\0\0\0\0\x64" + bytes(100)
    sends = b"".join(head(one, "/s/Each") + f.frame(f.DATA, 0, one, message * 100) for one in (1, 3))
    monkeypatch.setitem(METHODS, "/s/Each", Method(CallKind.BIDI, answer_each))
    async with with_unread({"address_unread_bytes": 50_000}, sends) as server:
        await until_async(lambda: "address_unread_bytes" in server.totals.reached, "nobody waits")
        await SystemClock().sleep_ms(50)
        assert read == [1, 1, 1]
        assert server.totals.request_bytes == 2 * 100 * 105 - 3 * 105
        assert server.totals.unread_bytes == 3 * 20_005


def test_data_beyond_a_connections_window_counts_too() -> None:
    limits = Http2Limits(stream_window_bytes=70_000, connection_window_bytes=70_000)
    made = Connection(limits, Totals(), 0)
    made.receive(f.PREFACE + f.settings({}) + head(1, "/s/Echo") + head(3, "/s/Echo"), 0)
    made.withhold = True
    made.receive(b"".join(f.frame(f.DATA, 0, one, bytes(16_000)) * 3 for one in (1, 3)), 0)
    assert made.totals.reached == {"connection_window_bytes": 1}


def test_a_connection_within_its_bounds_counts_nothing() -> None:
    made = Connection(Http2Limits(), Totals(), 0)
    made.receive(f.PREFACE + f.settings({}) + call(1, "/s/Echo", 1_000) + f.ping(bytes(8)), 0)
    assert made.totals.reached == {}


def test_no_bound_that_is_a_setting_is_left_out() -> None:
    tried = {*PEERS, *COUNTED_UNDER, "connection_window_bytes"}
    assert tried - {"message_bytes_max"} == set(FrontLimits.model_fields)
    assert set(COUNTED_UNDER.values()) <= set(PEERS)
