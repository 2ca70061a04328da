"""Blocking calls against a scripted peer on a real socket: what a server may do at each moment, and what callers see."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from evenq_proofs.forward import silent_port

from evenq import errors
from evenq.serving.http2.messages import prefix
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode
from evenq.wire.net import GrpcNet

METHOD = "/evenq.v1.Data/Publish"
HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
TAIL = encode([(b"grpc-status", b"0")])
WAIT_S = 60


def answer(body: bytes, stream: int) -> bytes:
    return (
        f.frame(f.HEADERS, f.END_HEADERS, stream, HEAD)
        + f.frame(f.DATA, 0, stream, prefix(len(body)) + body)
        + f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, TAIL)
    )


class Link:
    """The peer's end of one connection."""

    def __init__(self, accepted: socket.socket, number: int) -> None:
        self.socket = accepted
        self.number = number
        accepted.settimeout(WAIT_S)
        self._data = b""

    def take(self, size: int) -> bytes:
        while len(self._data) < size:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError
            self._data += data
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def frame(self) -> tuple[int, int, int, bytes]:
        high, low, kind, flags, stream = f.HEADER.unpack(self.take(9))
        return kind, flags, stream, self.take(high << 8 | low)

    def greet(self) -> None:
        self.socket.sendall(f.settings({}))
        assert self.take(len(f.PREFACE)) == f.PREFACE

    def request(self) -> int:
        """Read to the end of a request; its stream."""
        while True:
            kind, flags, stream, _ = self.frame()
            if kind == f.DATA and flags & f.END_STREAM:
                return stream

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until_closed(self) -> bytes:
        said = b""
        try:
            while data := self.socket.recv(65_536):
                said += data
        except ConnectionError:
            pass
        return said


Script = Callable[[Link], None]


