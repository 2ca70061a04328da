"""CPU of a broker's loop per message of the public protocol: our front, handlers and store in one process.

    python benchmarks/micro/handlers.py [--rounds 7] [--messages 6000] [--profile FILE]
    python benchmarks/micro/handlers.py --base FOLDER    beside another checkout, in turns

The front gets the bytes of a client (HTTP/2 frames with prepared requests) as if from a socket, and its output is
counted and dropped. Without a network only the CPU of the loop's thread and of the whole process is measured. Loads:
SendMessage with 64 calls in flight, one at a time, in batches of 32, Publish of blocks of 256 with 4 in flight, and
ReceiveMessage of 32 with one AckMessage. Rounds are short and the minimum is shown beside the median, because other
work on the machine only adds. A yardstick, the same piece of Python before each round, shows the present speed of the
machine: compare runs by the quotient. With `--base` two processes measure round after round in turns on the same
machine; shown are both medians, the median of the ratios of neighbouring rounds, and the CPU of each thread.
`benchmarks/handlers.py` measures the same over sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings
from hpack import Encoder
from rounds import folder_in, settle_collector

from evenq.runtime.clock import SystemClock
from evenq.serving.http2 import server as http2_server
from evenq.serving.http2.protocol import Http2Protocol
from evenq.wire.http2 import frames as f
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import replay_requests as made

SERVICE = b"/apache.rocketmq.v2.MessagingService/"
PUBLISH = b"/evenq.v1.Data/Publish"
FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"127.0.0.1:8081"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-go/1.71.0"),
    (b"te", b"trailers"),
    (b"x-mq-client-id", b"bench"),
    (b"x-mq-language", b"GO"),
    (b"x-mq-client-version", b"5.1.3"),
    (b"x-mq-protocol", b"v2"),
    (b"x-mq-namespace", b""),
)
HEADERS = ("sdk", "deadline", "same")
"""Fields that change from call to call: deadline and request id, as with most SDKs; the deadline alone, as with the
load programs; none."""
NO_TABLE = f.settings({f.HEADER_TABLE_SIZE: 0})
LOADS = ("unary", "lone", "batch", "publish", "receive", "nothing")
BLOCK, BLOCKS_IN_FLIGHT = 256, 4
Work = Callable[["Wire"], Awaitable[int]]


class Wire:
    """A client's end of one connection without a socket; also the transport of the server's end."""

    def __init__(self, server: Any, *, headers: str) -> None:
        self._stream_id = -1
        self._encoder = Encoder()
        self._headers = headers
        self._left_us = 99_999_999
        self._done = 0
        self._goal = 0
        self._reached: asyncio.Future[None] | None = None
        self.answer: list[bytes] | None = None
        """Written bytes; None: not kept."""
        # By name: `checkout` may be one in which the class lives in the server's own module.
        address = vars(http2_server)["Address"]("127.0.0.1")
        address.connections = 1
        server.totals.connections += 1
        self._protocol = Http2Protocol(server)
        self._protocol.begin(self, address)  # type: ignore[arg-type]  # as much of a transport as is used
        self._protocol.data_received(
            f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX}) + f.window_update(0, f.WINDOW_MAX - 65_535)
        )
        self._sent = 0

    def frames(self, method: bytes, request: bytes) -> bytes:
        """One call with a header block as of SDKs: from the second call on only references, except for the deadline."""
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
        pseudo, rest = FIELDS[:3], FIELDS[3:]
        path = method if method.startswith(b"/") else SERVICE + method
        fields = [*pseudo[:2], (b":path", path), pseudo[2], *rest[:3]]
        if self._headers != "same":  # the time left, in microseconds
            self._left_us -= 7
            fields.append((b"grpc-timeout", b"%du" % self._left_us))
        fields += rest[3:]
        if self._headers == "sdk":
            fields.append((b"x-mq-request-id", str(uuid.uuid4()).encode()))
            fields.append((b"x-mq-date-time", b"20261123T081950Z"))
        return self._encoder.encode(fields)

    def give(self, data: bytes) -> None:
        """Passes bytes as from the network: in a separate turn of the loop, outside of all tasks."""
        asyncio.get_running_loop().call_soon(self._protocol.data_received, data)

    async def answered(self, count: int) -> None:
        """Waits until this number of further calls are answered since the last call."""
        self._goal += count
        if self._done < self._goal:
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    # ----------------------------------------------------------------------------------------- the server's transport

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.append(data)
        if NO_TABLE in data:
            self._encoder.header_table_size = 0
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


def messages_of(response: bytes) -> list[bytes]:
    """The gRPC messages in what was written for one call."""
    data, at = b"", 0
    while at < len(response):
        size = int.from_bytes(response[at : at + 3], "big")
        if response[at + 3] == f.DATA:
            data += response[at + 9 : at + 9 + size]
        at += 9 + size
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        found.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return found


async def send(wire: Wire, calls: list[bytes], in_flight: int = 64) -> None:
    """Makes all calls, `in_flight` at the same time; a turn of the loop starts the calls of one turn of the network."""
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
    """CPU since the object was made, without that of the benchmark: of the loop's thread, the process, and each other
    thread by name.
    """

    def __init__(self) -> None:
        self.threads_s = {name: -spent for name, spent in _threads_s().items()}
        self.loop_s = -time.thread_time()
        self.all_s = -time.process_time()

    def stop(self) -> None:
        self.loop_s += time.thread_time()
        self.all_s += time.process_time()
        for name, spent in _threads_s().items():
            self.threads_s[name] = self.threads_s.get(name, 0.0) + spent


def _threads_s() -> dict[str, float]:
    loop = threading.get_ident()
    clocks = {
        one.name: time.pthread_getcpuclockid(one.ident)
        for one in threading.enumerate()
        if one.ident is not None and one.ident != loop
    }
    return {name: time.clock_gettime(clock) for name, clock in clocks.items()}


async def receiving(wire: Wire, topic: str, batches: int, profile: cProfile.Profile | None) -> list[Clocked]:
    """The CPU of receives and acks; the client's own parsing is not in it."""
    request = made.receive(topic, f"g-{topic}", "*", is_sql=False, poll_ms=0)
    spent: list[Clocked] = []
    for _ in range(batches):
        call = wire.frames(b"ReceiveMessage", request)
        wire.answer = []
        spent.append(await _timed(wire, call, profile))
        response, wire.answer = b"".join(wire.answer), None
        frames = messages_of(response)
        ack = service_pb2.AckMessageRequest()
        ack.group.name, ack.topic.name = f"g-{topic}", topic
        for frame in frames[1:-1]:
            system = service_pb2.ReceiveMessageResponse.FromString(frame).message.system_properties
            ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        assert len(ack.entries) == 32, (len(frames), frames[0])
        spent.append(await _timed(wire, wire.frames(b"AckMessage", ack.SerializeToString()), profile))
    return spent


