"""Carriers with three late flights in a row, found with state across micro-batches (`transformWithState`).

    spark-submit spark/examples/late_in_a_row.py --endpoints 127.0.0.1:8081 --source flights --target alarms \
        --group alarm-desk --checkpoint checkpoints/alarms --once

"In a row" needs an order: send flights with the carrier as message group, so that all flights of a carrier are in one
queue. Spark keeps the state and the offsets in the checkpoint, and the sink writes each alarm once. Options and message
bodies are those of `late_flights.py`; Spark Connect works too.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

LATE_MINUTES = 15
IN_A_ROW = 3
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class LateInARow(StatefulProcessor):
    """A counter of a carrier's late flights; a flight on time resets it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._late = handle.getValueState("late", "flights int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  Spark's names
        """Yields alarms for the rows of one carrier in one micro-batch."""
        late = self._late.get()[0] if self._late.exists() else 0
        for row in sorted(rows, key=lambda row: row.queueOffset):  # a shuffle does not keep the order
            late = late + 1 if row.delay is not None and row.delay >= LATE_MINUTES else 0
            if late == IN_A_ROW:
                yield Row(body=f"{key[0]}: {IN_A_ROW} late flights in a row", tag=key[0])
        self._late.update((late,))

    def close(self) -> None:
        """Does nothing; the interface requires it."""


def start(
    spark: SparkSession, calls: Mapping[str, str], *, source: str, target: str, group: str, checkpoint: str, once: bool
) -> StreamingQuery:
    """Starts the query. `calls`: options of source and sink for calls to brokers."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # transformWithState requires it
    flights = (
        spark.readStream.format("evenq")
        .schema("tag string, queueOffset long, body binary")
        .options(**calls)
        .option("subscribe", source)
        .option("group", group)
        .option("startingOffsets", "earliest")
        .load()
    )
    delay = f.from_json(f.col("body").cast("string"), "dep_delay string")["dep_delay"].try_cast("double")
    alarms = (
        flights.select("tag", "queueOffset", delay.alias("delay"))
        .groupBy("tag")
        .transformWithState(LateInARow(), "body string, tag string", "append", "none")
    )
    writer = (
        alarms.writeStream.format("evenq")
        .outputMode("append")
        .options(**calls)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("endpoints", "source", "target", "group", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--once", action="store_true", help="end when all present flights are processed")
    given = parser.parse_args(arguments)
    builder: SparkSession.Builder = SparkSession.builder
    spark = builder.appName("late-in-a-row").getOrCreate()
    names = {name: getattr(given, name) for name in ("source", "target", "group", "checkpoint")}
    start(spark, {"endpoints": given.endpoints}, **names, once=given.once).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