class Peer:
    """Plays the script on each connection, in a thread of its own."""

    def __init__(self, script: Script) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._script = script
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.links: list[Link] = []
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            link = Link(accepted, len(self.links))
            self.links.append(link)
            thread = threading.Thread(target=self._play, args=(link,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _play(self, link: Link) -> None:
        try:
            self._script(link)
        except (ConnectionError, TimeoutError):
            pass
        except BaseException as error:  # noqa: BLE001  the test shows it
            self.failures.append(error)
        finally:
            link.socket.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for link in self.links:
            try:
                link.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(WAIT_S)
        assert self.failures == []


@pytest.fixture
def play() -> Iterator[Callable[[Script], Peer]]:
    peers: list[Peer] = []

    def start(script: Script) -> Peer:
        peers.append(Peer(script))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def net() -> Iterator[BlockingNet]:
    made = GrpcNet().blocking()
    assert isinstance(made, BlockingNet)
    yield made
    made.close()


def call(net: BlockingNet, peer: Peer, request: bytes = b"ask", *, timeout_ms: int = 5_000) -> bytes:
    return net.unary(peer.address, METHOD, request, timeout_ms=timeout_ms, metadata=(("a", "b"),))


def serve(link: Link) -> None:
    """A good server."""
    link.greet()
    while True:
        link.say(answer(b"%d" % link.number, link.request()))


def test_calls_one_after_the_other_share_a_connection_and_a_byte_at_a_time_is_enough(
    net: BlockingNet, play: Callable[[Script], Peer]
) -> None:
    def script(link: Link) -> None:
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.greet()
        while True:
            for byte in f.ping(b"12345678") + answer(b"hello", link.request()):
                link.say(bytes((byte,)))

    peer = play(script)
    for _ in range(5):
        assert call(net, peer) == b"hello"
    assert len(peer.links) == 1


@pytest.mark.parametrize("goodbye", ["closed", "half closed", "reset", "goaway", "ping and goaway", "garbage"])
def test_a_connection_that_the_server_left_costs_the_next_call_nothing(
    net: BlockingNet, play: Callable[[Script], Peer], goodbye: str
) -> None:
    left = threading.Event()

    def script(link: Link) -> None:
        link.greet()
        link.say(answer(b"%d" % link.number, link.request()))
        if link.number:
            link.request()
            return
        if goodbye == "half closed":
            link.socket.shutdown(socket.SHUT_WR)
        elif goodbye == "reset":
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.socket.close()
        elif goodbye == "closed":
            link.socket.close()
        elif goodbye == "garbage":
            link.say(b"\xff" * 20)
        else:
            link.say((f.ping(b"12345678") if "ping" in goodbye else b"") + f.go_away(1, ErrorCode.NO_ERROR))
        left.set()
        if goodbye in {"half closed", "goaway", "garbage"}:
            assert b"ask" not in link.until_closed()

    peer = play(script)
    assert call(net, peer) == b"0"
    assert left.wait(WAIT_S)
    idle = net._pools[peer.address].idle
    assert not idle or idle[0]._poll.poll(WAIT_S * 1_000), "it is here, or was seen with the answer"
    assert call(net, peer) == b"1"
    assert len(peer.links) == 2


def test_what_a_server_refused_is_called_once_more_and_not_for_ever(
    net: BlockingNet, play: Callable[[Script], Peer]
) -> None:
    asked: list[int] = []

    def script(link: Link) -> None:
        link.greet()
        while True:
            stream = link.request()
            asked.append(link.number)
            if peer is stubborn or link.number == 0:
                link.say(f.go_away(0, ErrorCode.NO_ERROR) if link.number % 2 == 0 else f.reset(stream, ErrorCode(7)))
            else:
                link.say(answer(b"%d" % link.number, stream))

    stubborn: Peer | None = None
    peer = play(script)
    assert call(net, peer) == b"1"
    assert asked == [0, 1]
    asked.clear()
    peer = stubborn = play(script)
    with pytest.raises(errors.ConnectionFailed, match="RST_STREAM with REFUSED_STREAM"):
        call(net, peer)
    assert asked == [0, 1]


@pytest.mark.parametrize("part", [0, 3, 30, 60])
def test_a_connection_lost_in_the_middle_is_an_error_and_the_call_is_not_repeated(
    net: BlockingNet, play: Callable[[Script], Peer], part: int
) -> None:
    def script(link: Link) -> None:
        link.greet()
        link.say(answer(b"hello", link.request())[:part])

    peer = play(script)
    with pytest.raises(errors.ConnectionFailed, match="Publish") as failed:
        call(net, peer)
    assert not isinstance(failed.value, errors.TlsFailed)
    assert len(peer.links) == 1


@pytest.mark.parametrize("manner", ["silent", "trickling", "not reading"])
def test_a_slow_server_is_left_at_the_deadline_and_told(
    net: BlockingNet, play: Callable[[Script], Peer], manner: str
) -> None:
    events: list[bytes] = []

    def script(link: Link) -> None:
        link.greet()
        if link.number:
            link.say(answer(b"fine", link.request()))
            link.until_closed()
            return
        if manner == "not reading":
            link.say(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 30}) + f.window_update(0, 1 << 30))
            over.wait(WAIT_S)
            return
        stream = link.request()
        if manner == "trickling":
            try:
                while not over.wait(0.02):
                    link.say(f.ping(b"12345678"))
            except ConnectionError:
                return
        events.append(link.until_closed())
        assert events[0].endswith(f.reset(stream, ErrorCode.CANCEL))

    over = threading.Event()
    peer = play(script)
    if manner == "not reading":  # so that the windows are known
        time.sleep(0.1)
    started = time.monotonic()
    with pytest.raises(errors.RequestTimeout, match="did not answer Publish within 300 ms; it may or may not"):
        call(net, peer, bytes(30 << 20) if manner == "not reading" else b"ask", timeout_ms=300)
    assert 0.25 < time.monotonic() - started < WAIT_S / 2, "long before the server would end it"
    over.set()
    assert call(net, peer) == b"fine"


def test_a_request_larger_than_the_windows_waits_for_them(net: BlockingNet, play: Callable[[Script], Peer]) -> None:
    got: list[int] = []

    def script(link: Link) -> None:
        link.greet()
        while True:
            kind, flags, stream, payload = link.frame()
            if kind != f.DATA:
                continue
            got.append(len(payload))
            if flags & f.END_STREAM:
                link.say(answer(b"all", stream))
            elif sum(got) % 65_535 == 0:
                link.say(f.window_update(0, 65_535) + f.window_update(stream, 65_535))

    assert call(net, play(script), bytes(300_000)) == b"all"
    assert sum(got) == 300_005


@pytest.mark.parametrize("closes", [False, True])
def test_an_answer_that_comes_before_the_request_is_written_is_taken(
    net: BlockingNet, play: Callable[[Script], Peer], closes: bool
) -> None:
    def script(link: Link) -> None:
        link.greet()
        while (frame := link.frame())[0] != f.HEADERS:
            pass
        refusal = encode([(b"grpc-status", b"8"), (b"grpc-message", b"no room")])
        link.say(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, frame[2], HEAD + refusal))
        if closes:
            return  # over what was not read
        assert link.until_closed().endswith(f.reset(frame[2], ErrorCode.CANCEL))

    with pytest.raises(errors.TooManyRequests, match="no room"):
        call(net, play(script), bytes(1 << 20))
    net.close()


