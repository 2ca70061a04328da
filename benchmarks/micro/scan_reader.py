"""CPU of one of Spark's workers per row, for each step of a scan, without Spark.

    python benchmarks/micro/scan_reader.py [--rows 200000] [--rounds 5] [--block-bytes N] [--steps fetch rows hand-over]

A broker in its own process is filled as by `benchmarks/spark.py`. A reader process reads the queues from end to end,
one after the other, as tasks do, with one more step in each turn: `fetch` drops the encoded blocks, `rows` makes Arrow
batches of them, `hand-over` writes these as an Arrow stream into a socket that another process drains, as Spark's JVM
does. So the cost of a step is the difference to the previous one. CPU time is valid on a machine with other work, rows
per second are not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import servers  # noqa: E402  it stands one folder higher
from spark_servers import QUEUES, TOPIC, Evenq  # noqa: E402

STEPS = ("fetch", "rows", "hand-over")
DRAIN_BYTES = 1 << 20


def work(step: str, address: str, per_queue: int, block_bytes: int, drain: Any) -> tuple[float, float]:
    """All queues, in the reader's process: its CPU and wall-clock time, seconds."""
    begun_cpu, begun = time.process_time(), time.perf_counter()
    for queue_id in range(QUEUES):
        if step == "fetch":
            for _ in _blocks(address, queue_id, per_queue, block_bytes):
                pass
        else:
            _consume(_batches(address, queue_id, per_queue, block_bytes), per_queue, step, drain)
    return time.process_time() - begun_cpu, time.perf_counter() - begun


def _blocks(address: str, queue_id: int, rows: int, block_bytes: int) -> Iterator[Any]:
    from pyspark_evenq.brokers import cluster

    return cluster.scan(
        address,
        _range(queue_id, rows),
        uid="",
        tags="",
        group="",
        block_bytes=block_bytes,
        timeout_ms=60_000,
        parts=cluster.RecordParts(head=True, system=True, verifies=True),
    )


def _batches(address: str, queue_id: int, rows: int, block_bytes: int) -> Iterator[Any]:
    from pyspark_evenq.brokers import cluster
    from pyspark_evenq.options.source import ReadOptions
    from pyspark_evenq.source import scanning

    from evenq.columns.arrow_schema import TYPES, OutputColumn

    given = {"endpoints": address, "subscribe": TOPIC, "blockBytes": str(block_bytes)}
    options = ReadOptions.parse(given, streaming=False)
    queue = _range(queue_id, rows)
    (task,) = scanning.scan_tasks([[queue]], cluster.Located(addresses={queue.queue: address}), {})
    return scanning.read(task, options, tuple(OutputColumn(name, nullable=True) for name in TYPES))


def _range(queue_id: int, rows: int) -> Any:
    from pyspark_evenq.plan.planner import OffsetRange

    from evenq.model.queue import MessageQueue

    return OffsetRange(queue=MessageQueue(TOPIC, "bench", queue_id), start=0, end=rows)


def _consume(batches: Iterator[Any], rows: int, step: str, drain: Any) -> None:
    count, writer = 0, None
    with ExitStack() as stack:
        for batch in batches:
            count += batch.num_rows
            if step == "hand-over":
                import pyarrow as pa

                if writer is None:
                    file = stack.enter_context(socket.create_connection(drain)).makefile("wb", 65_536)
                    writer = pa.RecordBatchStreamWriter(stack.enter_context(file), batch.schema)
                writer.write_batch(batch)
        if writer is not None:
            writer.close()
    if count != rows:
        raise SystemExit(f"{count} rows, not {rows}")


def drained(listening: socket.socket) -> None:
    """A process that drains the sockets of readers."""
    room = bytearray(DRAIN_BYTES)
    while True:
        accepted, _ = listening.accept()
        with accepted:
            while accepted.recv_into(room):
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-bytes", type=int, default=2 << 20)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenq-bench-")))
        server = stack.enter_context(servers.broker(folder, EVENQ_BROKER_BROKER_NAME="bench"))
        evenq = Evenq(server, 0)
        evenq.create(TOPIC, QUEUES)
        evenq.fill(options.rows)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        drain = context.Process(target=drained, args=(listening,), daemon=True)
        drain.start()
        stack.callback(drain.terminate)
        pool = stack.enter_context(context.Pool(1))
        costs: dict[str, list[float]] = {step: [] for step in options.steps}
        brokers: dict[str, list[float]] = {step: [] for step in options.steps}
        rates: dict[str, list[float]] = {step: [] for step in options.steps}
        for number in range(options.rounds + 1):
            for step in options.steps:
                before = servers.cpu_s(server.pid)
                step_facts = (
                    step,
                    server.address,
                    options.rows // QUEUES,
                    options.block_bytes,
                    listening.getsockname(),
                )
                cpu, took = pool.apply(work, step_facts)
                if number:  # the first one warms up
                    costs[step].append(cpu / options.rows * 1e6)
                    rates[step].append(options.rows / took)
                    brokers[step].append((servers.cpu_s(server.pid) - before) / options.rows * 1e6)
    for step in options.steps:
        found = costs[step]
        print(
            f"{step}: reader {statistics.median(found):.2f} us/row ({min(found):.2f} to {max(found):.2f}), "
            f"{statistics.median(rates[step]):,.0f} rows/s, "
            f"broker {statistics.median(brokers[step]):.2f} us/row"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