async def polling(wire: Wire, topic: str, count: int, profile: cProfile.Profile | None) -> list[Clocked]:
    """The CPU of receives that find nothing in any queue, and do not wait."""
    await fill(wire, topic, 1)
    request = made.receive(topic, f"g-{topic}", "*", is_sql=False, poll_ms=0)
    await _timed(wire, wire.frames(b"ReceiveMessage", request), None)  # gets the one that made the topic
    return await _sent(wire, [wire.frames(b"ReceiveMessage", request) for _ in range(count)], 64, profile)


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


async def sending(
    wire: Wire, count: int, batch: int, profile: cProfile.Profile | None, *, in_flight: int = 64
) -> list[Clocked]:
    """The CPU of sends."""
    requests = made.sends("normal", f"send-{batch}", count, batch=batch, together=True)
    return await _sent(wire, [wire.frames(b"SendMessage", one) for one in requests], in_flight, profile)


async def publishing(wire: Wire, count: int, profile: cProfile.Profile | None) -> list[Clocked]:
    """The CPU of blocks for the queues in turn."""
    await fill(wire, "publish", 1)  # the topic
    calls = []
    for number, one in enumerate(made.sends("normal", "publish", count, batch=BLOCK, together=True)):
        messages = service_pb2.SendMessageRequest.FromString(one).messages
        queue = common_pb2.Queue(topic="publish", queue_id=number % made.QUEUES)
        calls.append(wire.frames(PUBLISH, data_pb2.PublishRequest(queue=queue, messages=messages).SerializeToString()))
    return await _sent(wire, calls, BLOCKS_IN_FLIGHT, profile)


