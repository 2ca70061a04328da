"""A declarative pipeline: flights of a topic as a table, mean delays as a view, late flights in another topic.

`spark-pipelines` runs it; `spark-pipeline.yml` configures brokers and topics.
"""

# ruff: noqa: INP001  scripts, not a package
from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
ENDPOINTS, SOURCE, TARGET, GROUP = (
    spark.conf.get(f"flights.{name}") or "" for name in ("endpoints", "source", "target", "group")
)


@dp.table(comment="every flight of the topic, once")
def flights() -> DataFrame:
    """Returns carrier and delay in minutes; the delay of a cancelled flight is null."""
    topic = (
        spark.readStream.format("evenq")
        .schema("tag string, body binary")
        .option("endpoints", ENDPOINTS)
        .option("subscribe", SOURCE)
        .option("group", GROUP)
        .option("startingOffsets", "earliest")
        .load()
    )
    delay = f.from_json(f.col("body").cast("string"), "dep_delay string")["dep_delay"].try_cast("double")
    return topic.select(f.col("tag").alias("carrier"), delay.alias("delay"))


@dp.materialized_view(comment="computed again from the table in each run")
def delay_by_carrier() -> DataFrame:
    mean = f.coalesce(f.avg("delay"), f.lit(0.0))
    return spark.read.table("flights").groupBy("carrier").agg(f.count("*").alias("flights"), mean.alias("mean_delay"))


dp.create_sink("late_topic", "evenq", {"endpoints": ENDPOINTS, "topic": TARGET})


@dp.append_flow(target="late_topic")
def late() -> DataFrame:
    found = spark.readStream.table("flights").where("delay >= 15")
    return found.select(f.to_json(f.struct("carrier", "delay")).alias("body"), f.col("carrier").alias("tag"))
