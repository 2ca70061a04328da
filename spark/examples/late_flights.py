"""Flights that left late, as a stream from one topic to another, each written exactly once.

    spark-submit spark/examples/late_flights.py --endpoints 127.0.0.1:8081 --source flights --target late \
        --group late-desk --checkpoint checkpoints/late --once

With `--once` the query ends when it has written all flights that the topic held at the start. If calls must be signed,
`--credentials-file` names a TOML file that the driver and every executor can read; `spark/examples/kubernetes` mounts
it from a Secret. With SPARK_REMOTE=sc://HOST:15002 the program is a client of Spark Connect; all paths are the
server's. A message body is one flight as in `delay_by_carrier.py`. Late flights keep their tag and keys.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

COLUMNS = "tag string, keys array<string>, body binary"


def late(flights: DataFrame, minutes: int) -> DataFrame:
    """Returns body (carrier and delay as JSON), tag and keys of flights at least `minutes` late."""
    delay = f.from_json(f.col("body").cast("string"), "dep_delay string")["dep_delay"].try_cast("double")
    found = flights.withColumn("delay", delay).where(f.col("delay") >= minutes)
    return found.select(f.to_json(f.struct(f.col("tag").alias("carrier"), "delay")).alias("body"), "tag", "keys")


def start(
    spark: SparkSession,
    calls: Mapping[str, str],
    *,
    source: str,
    target: str,
    group: str,
    checkpoint: str,
    minutes: int,
    once: bool,
) -> StreamingQuery:
    """Starts the query. `calls`: options of source and sink for calls to brokers."""
    flights = (
        spark.readStream.format("evenq")
        .schema(COLUMNS)
        .options(**calls)
        .option("subscribe", source)
        .option("group", group)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        late(flights, minutes)
        .writeStream.format("evenq")
        .options(**calls)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoints", required=True, help="host:port of brokers, comma-separated")
    parser.add_argument("--source", required=True, help="topic of all flights")
    parser.add_argument("--target", required=True, help="topic of late flights")
    parser.add_argument("--group", required=True, help="consumer group of the query")
    parser.add_argument("--checkpoint", required=True, help="folder of the query's state")
    parser.add_argument("--credentials-file", default="", help="TOML file with access_key and secret_key")
    parser.add_argument("--minutes", type=int, default=15, help="smallest delay of a late flight, minutes")
    parser.add_argument("--once", action="store_true", help="end when all present flights are written")
    given = parser.parse_args(arguments)
    calls = {"endpoints": given.endpoints}
    if given.credentials_file:
        calls["credentialsFile"] = given.credentials_file
    builder: SparkSession.Builder = SparkSession.builder
    spark = builder.appName("late-flights").getOrCreate()
    names = {name: getattr(given, name) for name in ("source", "target", "group", "checkpoint")}
    start(spark, calls, **names, minutes=given.minutes, once=given.once).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
