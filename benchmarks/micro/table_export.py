"""CPU and memory of an export of 1 KiB messages to a table, beside plain pyarrow that writes the same rows.

    python benchmarks/micro/table_export.py [--rows 200000] [--rounds 3] [--body-bytes 1024] [--profile FILE]

A broker in its own process is filled with rows in four queues. Then this process exports the topic to a new folder,
with the calls and files of `evenq table export`, and writes the same rows from memory with a plain
`pyarrow.parquet.ParquetWriter` (zstd, no statistics beyond its defaults): the floor. Both in turn, round by round. CPU
time of all threads of this process is valid on a machine with other work, rows per second are not. Goals: 6 us per
message, and 256 MB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
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
from evenq.testing import LocalCluster

TOPIC, QUEUES, BATCH = "orders", 4, 1_000


def fill(endpoint: str, rows: int, body_bytes: int) -> None:
    """Sends rows like those of `benchmarks/spark.py`: half random, so that zstd has work."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    half = body_bytes // 2
    with evenq.Producer(endpoint=endpoint) as producer:
        for first in range(0, rows, BATCH):
            producer.send_batch(
                [
                    evenq.Message(
                        topic=TOPIC,
                        body=os.urandom(half) + b"x" * (body_bytes - half),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body-bytes", type=int, default=1_024)
    parser.add_argument("--profile", metavar="FILE", help="write a profile of the first export, for pstats")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, LocalCluster(nameservers=0, rebalancer=False) as cluster:
        folder = Path(place)
        fill(cluster.endpoint, options.rows, options.body_bytes)
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
