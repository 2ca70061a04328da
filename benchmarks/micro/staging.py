"""CPU of the broker per row when Spark's sink writes it: to stage it and to publish it, without Spark.

    python benchmarks/micro/staging.py [--rows 400000] [--batch 100000] [--rounds 3] [--together 1000] [--base DIR]
                                       [--profile FILE]

A broker in its own process gets encoded requests as if over gRPC, four at a time: blocks of 1 KiB rows as the sink
packs them (`--together` rows per block, with tag, key and two properties, as in `benchmarks/spark.py`), then the
decision, batch by batch, each as a separate query. Shown is the CPU of the loop's thread and of the whole process,
which includes the threads that write, sync and keep the message index. The floor is the store of the same process,
which appends messages of the same bytes in groups of the same size: the cost of one write per row. `--base`: the root
of another copy of the project, whose broker is measured in turn with this one. `--folder /dev/shm` excludes the disk.
Goal: 10 us for both together, of the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rounds import folder_in, settle_collector

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evenq.runtime.allocator import keep_freed_memory
from evenq.runtime.clock import SystemClock
from evenq.serving.rpc import RpcContext
from evenq.store import Append
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import staging_pb2

IN_FLIGHT = 4
GOAL_US = 10.0
TOPIC = "written"
HEAD_BYTES, SYSTEM_BYTES = 1_080, 145  # of one such row as a message
FILLING = "abcdefghijklmnopqrstuvwxyz012345" * 32
CONTEXT = RpcContext("", [], "127.0.0.1:1", None)
PHASES = ("staged", "published", "floor")


def block(first: int, count: int) -> staging_pb2.RowBlock:
    """Rows as the sink packs them."""
    numbers = range(first, first + count)
    rows = staging_pb2.RowBlock(count=count, first_row=first, born_ms=time.time_ns() // 1_000_000)
    rows.bodies, rows.body_ends = texts([(f"{number:08d}" + FILLING)[:1024] for number in numbers])
    rows.tags, rows.tag_ends = texts([f"t{number % 12}" for number in numbers])
    rows.keys, rows.key_ends = texts([f"key-{number}" for number in numbers])
    rows.key_rows = struct.pack(f"<{count}i", *range(1, count + 1))
    rows.property_names, rows.property_name_ends = texts(["origin", "carrier"] * count)
    rows.property_values, rows.property_value_ends = texts(
        [text for number in numbers for text in ("EWR", f"C{number % 16}")]
    )
    rows.property_rows = struct.pack(f"<{count}i", *range(2, 2 * count + 1, 2))
    return rows


def texts(values: list[str]) -> tuple[bytes, bytes]:
    """A column and its ends."""
    ends, end = [], 0
    for value in values:
        end += len(value)
        ends.append(end)
    return "".join(values).encode(), struct.pack(f"<{len(ends)}i", *ends)


class Rounds:
    """The rounds of one broker, in its process."""

    def __init__(self, app: Any, calls: Any, options: argparse.Namespace, profile: cProfile.Profile | None) -> None:
        self._app, self._calls, self._options, self._profile = app, calls, options, profile
        self._queries = 0

    async def round(self) -> dict[str, tuple[float, float]]:
        """Microseconds a row: of the loop, of the process."""
        options, rows = self._options, self._options.rows
        took = {phase: [0.0, 0.0] for phase in PHASES}
        for _ in range(rows // options.batch):
            self._queries += 1
            query, token = f"query-{self._queries}", random.randbytes(16)
            await self._calls.begin(
                staging_pb2.BeginRequest(query_id=query, topics=[TOPIC], coordinator="bench").SerializeToString(),
                CONTEXT,
            )
            requests = [
                staging_pb2.StageRequest(
                    topic=TOPIC,
                    query_id=query,
                    token=token,
                    coordinator="bench",
                    sequence=sequence,
                    rows=block(first, options.together),
                ).SerializeToString()
                for sequence, first in enumerate(range(0, options.batch, options.together))
            ]
            await self._timed(took["staged"], self._stage(requests))
            decision = staging_pb2.DecideRequest(
                query_id=query, topics=[TOPIC], winners=[staging_pb2.Winner(token=token, brokers=["bench"])]
            ).SerializeToString()
            await self._timed(took["published"], self._decide(decision))
        head, system = os.urandom(HEAD_BYTES), os.urandom(SYSTEM_BYTES)
        await self._timed(took["floor"], self._append(head, system))
        return {phase: (loop / rows * 1e6, whole / rows * 1e6) for phase, (loop, whole) in took.items()}

    async def _timed(self, sums: list[float], work: Any) -> None:
        if self._profile is not None:
            self._profile.enable()
        loop, whole = time.thread_time(), time.process_time()
        await work
        sums[0] += time.thread_time() - loop
        sums[1] += time.process_time() - whole
        if self._profile is not None:
            self._profile.disable()

    async def _stage(self, requests: list[bytes]) -> None:
        left = iter(requests)

        async def writer() -> None:
            for request in left:
                response = staging_pb2.StageResponse.FromString(await self._calls.stage(request, CONTEXT))
                assert response.status.code == 20_000, response.status

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(writer())

    async def _decide(self, request: bytes) -> None:
        await self._calls.decide(request, CONTEXT)
        broker = self._app.broker
        store = broker.ledger.store
        while len(broker.staging.table) or store.stats.waiting:  # a busy disk: the answer waits 20 s at most
            await broker.runtime.clock.sleep_ms(10)

    async def _append(self, head: bytes, system: bytes) -> None:
        store, together = self._app.broker.ledger.store, self._options.together
        topic_id = self._app.broker.catalog.topics.get("floor").topic_id
        for _ in range(self._options.rows // together):
            await store.append([Append(topic_id, 0, 7, 0, head, system) for _ in range(together)])


async def serve(folder: Path, options: argparse.Namespace) -> None:
    """Runs a broker that answers each line of input with the figures of one round."""
    from evenq_broker.app import BrokerApp
    from evenq_broker.rpc.staging.staging import StagingCalls
    from evenq_broker.settings import BrokerSettings

    settings = BrokerSettings(
        port=0, metrics_port=-1, broker_name="bench", default_queues=4, store={"path": str(folder)}
    )
    app: Any = BrokerApp(settings, clock=SystemClock(), rng=random.Random(1), net=GrpcNet())
    await app.start()
    for topic in (TOPIC, "floor"):
        await app.broker.cluster_catalog.ensure_topic(topic)
    profile = cProfile.Profile() if options.profile else None
    rounds = Rounds(
        app,
        StagingCalls(app.broker.kernel, cluster_catalog=app.broker.cluster_catalog, staging=app.broker.staging),
        options,
        profile,
    )
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await rounds.round()), flush=True)
    if profile is not None:
        profile.dump_stats(options.profile)
    await app.close()


def child(stack: ExitStack, root: Path | None) -> subprocess.Popen[str]:
    """A broker's process, with the code of this copy of the project or of the one at `root`."""
    environment = dict(os.environ)
    if root is not None:
        environment["PYTHONPATH"] = f"{root / 'src'}:{root / 'services' / 'broker'}"
    process = subprocess.Popen(
        [sys.executable, *sys.argv, "--serve"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait)
    assert process.stdin is not None
    stack.callback(process.stdin.close)
    return process


def next_round(process: subprocess.Popen[str]) -> dict[str, tuple[float, float]]:
    """Figures of one more round."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a broker ended; see its output above")
    found: dict[str, tuple[float, float]] = json.loads(line)
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    """Exit code 1 if the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=100_000, help="rows of one decision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--together", type=int, default=1_000, help="rows of one block")
    parser.add_argument("--base", type=Path, default=None, metavar="DIR", help="root of another copy of the project")
    parser.add_argument("--profile", default="", help="cProfile of what is measured; the figures mean nothing then")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        import uvloop

        keep_freed_memory()
        settle_collector()
        with folder_in(options.folder) as folder:
            uvloop.run(serve(folder, options))
        return 0
    seen: dict[str, list[dict[str, tuple[float, float]]]] = {"this": []}
    with ExitStack() as stack:
        children = {"this": child(stack, None)}
        if options.base is not None:
            children["base"], seen["base"] = child(stack, options.base), []
        for number in range(options.rounds + 1):
            for name in sorted(children, reverse=bool(number % 2)):
                found = next_round(children[name])
                if number:  # the first one warms up
                    seen[name].append(found)
                    print(f"  {name}: " + ", ".join(f"{phase} {found[phase][1]:.2f}" for phase in PHASES), flush=True)
    print(f"CPU us/row, median (least to most); {options.rows:,} rows of 1 KiB in blocks of {options.together}")
    for name, rounds in seen.items():
        for phase in PHASES:
            loop, whole = ([one[phase][at] for one in rounds] for at in (0, 1))
            print(f"{name:<5} {phase:<10} process {spread(whole)}, loop {spread(loop)}")
    both = statistics.median(one["staged"][1] + one["published"][1] for one in seen["this"])
    print(f"staged and published: {both:.2f} us/row; goal {GOAL_US:.0f}: {'yes' if both <= GOAL_US else 'no'}")
    return 0 if both <= GOAL_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
