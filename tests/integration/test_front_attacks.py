"""Attacks on our HTTP/2 server in a process of its own, and a good client beside each, whose calls all succeed.

Real sockets on loopback; the server is gRPC's test service (tests/compat/interop_server.py). Figures go to the log
(`--log-cli-level=INFO`). What each flood is by itself is tried without a network in unit/evenq/serving/http2.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import grpc
import pytest
from evenq_proofs.peer import Peer

from evenq.serving.fields import write_bytes, write_varint
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode

log = logging.getLogger(__name__)

SERVER = Path(__file__).parents[1] / "compat" / "interop_server.py"
EMPTY, STREAM, BOTH = (
    f"/grpc.testing.TestService/{name}" for name in ("EmptyCall", "StreamingOutputCall", "FullDuplexCall")
)
PATIENCE_S = 60
ENOUGH = 100
OPEN, WHOLE = f.END_HEADERS, f.END_HEADERS | f.END_STREAM


def head(path: str, *more: tuple[bytes, bytes]) -> bytes:
    return encode([
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"h"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more,
    ])  # fmt: skip


class Attacker:
    """One raw connection."""

    def __init__(self, port: int, settings: dict[int, int] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.sendall(f.PREFACE + f.settings(settings or {}))
        self.received = b""

    def send(self, data: bytes) -> bool:
        """False: the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def must_be_there(self) -> None:
        """The connection stands: the server answers a ping."""
        self.send(f.ping(b"are-here"))
        received = b""
        while b"are-here" not in received:
            data = self.socket.recv(1 << 16)
            assert data, "the server has closed the connection"
            received = received[-8:] + data

    def end(self) -> ErrorCode | None:
        """What the server's last GOAWAY says, once it has closed the connection or says nothing for as long as the socket waits."""
        try:
            while data := self.socket.recv(1 << 16):
                self.received += data
        except OSError:
            pass
        code, position, received = None, 0, self.received
        while position + 9 <= len(received):
            high, low, kind, _, _ = f.HEADER.unpack_from(received, position)
            if kind == f.GOAWAY:
                code = ErrorCode(struct.unpack_from(">I", received, position + 13)[0])
            position += 9 + (high << 8 | low)
        return code

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Good:
    """A client that calls on and on in its own thread, on its own connection."""

    def __init__(self, port: int) -> None:
        self.times_ms: list[float] = []
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
                call = channel.unary_unary(EMPTY)
                while not self._over.is_set():
                    begun = time.perf_counter()
                    assert call(b"", timeout=60) == b""
                    self.times_ms.append((time.perf_counter() - begun) * 1000)
        except BaseException as error:  # noqa: BLE001  raised by the test
            self.error = error

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        self._thread.start()
        try:
            yield
            while len(self.times_ms) < ENOUGH and self._thread.is_alive():
                threading.Event().wait(0.01)
        finally:
            self._over.set()
            self._thread.join()
        assert self.error is None
        times = sorted(self.times_ms)
        assert len(times) >= ENOUGH
        log.info("%s: %s calls beside it, p50 %.1f ms, p99 %.1f ms, longest %.0f ms", what, len(times),
                 times[len(times) // 2], times[len(times) * 99 // 100], times[-1])  # fmt: skip
        assert times[len(times) * 95 // 100] < 20_000


@contextmanager
def served(tmp_path: Path, **limits: int) -> Iterator[tuple[int, Peer]]:
    words = [f"{name}={value}" for name, value in limits.items()]
    server = Peer([sys.executable, str(SERVER), *words], log_path=tmp_path / "server.log")
    try:
        server.wait(bool)
        yield int(server.said[0]["port"]), server
        assert server.process.poll() is None
    finally:
        server.end()
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def resident(server: Peer) -> int:
    """Bytes of memory that the server has."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def ids(first: int, count: int) -> range:
    return range(first, first + 2 * count, 2)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": lambda turn: b"".join(
        f.frame(f.HEADERS, OPEN, one, head(EMPTY)) + f.reset(one, ErrorCode.CANCEL) for one in ids(200 * turn + 1, 100)
    ),
    "settings": lambda _: f.settings({f.INITIAL_WINDOW_SIZE: 70_000}) * 20,
    "ping": lambda _: f.ping(bytes(8)) * 200,
    "empty data": lambda turn: (f.frame(f.HEADERS, OPEN, 1, head(EMPTY)) if not turn else b"") + f.frame(f.DATA, 0, 1) * 100,
    "continuation": lambda turn: (f.frame(f.HEADERS, 0, 1, b"") if not turn else b"") + f.frame(f.CONTINUATION, 0, 1) * 10,
    "window updates": lambda _: f.window_update(0, 1) * 200,
    "priority": lambda turn: f.frame(f.PRIORITY_FRAME, 0, 2 * turn + 1, bytes(5)) * 200,
    "header bomb": lambda turn: f.frame(
        f.HEADERS, WHOLE, 2 * turn + 1, b"\x40\x01n\x7f\x81\x1e" + b"v" * 3_968 + b"\xbe" * 5_000
    ),
    "many fields": lambda turn: f.frame(f.HEADERS, WHOLE, 2 * turn + 1, head(EMPTY) + b"\x82" * 300),
    "one long block": lambda turn: f.frame(f.HEADERS if not turn else f.CONTINUATION, 0, 1, bytes(16_000)),
    "malformed requests": lambda turn: b"".join(
        f.frame(f.HEADERS, WHOLE, one, b"\x83") for one in ids(200 * turn + 1, 100)
    ),
}  # fmt: skip


QUICKLY = ("rapid reset", "header bomb")
"""Of these floods each run hears; the HTTP/2 core is given all of them by its unit tests, too."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICKLY else pytest.mark.slow) for kind in FLOODS]
)
def test_a_flood_is_ended_and_a_good_client_is_served(tmp_path: Path, kind: str) -> None:
    with served(tmp_path) as (port, server), Good(port).calling(kind):
        before = resident(server)
        for _ in range(3):
            with Attacker(port) as attacker:
                deadline, turn = time.monotonic() + 60, 0
                while attacker.send(FLOODS[kind](turn)):
                    assert time.monotonic() < deadline, "the server takes it for ever"
                    turn += 1
                assert attacker.end() in {ErrorCode.ENHANCE_YOUR_CALM, None}  # None: it sent on after the last look
        assert resident(server) - before < 64 << 20


def test_a_flood_is_told_why(tmp_path: Path) -> None:
    with served(tmp_path) as (port, _), Attacker(port) as attacker:
        attacker.socket.settimeout(1)
        code, deadline = None, time.monotonic() + PATIENCE_S
        while code is None and time.monotonic() < deadline:  # many in a while: a slow server forgets the first of them
            attacker.send(f.ping(bytes(8)) * 1_002)
            code = attacker.end()
        assert code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.slow  # a crowd
def test_twelve_thousand_idle_streams_cost_little_and_one_more_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port, server = stack.enter_context(served(tmp_path, calls_per_address_max=20_000))
        before = resident(server)
        stack.enter_context(Good(port).calling("12,288 idle streams"))
        attackers = [stack.enter_context(Attacker(port)) for _ in range(3)]
        for attacker in attackers:
            block = head(BOTH)
            attacker.send(b"".join(f.frame(f.HEADERS, OPEN, one, block) for one in ids(1, 4_096)))
            attacker.send(f.frame(f.HEADERS, OPEN, 8_193, block) + f.ping(b"all-came"))
            received = b""
            while b"all-came" not in received:
                received += attacker.socket.recv(1 << 16)
            assert f.reset(8_193, ErrorCode.REFUSED_STREAM) in received
        each = (resident(server) - before) / (3 * 4_096)
        log.info("%.0f bytes a stream", each)
        assert each < 3_500


def test_answers_that_one_address_does_not_read_are_bounded_and_its_good_client_is_served(tmp_path: Path) -> None:
    """960 streams, each of which asks for 500 answers of 30 KB, one after the other, and reads none."""
    request = write_bytes(2, write_varint(1, 30_000))
    requests = (b"\0" + len(request).to_bytes(4, "big") + request) * 500
    piece = b"".join(f.frame(f.HEADERS, OPEN, one, head(BOTH)) + f.frame(f.DATA, 0, one, requests) for one in ids(1, 8))
    with ExitStack() as stack:
        port, server = stack.enter_context(served(tmp_path, address_unread_bytes=4 << 20))
        before = resident(server)
        stack.enter_context(Good(port).calling("120 slow readers of one address"))
        for _ in range(120):
            attacker = stack.enter_context(Attacker(port))
            attacker.send(piece + f.ping(b"all-came"))
            received = b""
            while b"all-came" not in received:
                received = received[-16:] + attacker.socket.recv(1 << 16)
        grown = resident(server) - before
        log.info("%.0f MB for 120 slow readers with 8 streams each", grown / 1e6)
        assert grown < 48 << 20  # with 256 KiB for each stream alone it would be 240, and the requests beside it


@pytest.mark.slow  # a crowd
def test_240_slow_readers_cannot_fill_the_memory(tmp_path: Path) -> None:
    """Each asks for 100 MB and reads nothing: half of them leave their windows shut, half their sockets full."""
    request = write_bytes(2, write_varint(1, 100_000)) * 1_000
    message = b"\0" + len(request).to_bytes(4, "big") + request
    bounds = {"address_unread_bytes": 32 << 20, "pressed_stall_ms": 2_000, "write_stall_ms": 3_000}
    with ExitStack() as stack:
        port, server = stack.enter_context(served(tmp_path, **bounds))
        before = resident(server)
        stack.enter_context(Good(port).calling("240 slow readers"))
        attackers = []
        for number in range(240):
            attacker = stack.enter_context(Attacker(port, {} if number % 2 else {f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX}))
            start = b"" if number % 2 else f.window_update(0, f.WINDOW_MAX - 65_535)
            body = f.frame(f.DATA, f.END_STREAM, 1, message)
            attacker.send(start + f.frame(f.HEADERS, OPEN, 1, head(STREAM)) + body)
            attackers.append(attacker)
        deadline, most = time.monotonic() + 12, 0
        while time.monotonic() < deadline:  # longer than any bound of theirs
            most = max(most, resident(server) - before)
            threading.Event().wait(0.2)
        log.info("%.0f MB for 240 slow readers", most / 1e6)
        assert most < 160 << 20
        for attacker in attackers:
            attacker.socket.settimeout(10)
            attacker.end()  # raises nothing and waits for nothing: every one of them was ended


@pytest.mark.slow
def test_what_is_never_complete_is_ended(tmp_path: Path) -> None:
    bounds = {"preface_ms": 1_000, "request_ms": 1_000, "keepalive_ms": 1_000, "keepalive_timeout_ms": 1_000}
    with served(tmp_path, **bounds) as (port, _), Good(port).calling("what is never complete"):
        silent = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        halfway = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        halfway.sendall(f.PREFACE[:10])
        for one in (silent, halfway):
            while one.recv(1 << 16):
                pass
            one.close()
        with Attacker(port) as slow:
            slow.send(f.frame(f.HEADERS, OPEN, 1, head(EMPTY)) + f.frame(f.DATA, 0, 1, b"\0\0\0\0\x05a"))
            received = b""
            while b"not complete" not in received:
                data = slow.socket.recv(1 << 16)
                assert data, "the connection of a late request is closed without a word"
                received += data
            assert slow.end() is None  # it never answers a ping, so it is taken for dead


@pytest.mark.slow  # a crowd
def test_300_connections_that_send_all_they_may_leave_a_good_client_its_turns(tmp_path: Path) -> None:
    """No bound of theirs is passed: 500 calls each, in one piece, of which a turn of the loop begins a few."""
    block = head(EMPTY)
    calls = b"".join(
        f.frame(f.HEADERS, OPEN, one, block) + f.frame(f.DATA, f.END_STREAM, one, bytes(5)) for one in ids(1, 500)
    )
    last = f.ping(b"all-done")
    with ExitStack() as stack:
        port, _ = stack.enter_context(served(tmp_path))
        attackers = [stack.enter_context(Attacker(port)) for _ in range(300)]
        with Good(port).calling("300 connections with 500 calls each"):
            for attacker in attackers:
                assert attacker.send(calls + last)
            for attacker in attackers:  # each is served to its end
                received = b""
                while b"all-done" not in received:
                    data = attacker.socket.recv(1 << 16)
                    assert data, "a client within its bounds is ended"
                    received = received[-16:] + data


def test_one_address_has_no_more_than_its_share(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port, _ = stack.enter_context(served(tmp_path, connections_per_address_max=5, calls_per_address_max=3))
        attackers = [stack.enter_context(Attacker(port)) for _ in range(5)]
        streams = [f.frame(f.HEADERS, OPEN, one, head(BOTH)) for one in ids(1, 4)]
        received = b""
        attackers[0].send(b"".join(streams[:3]) + f.ping(b"are-open"))
        while b"are-open" not in received:
            received += attackers[0].socket.recv(1 << 16)
        attackers[0].send(streams[3])
        while b"made room for other calls of this address" not in received:  # none of them has shown credentials
            received += attackers[0].socket.recv(1 << 16)
        for attacker in attackers[1:]:
            attacker.must_be_there()
        with Attacker(port) as one_more:
            one_more.must_be_there()
            assert attackers[1].end() is ErrorCode.NO_ERROR, "of those without a call, the longest idle one makes room"
            for attacker in (attackers[0], *attackers[2:]):
                attacker.must_be_there()


def test_a_connection_with_a_call_makes_room_for_none(tmp_path: Path) -> None:
    message = f.frame(f.DATA, 0, 1, bytes(5))
    with ExitStack() as stack:
        port, _ = stack.enter_context(served(tmp_path, connections_per_address_max=3))
        attackers = [stack.enter_context(Attacker(port)) for _ in range(3)]
        for attacker in attackers:
            attacker.send(f.frame(f.HEADERS, OPEN, 1, head(BOTH)) + message)
            attacker.must_be_there()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as one_more:
            assert not one_more.recv(100)  # closed at once
        for attacker in attackers:
            attacker.must_be_there()
