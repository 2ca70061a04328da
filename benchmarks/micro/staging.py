"""What a row costs the broker when Spark's sink writes it: CPU of its process to stage and to publish it, without Spark.

    python benchmarks/micro/staging.py [--rows 400000] [--rounds 3] [--writers 2] [--batch 100000] [--together 1000]
                                       [--base DIR] [--front grpcio] [--profile FILE]

A broker in a process of its own gets blocks of 1 KiB rows as the sink sends them (`--together` rows a block, with tag, key
and two properties, as `benchmarks/spark.py` makes them), from `--writers` processes with four calls under way each; one
query for each `--batch` rows. Then the batches are decided one by one. CPU is that of the whole process, until it is at
rest again: threads for writes, syncs and the message index are in it. The floor is a store alone, in a process of its
own, that appends messages of the same bytes in groups of as many: what one write of a row takes. `--base`: the root of
another copy of the project, whose broker is measured in turn with this one. CPU time means something on a machine with
other work, where rows a second do not. Goal: 10 us for both together.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import servers  # noqa: E402  it stands one folder higher
from scan import perf  # noqa: E402
from spark_rows import body  # noqa: E402
from spark_servers import QUEUES, SINK, Evenq  # noqa: E402

IN_FLIGHT = 4
GOAL_US = 10.0
HEAD_BYTES, SYSTEM_BYTES = 1_080, 145  # of one such row as a message
REST_S = 0.4


def packed(first: int, count: int) -> bytes:
    """One block of rows, encoded."""
    import pyarrow as pa
    from pyspark_evenq.sink_blocks import pack

    numbers = range(first, first + count)
    batch = pa.RecordBatch.from_pydict({
        "body": pa.array([body(number) for number in numbers], pa.binary()),
        "tag": pa.array([f"t{number % 12}" for number in numbers]),
        "keys": pa.array([[f"key-{number}"] for number in numbers]),
        "properties": pa.array(
            [[("origin", "EWR"), ("carrier", f"C{number % 16}")] for number in numbers], pa.map_(pa.string(), pa.string())
        ),
    })  # fmt: skip
    encoded: bytes = pack(batch, first_row=first, born_ms=time.time_ns() // 1_000_000).SerializeToString()
    return encoded


def stage(address: str, query: str, partition: int, rows: int, together: int) -> bytes:
    """One attempt of one task, in a writer's process; returns its token."""
    from pyspark_evenq import sink_cluster

    from evenq.wire.stubs.evenq.v1 import staging_pb2

    token = uuid.uuid4().bytes
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        calls = []
        for sequence, first in enumerate(range(0, rows, together)):
            request = staging_pb2.StageRequest(
                topic=SINK, query_id=query, partition_id=partition, token=token, coordinator="bench",
                sequence=sequence,
            ).SerializeToString()  # fmt: skip
            content = packed(first, min(together, rows - first))
            block = staging_pb2.StageRequest(rows=staging_pb2.RowBlock.FromString(content)).SerializeToString()
            calls.append(pool.submit(sink_cluster.stage, address, request + block, timeout_ms=60_000))
            if len(calls) > IN_FLIGHT:
                calls.pop(0).result()
        for call in calls:
            call.result()
    return token


