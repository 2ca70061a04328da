"""What the loop of a broker spends on a message of the public protocol: own front, handlers and store in one process.

    python benchmarks/micro/handlers.py [--rounds 7] [--messages 6000] [--profile FILE]

The bytes of a client (frames of HTTP/2 with requests that were made before) are given to the front as if a socket had
them, and what it writes is counted and thrown away: no network, so only CPU of the loop's thread is measured, and that
of the whole process beside it. SendMessage with 64 calls in flight, the same in batches of 32, ReceiveMessage of 32
and one AckMessage of them. Rounds are short and the smallest is shown beside the median: other work on the machine only
ever adds. A yardstick, the same piece of Python beside each round, says how fast the machine is just now: compare runs
by the quotient. `benchmarks/handlers.py` measures the same over sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from evenq_broker.app import BrokerApp
from evenq_broker.settings import Settings
from rounds import folder_in, settle_collector

from evenq.runtime.clock import SystemClock
from evenq.serving.http2.protocol import Http2Protocol
from evenq.serving.http2.server import Address
from evenq.wire.http2 import frames as f
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import replay_requests as made

SERVICE = b"/apache.rocketmq.v2.MessagingService/"
FIELDS = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"127.0.0.1:8081"), (b"te", b"trailers"),
    (b"content-type", b"application/grpc"), (b"user-agent", b"grpc-go/1.71.0"), (b"x-mq-client-id", b"bench"),
    (b"x-mq-language", b"GO"), (b"x-mq-client-version", b"5.1.3"), (b"x-mq-protocol", b"v2"),
)  # fmt: skip
METHODS = (b"SendMessage", b"ReceiveMessage", b"AckMessage")
LOADS = ("unary", "batch", "receive")
FIRST_INDEX = 62
Work = Callable[["Wire"], Awaitable[int]]


class Wire:
    """A client's end of one connection without a socket; also the transport of the server's end."""

    def __init__(self, server: Any) -> None:
        self._stream_id = -1
        self._blocks: dict[bytes, bytes] = {}
        self._done = 0
        self._goal = 0
        self._reached: asyncio.Future[None] | None = None
        self.answer: list[bytes] | None = None
        """What is written, where somebody wants it."""
        address = Address("127.0.0.1")
        address.connections = 1
        server.totals.connections += 1
        self._protocol = Http2Protocol(server)
        self._protocol.begin(self, address)  # type: ignore[arg-type]  # as much of a transport as is used
        self._protocol.data_received(
            f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX}) + f.window_update(0, f.WINDOW_MAX - 65_535)
        )
        self._sent = 0

    def frames(self, method: bytes, request: bytes) -> bytes:
        """One call. Its header block is one of references, from the second call of a method on."""
        self._stream_id += 2
        size = (len(request) + 5).to_bytes(3, "big")
        stream = self._stream_id.to_bytes(4, "big")
        data = bytes(1) + len(request).to_bytes(4, "big") + request
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
        sent = f.frame(f.HEADERS, f.END_HEADERS, self._stream_id, self._block(method))
        if len(pieces) == 1:
            return sent + size + b"\x00\x01" + stream + data
        last = len(pieces) - 1
        flags = [0] * last + [f.END_STREAM]
        return sent + b"".join(
            f.frame(f.DATA, flag, self._stream_id, piece) for flag, piece in zip(flags, pieces, strict=True)
        )

    def _block(self, method: bytes) -> bytes:
        if not self._blocks:  # all fields enter the peer's table, the methods' paths last
            pairs = (*FIELDS, *((b":path", SERVICE + name) for name in METHODS))
            entries = len(pairs)
            indexes = {pair: bytes((0x80 | FIRST_INDEX + entries - 1 - at,)) for at, pair in enumerate(pairs)}
            common = b"".join(indexes[pair] for pair in FIELDS)
            pseudo, rest = common[:3], common[3:]
            for name in METHODS:
                self._blocks[name] = pseudo + indexes[b":path", SERVICE + name] + rest
            self._stream_id += 2
            first = b"".join(b"\x40" + _text(name) + _text(value) for name, value in pairs)
            self.give(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, self._stream_id - 2, first))
        return self._blocks[method]

    def give(self, data: bytes) -> None:
        """As if it came from the network: in a turn of the loop of its own, outside of all tasks."""
        asyncio.get_running_loop().call_soon(self._protocol.data_received, data)

    async def answered(self, count: int) -> None:
        """Wait until so many more calls are answered than when this was called last."""
        self._goal += count
        if self._done < self._goal:
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    # ----------------------------------------------------------------------------------------- the server's transport

    def write(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.append(data)
        self._done += data.count(b"\x0bgrpc-status\x010")
        if self._reached is not None and self._done >= self._goal:
            self._reached.set_result(None)
            self._reached = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def messages_of(answer: bytes) -> list[bytes]:
    """The gRPC messages in what was written for one call."""
    data, at = b"", 0
    while at < len(answer):
        size = int.from_bytes(answer[at : at + 3], "big")
        if answer[at + 3] == f.DATA:
            data += answer[at + 9 : at + 9 + size]
        at += 9 + size
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        found.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return found


async def send(wire: Wire, calls: list[bytes], in_flight: int = 64) -> None:
    """All calls, `in_flight` at once; a turn of the loop begins what a turn of the network would bring."""
    queue = iter(calls)
    first = list(itertools.islice(queue, in_flight))
    wire.give(b"".join(first))
    left = len(calls)
    step = max(1, in_flight // 4)
    while left:
        count = min(step, left)
        await wire.answered(count)
        left -= count
        wire.give(b"".join(itertools.islice(queue, count)))


async def fill(wire: Wire, topic: str, count: int) -> None:
    """A topic with messages."""
    filling = made.sends("normal", topic, count, batch=32)
    await send(wire, [wire.frames(b"SendMessage", one) for one in filling], 16)


class Clocked:
    """CPU since it was made, without what the benchmark itself does in between."""

    def __init__(self) -> None:
        self.loop_s = -time.thread_time()
        self.all_s = -time.process_time()

    def stop(self) -> None:
        self.loop_s += time.thread_time()
        self.all_s += time.process_time()


async def receiving(wire: Wire, topic: str, batches: int, profile: cProfile.Profile | None) -> tuple[float, float]:
    """Loop and process seconds of receives and acks; the client's own parsing is not in it."""
    asked = made.receive(topic, f"g-{topic}", "*", is_sql=False, poll_ms=0)
    loop_s = all_s = 0.0
    for _ in range(batches):
        call = wire.frames(b"ReceiveMessage", asked)
        wire.answer = []
        took = await _timed(wire, call, profile)
        answer, wire.answer = b"".join(wire.answer), None
        frames = messages_of(answer)
        ack = service_pb2.AckMessageRequest()
        ack.group.name, ack.topic.name = f"g-{topic}", topic
        for frame in frames[1:-1]:
            system = service_pb2.ReceiveMessageResponse.FromString(frame).message.system_properties
            ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        assert len(ack.entries) == 32, (len(frames), frames[0])
        acked = await _timed(wire, wire.frames(b"AckMessage", ack.SerializeToString()), profile)
        loop_s += took.loop_s + acked.loop_s
        all_s += took.all_s + acked.all_s
    return loop_s, all_s


