"""Mean departure delay per carrier, as a streaming job over all messages that the topic held at the start.

    python spark/examples/delay_by_carrier_stream.py --endpoint 127.0.0.1:8081 --topic flights --group spark \
        --checkpoint checkpoints/delays --out delays.json

A run with the same checkpoint reads only new messages and updates the means: each message counts exactly once. Brokers
show the group's progress (`evenq group show`). For messages and results see `delay_by_carrier.py`.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from delay_by_carrier import COLUMNS, by_carrier, session, write
from pyspark.sql import DataFrame, SparkSession


def delay_by_carrier_stream(
    spark: SparkSession, *, endpoint: str, topic: str, group: str, checkpoint: Path, out: Path, batch_max: int
) -> int:
    """Reads to the end in batches of at most `batch_max` messages and returns the number of batches."""
    flights = (
        spark.readStream.format("evenq")
        .schema(COLUMNS)
        .option("endpoints", endpoint)
        .option("subscribe", topic)
        .option("group", group)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_max)
        .load()
    )

    def replace(means: DataFrame, _batch: int) -> None:
        write(means.collect(), out)  # the whole result each time: a repeated batch changes nothing

    query = (
        by_carrier(flights)
        .writeStream.outputMode("complete")
        .foreachBatch(replace)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(query.recentProgress)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoint", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True, help="consumer group of the query; brokers show its progress")
    parser.add_argument("--checkpoint", required=True, type=Path, help="folder of the query's state")
    parser.add_argument("--out", required=True, type=Path, help="JSON file to write")
    parser.add_argument("--batch-max", type=int, default=150_000, help="messages in one micro-batch")
    given = parser.parse_args(arguments)
    spark = session("delay-by-carrier-stream")
    try:
        delay_by_carrier_stream(
            spark,
            endpoint=given.endpoint,
            topic=given.topic,
            group=given.group,
            checkpoint=given.checkpoint,
            out=given.out,
            batch_max=given.batch_max,
        )
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
