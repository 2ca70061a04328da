"""A Spark job over a topic.

A batch read of everything that the topic holds now. Each order is a JSON object in the body of a message. The same
query with `readStream` is a stream (docs/guides/spark.md). The job needs `pip install ".[spark]"`; address, keys and
TLS are options of the source or variables of the environment.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def totals(spark: SparkSession, *, endpoint: str, topic: str) -> DataFrame:
    """Returns customer, orders and amount, ordered by customer."""
    messages = spark.read.format("evenq").option("endpoints", endpoint).option("subscribe", topic).load()
    order = f.from_json(f.col("body").cast("string"), "customer string, amount long")
    return (
        messages.select(order.alias("order"))
        .groupBy(f.col("order.customer").alias("customer"))
        .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
        .orderBy("customer")
    )


def main() -> None:
    spark = SparkSession.builder.appName("totals").getOrCreate()
    totals(spark, endpoint=os.environ.get("EVENQ_ENDPOINT", "127.0.0.1:8081"), topic="orders").show()
    spark.stop()


if __name__ == "__main__":
    main()
