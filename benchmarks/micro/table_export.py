"""CPU and memory of an export of 1 KiB messages to a table, beside plain pyarrow that writes the same rows.

    python benchmarks/micro/table_export.py [--rows 200000] [--rounds 3] [--body-bytes 1024] [--typed] [--profile FILE]

A broker in its own process is filled with rows in four queues. Then this process exports the topic to a new folder,
with the calls and files of `evenq table export`, and writes the same rows from memory with a plain
`pyarrow.parquet.ParquetWriter` (zstd, no statistics beyond its defaults): the floor. Both in turn, round by round. CPU
time of all threads of this process is valid on a machine with other work, rows per second are not. Goals: 6 us per
message, and 256 MB of memory.

With --typed, bodies are JSON objects with six fields that become columns, a list of numbers, and a text. Exports with
and without typed columns alternate, and their ratio is printed instead of the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import evenq
from evenq.client.topic_source import TopicSource
from evenq.tables.exporting import ExportPlan, TopicExport
from evenq.tables.folder import table_target
from evenq.tables.layout import TableSettings
from evenq.tables.typed.json_schema import json_schema
from evenq.tables.typed.stored import keep_schema
from evenq.testing import LocalCluster

TOPIC, QUEUES, BATCH = "orders", 4, 1_000


PROPERTIES = {
    "customer": {"type": "string"},
    "total": {"type": "number"},
    "paidAt": {"type": "string", "format": "date-time"},
    "number": {"type": "integer"},
    "paid": {"type": "boolean"},
    "state": {"type": "string"},
}


def body_of(number: int, body_bytes: int, *, typed: bool) -> bytes:
    """Returns a body, half random, so that zstd has work."""
    half = body_bytes // 2
    if not typed:
        return os.urandom(half) + b"x" * (body_bytes - half)
    values = {
        "customer": f"c{number % 1_000}", "total": number / 4, "paidAt": f"2026-01-31T12:{number % 60:02d}:00Z",
        "number": number, "paid": True, "state": ("new", "paid", "sent")[number % 3], "lines": [1, 2, 3],
        "random": os.urandom(half // 2).hex(),
    }  # fmt: skip
    room = body_bytes - len(json.dumps(values)) - len(', "text": ""')
    return json.dumps(values | {"text": "x" * max(0, room)}).encode()


def fill(endpoint: str, rows: int, body_bytes: int, *, typed: bool) -> None:
    """Sends rows like those of `benchmarks/spark.py`."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    with evenq.Producer(endpoint=endpoint) as producer:
        for first in range(0, rows, BATCH):
            producer.send_batch(
                [
                    evenq.Message(
                        topic=TOPIC,
                        body=body_of(number, body_bytes, typed=typed),
                        tag="new",
                        keys=(f"k{number}",),
                        properties={"region": "eu"},
                    )
                    for number in range(first, min(rows, first + BATCH))
                ]
            )


async def export(endpoint: str, folder: Path) -> int:
    async with TopicSource(endpoint=endpoint) as source:
        plan = ExportPlan(topic=TOPIC, settings=TableSettings(), settle_ms=0, tail=True, reports=False)
        turn = await TopicExport(source, table_target(str(folder)), plan, clock_ms=source.clock.now_ms).turn()
    for failure in turn.failures.values():
        raise failure
    return turn.rows


def plain(batches: list[pa.RecordBatch], path: Path) -> None:
    with pq.ParquetWriter(path, batches[0].schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


def compare(endpoint: str, folder: Path, rounds: int) -> None:
    """Exports with and without typed columns in turns."""
    schema = json_schema(json.dumps({"type": "object", "properties": PROPERTIES}), "the schema")
    figures: dict[str, list[float]] = {"plain": [], "typed": []}
    for number in range(rounds):
        for kind, times in figures.items():
            place = folder / f"{kind}{number}"
            if kind == "typed":
                keep_schema(table_target(str(place)), TOPIC, schema)
            before = time.process_time()
            rows = asyncio.run(export(endpoint, place))
            times.append((time.process_time() - before) * 1e6 / rows)
            size = sum(path.stat().st_size for path in place.rglob("*.parquet")) / rows
            print(f"round {number + 1}: {kind} {times[-1]:.2f} us a message, {size:.0f} bytes", flush=True)
    ratios = [typed / plain for plain, typed in zip(figures["plain"], figures["typed"], strict=True)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    medians = {kind: statistics.median(times) for kind, times in figures.items()}
    print(
        f"plain {medians['plain']:.2f} us, typed {medians['typed']:.2f} us a message; ratio "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), memory {memory} MB (goal 256)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body-bytes", type=int, default=1_024)
    parser.add_argument("--typed", action="store_true", help="JSON bodies, exported with and without typed columns")
    parser.add_argument("--profile", metavar="FILE", help="write a profile of the first export, for pstats")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, LocalCluster(nameservers=0, rebalancer=False) as cluster:
        folder = Path(place)
        fill(cluster.endpoint, options.rows, options.body_bytes, typed=options.typed)
        if options.typed:
            compare(cluster.endpoint, folder, options.rounds)
            return
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        exported: list[float] = []
        floor: list[float] = []
        batches: list[pa.RecordBatch] = []
        for number in range(options.rounds):
            before = time.process_time()
            rows = asyncio.run(export(cluster.endpoint, folder / str(number)))
            exported.append((time.process_time() - before) * 1e6 / rows)
            profile.disable()
            if not batches:
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # before the rows are in memory
                table = ds.dataset(folder / "0" / TOPIC, format="parquet").to_table()
                batches = [pa.Table.from_batches([one]).combine_chunks().to_batches()[0] for one in table.to_batches()]
            before = time.process_time()
            plain(batches, folder / "plain.parquet")
            floor.append((time.process_time() - before) * 1e6 / rows)
            print(f"round {number + 1}: export {exported[-1]:.2f} us, floor {floor[-1]:.2f} us a message", flush=True)
        if options.profile:
            profile.dump_stats(options.profile)
    print(f"export {statistics.median(exported):.2f} us a message (goal 6), memory {memory} MB (goal 256)")
    print(f"floor  {statistics.median(floor):.2f} us a message: plain pyarrow, the same rows from memory")


if __name__ == "__main__":
    main()