async def _sent(wire: Wire, calls: list[bytes], in_flight: int, profile: cProfile.Profile | None) -> list[Clocked]:
    if profile is not None:
        profile.enable()
    clocked = Clocked()
    await send(wire, calls, in_flight)
    clocked.stop()
    if profile is not None:
        profile.disable()
    return [clocked]


def yardstick() -> float:
    """Returns the present microseconds of a piece of Python similar to the measured code."""
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


@asynccontextmanager
async def connected(folder: Path, *, headers: str) -> AsyncIterator[Wire]:
    """Runs a broker in this process, with a connection to its front."""
    settings = BrokerSettings(
        port=0,
        metrics_port=-1,
        front="http2",
        default_queues=8,
        default_start_from="FIRST",
        store={"path": str(folder)},
    )
    app = BrokerApp(settings, clock=SystemClock(), rng=random.Random(1), net=GrpcNet())
    await app.start()
    servers: Any = app._servers if hasattr(app, "_servers") else app._doors  # noqa: SLF001  an older checkout's name
    listening = servers._servers if hasattr(servers, "_servers") else servers._doors  # noqa: SLF001
    yield Wire(listening[0]._server, headers=headers)  # noqa: SLF001
    await app.close()


async def measured(folder: Path, options: argparse.Namespace) -> None:
    profile = cProfile.Profile() if options.profile else None
    async with connected(folder, headers=options.headers) as wire:
        print("| load | loop us a message, least | median | process us, least | median | yardsticks | yardstick us |")
        print("|---|---|---|---|---|---|---|")
        for name in options.only:
            rounds = [await _round(wire, name, turn, options.messages, profile) for turn in range(options.rounds + 1)]
            print(_row(name, rounds[1:] or rounds))
    if profile is not None:
        profile.dump_stats(options.profile)


@dataclass(frozen=True, slots=True)
class Round:
    """Microseconds of one round, for a message."""

    loop: float
    whole: float
    yard: float
    threads: dict[str, float]
    """Returns all threads except that of the loop."""