def test_who_listens_and_never_greets_is_no_server(net: BlockingNet, play: Callable[[Script], Peer]) -> None:
    for words in (None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):

        def script(link: Link, words: bytes | None = words) -> None:
            if words is None:
                link.until_closed()
            link.say(words or b"")

        with pytest.raises(errors.ConnectionFailed) as failed:
            call(net, play(script), timeout_ms=300)
        assert not isinstance(failed.value, errors.TlsFailed)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full backlog refuses")
def test_an_address_where_nothing_answers_and_nothing_refuses_is_given_up_long_before_the_call(
    net: BlockingNet,
) -> None:
    with silent_port() as silent:
        began = time.monotonic()
        with pytest.raises(errors.ConnectionFailed, match="timed out"):
            net.unary(f"127.0.0.1:{silent.port}", METHOD, b"", timeout_ms=300_000, metadata=())
        assert time.monotonic() - began < 100


def test_threads_do_not_wait_for_each_other_up_to_the_bound_and_then_no_longer_than_their_calls_may_last(
    play: Callable[[Script], Peer],
) -> None:
    together = threading.Barrier(4)
    hold = threading.Event()

    def script(link: Link) -> None:
        link.greet()
        while True:
            stream = link.request()
            if not hold.is_set():
                together.wait(WAIT_S)
                hold.wait(WAIT_S)
            link.say(answer(b"%d" % link.number, stream))

    made = GrpcNet()
    net = BlockingNet(tls=made._channels, encrypted=False, hints=made._hints, addresses_max=1, connections_max=3)
    peer, other = play(script), play(serve)
    with ThreadPoolExecutor(8) as threads:
        first = [threads.submit(call, net, peer) for _ in range(3)]
        together.wait(WAIT_S)  # all three are at the server
        with pytest.raises(errors.TooManyRequests, match=r"3 calls to .* use fewer threads"):
            call(net, peer, timeout_ms=50)
        with pytest.raises(errors.TooManyRequests, match="1 addresses"):
            call(net, other)
        later = [threads.submit(call, net, peer) for _ in range(5)]
        hold.set()
        assert {future.result() for future in first} == {b"0", b"1", b"2"}
        assert {future.result() for future in later} <= {b"0", b"1", b"2"}
    assert len(peer.links) == 3
    assert call(net, other) == b"0"  # made room
    net.close()
    with pytest.raises(errors.ConnectionFailed, match="shutting down"):
        call(net, peer)


def test_connections_that_nobody_uses_answer_and_are_closed_in_time(
    net: BlockingNet, play: Callable[[Script], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinged, closed = threading.Event(), threading.Event()

    def script(link: Link) -> None:
        link.greet()
        link.say(answer(b"x", link.request()) + f.ping(b"12345678"))
        while link.frame()[:2] != (f.PING, f.ACK):
            pass
        pinged.set()
        link.until_closed()
        closed.set()

    monkeypatch.setattr("evenq.wire.blocking_net.QUIET_MS", 0)
    peer = play(script)
    call(net, peer)
    until = time.monotonic() + WAIT_S
    while not pinged.is_set() and time.monotonic() < until:
        net.look_after()
    assert pinged.is_set()
    assert not closed.is_set()
    monkeypatch.setattr("evenq.wire.blocking_net.IDLE_MS", 0)
    net.look_after()
    assert closed.wait(WAIT_S)
    assert net._pools[peer.address].open == 0


def test_a_forked_child_has_connections_of_its_own(net: BlockingNet, play: Callable[[Script], Peer]) -> None:
    peer = play(serve)
    assert call(net, peer) == b"0"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if call(net, peer) == b"1" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert call(net, peer) == b"0"


def test_a_call_that_is_interrupted_gives_its_connection_up(
    net: BlockingNet, play: Callable[[Script], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = play(serve)
    assert call(net, peer) == b"0"
    connection = net._pools[peer.address].idle[0]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(connection), "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(net, peer)
    monkeypatch.undo()
    assert call(net, peer) == b"1"
    assert net._pools[peer.address].open == 1


def test_a_signature_is_part_of_each_call(net: BlockingNet, play: Callable[[Script], Peer]) -> None:
    seen: list[bytes] = []

    def script(link: Link) -> None:
        link.greet()
        while True:
            kind, _, stream, payload = link.frame()
            if kind == f.HEADERS:
                seen.append(payload)
            elif kind == f.DATA:
                link.say(answer(b"x", stream))

    dates = iter(("one", "one", "two"))
    net.sign = lambda: {"x-mq-date-time": next(dates)}
    peer = play(script)
    for _ in range(3):
        call(net, peer)
    assert [b"one" in block for block in seen] == [True, True, False]
    assert seen[0] == seen[1]
    assert b"two" in seen[2]