async def _timed(wire: Wire, call: bytes, profile: cProfile.Profile | None) -> Clocked:
    if profile is not None:
        profile.enable()
    clocked = Clocked()
    wire.give(call)
    await wire.answered(1)
    clocked.stop()
    if profile is not None:
        profile.disable()
    return clocked


async def sending(wire: Wire, count: int, batch: int, profile: cProfile.Profile | None) -> tuple[float, float]:
    """Loop and process seconds of sends."""
    asked = made.sends("normal", f"send-{batch}", count, batch=batch, together=True)
    calls = [wire.frames(b"SendMessage", one) for one in asked]
    if profile is not None:
        profile.enable()
    clocked = Clocked()
    await send(wire, calls)
    clocked.stop()
    if profile is not None:
        profile.disable()
    return clocked.loop_s, clocked.all_s


def yardstick() -> float:
    """Microseconds of a piece of Python like what is measured, now."""
    start = time.thread_time()
    kept: dict[bytes, int] = {}
    data = bytearray()
    for number in range(YARDSTICK):
        name = b"%034d" % number
        kept[name[8:]] = number
        data += b"".join((name, b"\x0a", name[:4]))
        if name.decode().isspace() or kept.get(name) is not None:
            data.clear()
    return (time.thread_time() - start) / YARDSTICK * 1e6


YARDSTICK = 20_000


async def measured(folder: Path, asked: argparse.Namespace) -> None:
    """The table."""
    settings = Settings(
        port=0, metrics_port=-1, front="http2", default_queues=8, default_start_from="FIRST",
        store={"path": str(folder)},
    )  # fmt: skip
    clock = SystemClock()
    app = BrokerApp(settings, clock=clock, rng=random.Random(1), net=GrpcNet())
    await app.start()
    doors: Any = app._doors  # noqa: SLF001  there is no socket to come through
    wire = Wire(doors._doors[0]._server)  # noqa: SLF001
    wire.frames(b"SendMessage", b"")
    await wire.answered(0)
    print("| load | loop us a message, least | median | process us, least | median | yardsticks | yardstick us |")
    print("|---|---|---|---|---|---|---|")
    profile = cProfile.Profile() if asked.profile else None
    for name in asked.only:
        print(_row(name, [await _round(wire, name, turn, asked.messages, profile) for turn in range(asked.rounds + 1)]))
    if profile is not None:
        profile.dump_stats(asked.profile)
    await app.close()


@dataclass(frozen=True, slots=True)
class Round:
    """Microseconds of one round, for a message."""

    loop: float
    whole: float
    yard: float


async def _round(wire: Wire, name: str, turn: int, messages: int, profile: cProfile.Profile | None) -> Round:
    profile = profile if turn else None  # the first is for warming up
    yard = yardstick()
    if name == "receive":
        topic, batches = f"receive-{turn}", max(1, messages // 128)
        count = batches * 32
        await fill(wire, topic, count + 512)
        loop_s, all_s = await receiving(wire, topic, batches, profile)
    else:
        batch = 32 if name == "batch" else 1
        count = messages * (4 if batch > 1 else 1)
        loop_s, all_s = await sending(wire, count, batch, profile)
    return Round(loop_s / count * 1e6, all_s / count * 1e6, min(yard, yardstick()))


def _row(name: str, rounds: list[Round]) -> str:
    kept = rounds[1:] or rounds
    loops, wholes = [one.loop for one in kept], [one.whole for one in kept]
    yards = median(one.loop / one.yard for one in kept)
    figures = (min(loops), median(loops), min(wholes), median(wholes), yards, min(one.yard for one in kept))
    return f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of a broker's loop for each message, without a network.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=6_000, help="of one round of unary sends")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--profile", default="", help="cProfile of what is measured; the figures mean nothing then")
    asked = parser.parse_args()
    settle_collector()
    with folder_in(asked.folder) as folder:
        uvloop.run(measured(folder, asked))


if __name__ == "__main__":
    main()
