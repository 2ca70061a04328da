"""Cost of one `send` of the SDK compared with the minimum of gRPC in Python, on both fronts and transports.

    python benchmarks/micro/sdk_send.py [--seconds 3] [--rounds 5] [--only WORD ...] [--fronts http2 grpcio]

The floor is a gRPC server of ours in its own process whose Publish parses nothing and answers the same bytes. It is
called one by one with prepared bytes by `grpc` (threads), `grpc.aio`, and the blocking calls of the SDK over sockets.
`broker, threads` calls the broker in this way by `grpc`, because a longer wait also costs a client CPU. The SDK sends
to a broker in its own process: data on disk, asynchronous flush, default settings, eight queues, messages of 1
KiB. All take turns, round by round, with a broker for each front; `send_async` waits for its answers at the end of its
round only, `send_async + flush` and `send_batch` after each thousand. `client CPU` is user and system time of the
client's process per message: it is valid on a machine with other work, calls per second are not. Goals:
3,000 sends a second and 250 us on a calm machine with `http2` and sockets, `send_batch` not slower than `send_async`.
Ratios are those of each front; its floor is `floor, grpc threads`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

import evenq
from evenq.serving.grpc_server_options import Front
from evenq.testing import LocalCluster
from evenq.wire import net
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

METHOD = "/evenq.v1.Data/Publish"
BODY = bytes(range(256)) * 4
BATCH = 1_000

Work = Callable[[float], int]
"""Works for this number of seconds and returns the number of messages."""


def serve(front: Front) -> None:
    """The floor's server: prints its port."""
    from evenq.runtime.clock import SystemClock
    from evenq.serving.front.grpc_server import open_grpc_server
    from evenq.serving.grpc_server_options import GrpcServerOptions
    from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext

    answer = data_pb2.PublishResponse(
        status=definition_pb2.Status(code=definition_pb2.OK, message="OK"),
        queue=common_pb2.Queue(topic="bench", broker_name="floor", queue_id=1),
        first_offset=1,
        store_ms=1,
    ).SerializeToString()

    async def publish(_request: bytes, _context: RpcContext) -> bytes:
        return answer

    async def run() -> None:
        access = Access(resource=Resource.NONE, action=Action.DESCRIBE)
        row = Rpc(method=METHOD, kind=CallKind.UNARY, handler=publish, response=data_pb2.PublishResponse, access=access)
        server = await open_grpc_server(
            [row], host="127.0.0.1", port=0, clock=SystemClock(), options=GrpcServerOptions(front=front)
        )
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    asyncio.run(run())


def request() -> bytes:
    message = definition_pb2.Message(topic=definition_pb2.Resource(name="bench"), body=BODY)
    message.system_properties.message_id = "01" + "0" * 32
    message.system_properties.born_host = "bench"
    queue = common_pb2.Queue(topic="bench", broker_name="floor", queue_id=1)
    return data_pb2.PublishRequest(queue=queue, messages=[message]).SerializeToString()


def raw_threads(port: int) -> Work:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call, data = channel.unary_unary(METHOD), request()

    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            call(data, timeout=3)
            count += 1
        return count

    return work


def raw_sockets(port: int) -> Work:
    call, data = GrpcNet().blocking().unary, request()

    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            call(f"127.0.0.1:{port}", METHOD, data, timeout_ms=3_000, metadata=())
            count += 1
        return count

    return work


def raw_broker(endpoint: str) -> Work:
    """Sends the same to the broker, each message with its own id."""
    call = grpc.insecure_channel(endpoint).unary_unary(METHOD)
    decoded = data_pb2.PublishRequest.FromString(request())
    decoded.queue.broker_name = ""
    head, _, tail = decoded.SerializeToString().partition(b"01" + b"0" * 32)
    numbers = itertools.count()

    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            call(head + b"01%032d" % next(numbers) + tail, timeout=3)
            count += 1
        return count

    return work


def raw_aio(port: int) -> Work:
    data = request()

    async def run(seconds: float) -> int:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(METHOD)
            count, until = 0, time.perf_counter() + seconds
            while time.perf_counter() < until:
                await call(data, timeout=3)
                count += 1
            return count

    return lambda seconds: asyncio.run(run(seconds))


def message() -> evenq.Message:
    return evenq.Message(topic="bench", body=BODY)


def send(producer: evenq.Producer) -> Work:
    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            producer.send(message())
            count += 1
        return count

    return work


