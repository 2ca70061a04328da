"""Carriers with three late flights in a row, found with state that lives over micro-batches (`transformWithState`).

    spark-submit spark/examples/late_in_a_row.py --endpoints 127.0.0.1:8081 --source flights --target alarms \
        --group alarm-desk --checkpoint checkpoints/alarms --once

"In a row" needs an order: send the flights with their carrier as message group, so that each carrier's are in one
queue. Spark keeps the state in the checkpoint beside the offsets, and the sink writes each alarm once. Options and
message bodies are as in `late_flights.py`; Spark Connect works as well.
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
    """Counts a carrier's late flights; one that is on time begins anew."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark at the beginning of each task."""
        self._late = handle.getValueState("late", "flights int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  Spark's names
        """The rows of one carrier in one micro-batch."""
        late = self._late.get()[0] if self._late.exists() else 0
        for row in sorted(rows, key=lambda row: row.queueOffset):  # a shuffle keeps no order
            late = late + 1 if row.delay is not None and row.delay >= LATE_MINUTES else 0
            if late == IN_A_ROW:
                yield Row(body=f"{key[0]}: {IN_A_ROW} late flights in a row", tag=key[0])
        self._late.update((late,))

    def close(self) -> None:
        """Nothing is held."""


def start(
    spark: SparkSession, calls: Mapping[str, str], *, source: str, target: str, group: str, checkpoint: str, once: bool
) -> StreamingQuery:
    """Start the query. `calls`: how brokers are called, for the source and the sink alike."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # the one that transformWithState needs
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
    """Run the job from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("endpoints", "source", "target", "group", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--once", action="store_true", help="end when all that is there now is written")
    given = parser.parse_args(arguments)
    builder: SparkSession.Builder = SparkSession.builder
    query = start(
        builder.appName("late-in-a-row").getOrCreate(), {"endpoints": given.endpoints}, source=given.source,
        target=given.target, group=given.group, checkpoint=given.checkpoint, once=given.once,
    )  # fmt: skip
    query.awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