class Measured:
    """One broker and what its rows cost."""

    def __init__(self, server: servers.Server) -> None:
        self.pid, self.address = server.pid, server.address
        self.evenq = Evenq(server, 0)
        self.staged: list[float] = []
        self.published: list[float] = []

    def round(self, pool: Any, asked: argparse.Namespace) -> None:
        """All rows, batch by batch of queries of their own."""
        from pyspark_evenq import sink_cluster

        queries: dict[str, list[bytes]] = {}
        share = asked.batch // asked.writers

        def stage_all() -> None:
            for _ in range(asked.rows // asked.batch):
                query = f"job-{uuid.uuid4()}"
                sink_cluster.coordinator_of({"bench": self.address}, query, 0, [SINK], timeout_ms=60_000)
                tasks = [(self.address, query, number, share, asked.together) for number in range(asked.writers)]
                queries[query] = pool.starmap(stage, tasks, chunksize=1)

        def decide_all() -> None:
            for query, tokens in queries.items():
                winners = [sink_cluster.Winner(token, ("bench",)) for token in tokens]
                sink_cluster.decide(self.address, query, 0, [SINK], winners, timeout_ms=600_000)

        rows = share * asked.writers * (asked.rows // asked.batch)
        self.staged.append(cost(self.pid, stage_all) / rows * 1e6)
        self.published.append(cost(self.pid, decide_all) / rows * 1e6)

    def shown(self) -> str:
        """Medians with both ends."""
        both = [one + other for one, other in zip(self.staged, self.published, strict=True)]
        parts = [("staged", self.staged), ("published", self.published), ("both", both)]
        return ", ".join(
            f"{name} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for name, values in parts
        )


def cost(pid: int, work: Callable[[], object]) -> float:
    """CPU seconds of a process for some work, until it is at rest."""
    begun = servers.cpu_s(pid)
    work()
    seen = -1.0
    while (now := servers.cpu_s(pid)) - seen > REST_S / 10:  # a tenth of a core: other duties of an idle broker
        seen = now
        time.sleep(REST_S)
    return now - begun


def floor(rows: int, together: int) -> float:
    """CPU microseconds a row of a store alone; run in a process of its own."""
    from evenq.runtime.clock import SystemClock
    from evenq.store import Append, MessageStore, StoreOptions

    async def run(folder: Path) -> float:
        store = await MessageStore.open(
            folder, StoreOptions(), clock=SystemClock(), broker_name="bench", on_state=lambda *_: None,
            on_snapshot=lambda _: None,
        )  # fmt: skip
        head, system = os.urandom(HEAD_BYTES), os.urandom(SYSTEM_BYTES)
        begun = time.process_time()
        for _ in range(rows // together):
            await store.append([Append(1, 0, 7, 0, head, system) for _ in range(together)])
        took = time.process_time() - begun
        await store.close()
        return took / rows * 1e6

    with tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder:
        return asyncio.run(run(Path(folder)))


def opened(stack: ExitStack, asked: argparse.Namespace, root: Path | None) -> Measured:
    """A broker of this copy of the project, or of the one at `root`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenq-bench-")))
    settings = {"EVENQ_BROKER_BROKER_NAME": "bench", "EVENQ_BROKER_FRONT": asked.front}
    if root is not None:
        settings["PYTHONPATH"] = f"{root / 'src'}:{root / 'services' / 'broker'}"
    found = Measured(stack.enter_context(servers.broker(folder, **settings)))
    found.evenq.create(SINK, QUEUES)
    return found


def main() -> int:
    """Exit code 1 if the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=100_000, help="rows of one decision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--together", type=int, default=1_000, help="rows of one block")
    parser.add_argument("--front", choices=["grpcio", "http2"], default="grpcio")
    parser.add_argument("--base", type=Path, default=None, metavar="DIR", help="root of another copy of the project")
    parser.add_argument("--profile", default="", help="perf record the broker's rounds into this file")
    asked = parser.parse_args()
    with ExitStack() as stack:
        brokers = {"this": opened(stack, asked, None)}
        if asked.base is not None:
            brokers["base"] = opened(stack, asked, asked.base)
        spawn = multiprocessing.get_context("spawn")
        pool = stack.enter_context(spawn.Pool(asked.writers))
        if asked.profile:
            stack.enter_context(perf(brokers["this"].pid, asked.profile))
        floors: list[float] = []
        for number in range(asked.rounds):
            for name in sorted(brokers, reverse=bool(number % 2)):
                brokers[name].round(pool, asked)
                print(f"  {name}: {brokers[name].staged[-1]:.2f} + {brokers[name].published[-1]:.2f} us/row", flush=True)
            with spawn.Pool(1) as alone:
                floors.append(alone.apply(floor, (asked.rows // 4, asked.together)))
        one_write = statistics.median(floors)
    for name, broker in brokers.items():
        print(f"{name}: {broker.shown()} us/row")
    print(f"floor, one append of a row: {one_write:.2f} ({min(floors):.2f} to {max(floors):.2f}) us/row")
    this = brokers["this"]
    seen = statistics.median(map(sum, zip(this.staged, this.published, strict=True)))
    print(f"{asked.rows:,} rows in blocks of {asked.together}, {asked.front}: {seen:.2f} us/row for both, "
          f"{seen / one_write:.1f} times the floor; goal {GOAL_US:.0f}: {'yes' if seen <= GOAL_US else 'no'}")  # fmt: skip
    return 0 if seen <= GOAL_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