def aio_send(endpoint: str) -> Work:
    async def run(seconds: float) -> int:
        async with evenq.aio.Producer(endpoint=endpoint) as producer:
            count, until = 0, time.perf_counter() + seconds
            while time.perf_counter() < until:
                await producer.send(message())
                count += 1
            return count

    return lambda seconds: asyncio.run(run(seconds))


def send_batch(producer: evenq.Producer) -> Work:
    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            producer.send_batch(message() for _ in range(BATCH))
            count += BATCH
        return count

    return work


def send_async(producer: evenq.Producer) -> Work:
    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(BATCH):
                producer.send_async(message())
            count += BATCH
        producer.flush()
        return count

    return work


def send_async_and_flush(producer: evenq.Producer) -> Work:
    """Waits as `send_batch` does: all are answered before the next thousand."""

    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(BATCH):
                producer.send_async(message())
            producer.flush()
            count += BATCH
        return count

    return work


def measure(work: Work, seconds: float) -> tuple[float, float]:
    """Messages a second, and client CPU for each, us."""
    before, began = os.times(), time.perf_counter()
    count = work(seconds)
    took, after = time.perf_counter() - began, os.times()
    cpu = after.user + after.system - before.user - before.system
    return count / took, cpu / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--fronts", nargs="*", default=["http2", "grpcio"], choices=["http2", "grpcio"])
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with contextlib.ExitStack() as stack:
        compare([opened(stack, front) for front in options.fronts], options)


def opened(stack: contextlib.ExitStack, front: Front) -> dict[str, Work]:
    """Returns the works that are measured on one front."""
    command = [sys.executable, str(Path(__file__)), "--serve", front]
    floor = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(floor.terminate)
    assert floor.stdout is not None
    port = int(floor.stdout.readline())
    cluster = stack.enter_context(LocalCluster(brokers=1, nameservers=1, rebalancer=False, front=front))
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("bench", queues=8)
    producers = {}
    for over in ("sockets", "grpcio"):
        net.BLOCKING_OVER = over
        producers[over] = stack.enter_context(evenq.Producer(endpoint=cluster.endpoint))
    net.BLOCKING_OVER = "sockets"
    works = {
        "floor, grpc threads": raw_threads(port),
        "floor, grpc aio": raw_aio(port),
        "floor, sockets": raw_sockets(port),
        "broker, grpc threads": raw_broker(cluster.endpoint),
        "send over sockets": send(producers["sockets"]),
        "send over grpcio": send(producers["grpcio"]),
        "aio.Producer.send": aio_send(cluster.endpoint),
        "send_async": send_async(producers["sockets"]),
        "send_async + flush": send_async_and_flush(producers["sockets"]),
        "send_batch": send_batch(producers["sockets"]),
    }
    return {f"{front}: {name}": work for name, work in works.items()}


def compare(fronts: list[dict[str, Work]], options: argparse.Namespace) -> None:
    works = {
        name: work
        for group in zip(*(front.items() for front in fronts), strict=True)
        for name, work in group
        if not options.only or any(word in name for word in options.only)
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(options.rounds + 1):
        for name, work in works.items():
            figure = measure(work, options.seconds)
            if number:  # the first round warms up
                figures[name].append(figure)
    none = [(0.0, 0.0)] * options.rounds
    print(
        f"{'':30} {'messages/s':>12} {'client CPU, us':>16} {'speed : floor':>14} {'CPU : floor':>12} "
        f"{'speed : send_async':>20}"
    )
    for name, rounds in figures.items():
        front = name.partition(":")[0]
        floors = figures.get(f"{front}: floor, grpc threads", none)
        rivals = figures.get(f"{front}: send_async", none)
        rate, cpu = (statistics.median(one[at] for one in rounds) for at in (0, 1))
        ratio, work_ratio = (ratio_of(rounds, floors, at) for at in (0, 1))
        rival = ratio_of(rounds, rivals, 0)
        print(f"{name:30} {rate:12,.0f} {cpu:16,.0f} {ratio:14.2f} {work_ratio:12.2f} {rival:20.2f}")


def ratio_of(rounds: list[tuple[float, float]], others: list[tuple[float, float]], at: int) -> float:
    """Returns the median of the ratios of the rounds; 0 without others."""
    return statistics.median(
        one[at] / other[at] if other[at] else 0.0 for one, other in zip(rounds, others, strict=True)
    )


if __name__ == "__main__":
    main()