async def _round(wire: Wire, name: str, turn: int, messages: int, profile: cProfile.Profile | None) -> Round:
    profile = profile if turn else None  # the first round warms up
    yard = yardstick()
    if name == "receive":
        topic, batches = f"receive-{turn}", max(1, messages // 128)
        count = batches * 32
        await fill(wire, topic, count + 512)
        spent = await receiving(wire, topic, batches, profile)
    elif name == "nothing":
        count = messages
        spent = await polling(wire, f"nothing-{turn}", count, profile)
    elif name == "publish":
        count = max(1, messages * 4 // BLOCK) * BLOCK
        spent = await publishing(wire, count, profile)
    else:
        batch = 32 if name == "batch" else 1
        count = messages * (4 if batch > 1 else 1)
        spent = await sending(wire, count, batch, profile, in_flight=1 if name == "lone" else 64)
    scale = 1e6 / count
    threads: dict[str, float] = {}
    for one in spent:
        for thread, secs in one.threads_s.items():
            threads[thread] = threads.get(thread, 0.0) + secs * scale
    loop_us, whole_us = sum(one.loop_s for one in spent) * scale, sum(one.all_s for one in spent) * scale
    return Round(loop_us, whole_us, min(yard, yardstick()), threads)


def _row(name: str, rounds: list[Round]) -> str:
    loops, wholes = [one.loop for one in rounds], [one.whole for one in rounds]
    yards = median(one.loop / one.yard for one in rounds)
    figures = (min(loops), median(loops), min(wholes), median(wholes), yards, min(one.yard for one in rounds))
    return f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |"


# ---------------------------------------------------------------------------------------------------------- in turns


async def measured_on_request(folder: Path, options: argparse.Namespace) -> None:
    """Measures a round for each line `LOAD TURN`, and answers with JSON."""
    async with connected(folder, headers=options.headers) as wire:
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            one = await _round(wire, line[0], int(line[1]), options.messages, None)
            print(json.dumps(asdict(one)), flush=True)


class Side:
    """Runs a process that measures on request."""

    def __init__(self, python: str, checkout: Path | None, options: argparse.Namespace) -> None:
        environment = dict(os.environ)
        if checkout is not None:
            folders = [
                str(checkout / name)
                for name in ("src", "services/broker", "services/nameserver", "services/rebalancer")
            ]
            environment["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._process = subprocess.Popen(
            [
                python,
                __file__,
                "--on-request",
                "--messages",
                str(options.messages),
                "--headers",
                options.headers,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def round(self, name: str, turn: int) -> Round:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {turn}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process that measures {name} ended; its error is above")
        return Round(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured_in_turns(options: argparse.Namespace) -> None:
    """Prints the table of both, and the table of threads."""
    base = Side(options.base_python or sys.executable, options.base, options)
    ours = Side(sys.executable, None, options)
    print("| load | loop us: base, least, median | now | ratio (quartiles) | of least | all: base | now | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    threads: list[str] = []
    for name in options.only:
        pairs: list[tuple[Round, Round]] = []
        for turn in range(options.rounds + 1):
            first, second = (base, ours) if turn % 2 else (ours, base)
            one, other = first.round(name, turn), second.round(name, turn)
            pairs.append((one, other) if turn % 2 else (other, one))
        pairs = pairs[1:]
        loops = sorted(now.loop / before.loop for before, now in pairs)
        wholes = median(now.whole / before.whole for before, now in pairs)
        spread = f"{median(loops):.3f} ({loops[len(loops) // 4]:.3f} to {loops[-1 - len(loops) // 4]:.3f})"
        before, now = [one for one, _ in pairs], [one for _, one in pairs]
        least = [min(one.loop for one in side) for side in (before, now)]
        print(
            f"| {name} | {least[0]:.2f}, {median(one.loop for one in before):.2f} | {least[1]:.2f}, "
            f"{median(one.loop for one in now):.2f} | {spread} | {least[1] / least[0]:.3f} | "
            f"{median(one.whole for one in before):.2f} | {median(one.whole for one in now):.2f} | {wholes:.3f} |"
        )
        for thread in sorted({thread for one in (*before, *now) for thread in one.threads}):
            sides = [median(one.threads.get(thread, 0.0) for one in side) for side in (before, now)]
            if max(sides) >= LEAST_SHOWN_US:
                threads.append(f"| {name} | {thread} | {sides[0]:.2f} | {sides[1]:.2f} |")
    print("\n| load | thread | us a message, base | now |\n|---|---|---|---|", *threads, sep="\n")
    base.close()
    ours.close()


LEAST_SHOWN_US = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of a broker's loop for each message, without a network.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=6_000, help="of one round of unary sends")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--profile", default="", help="cProfile of the measured code; the figures are not valid then")
    parser.add_argument("--base", type=Path, default=None, help="checkout to measure beside this one, in turns")
    parser.add_argument("--base-python", default="", help="the Python to measure beside this one, in turns")
    parser.add_argument("--headers", choices=HEADERS, default="deadline", help="what of them changes with each call")
    parser.add_argument("--on-request", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.base or options.base_python:
        measured_in_turns(options)
        return
    settle_collector()
    with folder_in(options.folder) as folder:
        uvloop.run((measured_on_request if options.on_request else measured)(folder, options))


if __name__ == "__main__":
    main()
