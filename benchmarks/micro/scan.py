"""CPU of the broker per row when Spark's workers scan it, without Spark.

    python benchmarks/micro/scan.py [--rows 400000] [--rounds 5] [--readers 2] [--block-bytes N] [--body-bytes N]
                                    [--front http2] [--together 100] [--profile FILE]

A broker in its own process is filled as by `benchmarks/spark.py`: 1 KiB rows in four queues, `--together` of them in
one piece of the log. Then as many reader processes as Spark has cores read the queues from end to end by
`cluster.scan`, as tasks do, and drop the rows. The floor is a gRPC server of ours in its own process that sends as many
blocks of the same prepared bytes: the cost of gRPC (or our own front) alone. Both in turn, round by round. CPU time is
valid on a machine with other work, rows per second are not. Goal: 1 us per row for the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import servers  # noqa: E402  it stands one folder higher
from spark_servers import QUEUES, TOPIC, Evenq  # noqa: E402

METHOD = "/evenq.v1.Data/Scan"
PARTS = {"all": (True, True), "headers": (False, False), "heads": (True, False)}


def serve(front: Any, block: int, count: int) -> None:
    """The floor's server: prints its port and answers each scan with `count` blocks of `block` bytes."""
    from evenq.runtime.clock import SystemClock
    from evenq.serving.front.grpc_server import open_grpc_server
    from evenq.serving.grpc_server_options import GrpcServerOptions
    from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
    from evenq.wire.stubs.evenq.v1 import data_pb2

    encoded = bytes(block)

    async def scan(_request: bytes, _context: RpcContext) -> Any:
        for _ in range(count):
            yield encoded

    async def run() -> None:
        access = Access(resource=Resource.NONE, action=Action.DESCRIBE)
        row = Rpc(method=METHOD, kind=CallKind.SERVER_STREAM, handler=scan, response=data_pb2.ScanBlock, access=access)
        server = await open_grpc_server(
            [row], host="127.0.0.1", port=0, clock=SystemClock(), options=GrpcServerOptions(front=front)
        )
        sys.stdout.write(f"ready 127.0.0.1:{server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    try:
        import uvloop
    except ImportError:
        asyncio.run(run())
    else:
        uvloop.run(run())


def read(address: str, queue_id: int, rows: int, block_bytes: int, parts: tuple[bool, bool]) -> tuple[int, int]:
    """Blocks and bytes of one queue, in a reader's process."""
    from pyspark_evenq.brokers import cluster
    from pyspark_evenq.plan.planner import OffsetRange

    from evenq.model.queue import MessageQueue

    part = OffsetRange(queue=MessageQueue(TOPIC, "bench", queue_id), start=0, end=rows)
    blocks = size = 0
    for block in cluster.scan(
        address,
        part,
        uid="",
        tags="",
        group="",
        block_bytes=block_bytes,
        timeout_ms=60_000,
        parts=cluster.RecordParts(*parts, verifies=True),
    ):
        blocks += 1
        size += len(block)
    return blocks, size


def scanned(pool: Any, address: str, per_queue: int, options: argparse.Namespace) -> tuple[int, int]:
    """Blocks and bytes of all queues."""
    parts = PARTS[options.parts]
    tasks = [(address, queue_id, per_queue, options.block_bytes, parts) for queue_id in range(QUEUES)]
    results = pool.starmap(read, tasks, chunksize=1)
    return sum(blocks for blocks, _ in results), sum(size for _, size in results)


def measured(pid: int, work: Callable[[], object]) -> tuple[float, float]:
    """CPU of a process and wall-clock time for some work, seconds."""
    cpu, begun = servers.cpu_s(pid), time.perf_counter()
    work()
    return servers.cpu_s(pid) - cpu, time.perf_counter() - begun


def main() -> int:
    """Exit code 1 if the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--block-bytes", type=int, default=2 << 20)
    parser.add_argument("--together", type=int, default=100, help="rows of a queue one behind the other in the log")
    parser.add_argument("--front", choices=["grpcio", "http2"], default="http2")
    parser.add_argument("--parts", choices=sorted(PARTS), default="all")
    parser.add_argument("--profile", default="", help="perf record the broker's rounds into this file")
    parser.add_argument("--serve", nargs=2, type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.front, *options.serve)
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenq-bench-")))
        settings = {"EVENQ_BROKER_BROKER_NAME": "bench", "EVENQ_BROKER_FRONT": options.front}
        server = stack.enter_context(servers.broker(folder, **settings))
        evenq = Evenq(server, 0)
        evenq.create(TOPIC, QUEUES)
        evenq.fill(options.rows, together=options.together)
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options.readers))
        per_queue = options.rows // QUEUES
        blocks, size = scanned(pool, server.address, per_queue, options)
        floor = stack.enter_context(peer(options.front, size // blocks, blocks // QUEUES))
        scanned(pool, floor.address, per_queue, options)
        if options.profile:
            stack.enter_context(perf(server.pid, options.profile))
        costs: list[float] = []
        floors: list[float] = []
        for _ in range(options.rounds):
            cpu, took = measured(server.pid, lambda: scanned(pool, server.address, per_queue, options))
            floor_cpu, floor_took = measured(floor.pid, lambda: scanned(pool, floor.address, per_queue, options))
            costs.append(cpu / options.rows * 1e6)
            floors.append(floor_cpu / options.rows * 1e6)
            print(
                f"  broker {costs[-1]:.2f} us/row ({options.rows / took:,.0f} rows/s), floor {floors[-1]:.2f} "
                f"({options.rows / floor_took:,.0f})"
            )
    cost = statistics.median(costs)
    print(
        f"{options.rows:,} rows, {blocks} blocks of {size // blocks:,} bytes, {options.front}, {options.readers} "
        f"readers: broker {cost:.2f} us/row ({min(costs):.2f} to {max(costs):.2f}), floor "
        f"{statistics.median(floors):.2f}; goal 1: {'yes' if cost <= 1 else 'no'}"
    )
    return 0 if cost <= 1 else 1


def peer(front: str, block: int, count: int) -> Any:
    """The floor's process."""
    command = [sys.executable, str(HERE / "scan.py"), "--front", front, "--serve", str(block), str(count)]
    return servers.started(command, {})


class perf:  # noqa: N801  a context manager
    """`perf record` of a process."""

    def __init__(self, pid: int, file: str) -> None:
        self._command = ["perf", "record", "-F", "999", "-g", "-o", file, "-p", str(pid)]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(2)
        self._process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
