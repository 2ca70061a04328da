"""A streaming job that counts flights as a member of a consumer group until SIGTERM, each exactly once.

    python spark/examples/count_flights_stream.py --endpoint 127.0.0.1:8081 --topic flights --group counters \
        --checkpoint checkpoints/counters --out counted

Each batch writes a folder of JSON lines, `{"flight", "carrier", "dep_delay"}`. A repeated batch replaces its folder, so
that the folders hold each flight once. Rows and lag from `EvenqProgressListener` are printed as JSON lines, and with
`--metrics-port` they are also at `/metrics`. For the other options see `delay_by_carrier_stream.py`.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from delay_by_carrier import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark_evenq import EvenqProgressListener

SAY_S = 0.25


def count_flights(spark: SparkSession, options: dict[str, str], *, checkpoint: Path, out: Path) -> StreamingQuery:
    flights = (
        spark.readStream.format("evenq")
        .schema("tag string, body binary, properties map<string,string>")
        .options(startingOffsets="earliest", **options)
        .load()
        .select(
            f.col("properties")["flight"].alias("flight"),
            f.col("tag").alias("carrier"),
            f.get_json_object(f.col("body").cast("string"), "$.dep_delay").alias("dep_delay"),
        )
    )

    def replace(counted: DataFrame, batch: int) -> None:
        counted.write.mode("overwrite").json(str(out / f"batch-{batch:06}"))

    writer = flights.writeStream.queryName(options["group"]).foreachBatch(replace)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def until(stop: threading.Event, query: StreamingQuery, say: Callable[[], None]) -> None:
    """Waits for `stop`, then ends the query. Raises the error of a query that ends before."""
    while not stop.wait(SAY_S):
        say()
        if not query.isActive:
            query.awaitTermination()
            return
    query.stop()
    say()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoint", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True, help="consumer group of the query")
    parser.add_argument("--checkpoint", required=True, type=Path, help="folder of the query's state")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--batch-max", type=int, default=50_000, help="messages in one micro-batch")
    parser.add_argument("--option", nargs="*", default=[], metavar="NAME=VALUE", help="more options of the source")
    parser.add_argument("--metrics-port", type=int, help="port of /metrics (default: none)")
    given = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    options = {
        "endpoints": given.endpoint,
        "subscribe": given.topic,
        "group": given.group,
        "maxOffsetsPerTrigger": str(given.batch_max),
        **dict(one.split("=", 1) for one in given.option),
    }
    listener = EvenqProgressListener(port=given.metrics_port)
    spark = session("count-flights")
    spark.streams.addListener(listener)

    def say() -> None:
        for query in listener.queries():
            print(json.dumps({"rows": query.rows, "lag": query.lag.total, "queues": len(query.lags)}), flush=True)

    try:
        until(stop, count_flights(spark, options, checkpoint=given.checkpoint, out=given.out), say)
    finally:
        spark.stop()
        listener.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
