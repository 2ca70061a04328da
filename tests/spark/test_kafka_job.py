"""Jobs that were written for Spark's Kafka source and sink run with topics of evenq with two lines changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_evenq.brokers import connection

from evenq.columns.extra_columns import partition_of
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

pytestmark = pytest.mark.slow

FORMAT = "evenq"  # was: "kafka"
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
DOCUMENTED = StructType([
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
    StructField("headers", HEADERS),
])  # fmt: skip
"""The columns in Spark's guide to Kafka."""


@pytest.fixture
def records(topic: Any) -> list[tuple[Any, ...]]:
    """What the job is to see: (partition, offset, key, value, headers) of three messages on each queue."""
    wanted = []
    for broker, address in enumerate(topic.endpoints.split(",")):
        for queue in topic.queues[2 * broker : 2 * broker + 2]:
            messages = []
            for number in range(3):
                message = definition_pb2.Message(body=f"delay {number}".encode())
                message.system_properties.message_id = f"{queue}-{number}"
                if number:
                    message.system_properties.keys.append(f"UA{number}")
                    message.user_properties["carrier"] = "UA"
                messages.append(message)
                key, headers = (f"UA{number}", [("carrier", "UA")]) if number else (None, None)
                wanted.append((partition_of(queue), number, key, f"delay {number}", headers))
            request = data_pb2.PublishRequest(
                queue=common_pb2.Queue(topic=topic.name, broker_name=queue.broker_name, queue_id=queue.queue_id),
                messages=messages,
            )
            response = connection.unary(
                address, "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000
            )
            check(data_pb2.PublishResponse.FromString(response).status)
    return sorted(wanted, key=lambda record: record[:2])


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row.partition,
            row.offset,
            row.key,
            row.value,
            None if row.headers is None else [(one.key, one.value.decode()) for one in row.headers],
        )
        for row in frame.collect()
    )


COLUMNS = ("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset", "headers")


def test_a_job_of_kafkas_source_runs_with_another_format_and_address(
    spark: Any, topic: Any, records: list[tuple[Any, ...]]
) -> None:
    frame = (
        spark.read.format(FORMAT)
        .option("kafka.bootstrap.servers", topic.endpoints)  # was: the address of Kafka
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    assert frame.schema == DOCUMENTED
    assert rows(frame.selectExpr(*COLUMNS)) == records
    assert frame.select("topic", "timestampType").distinct().collect() == [(topic.name, 1)]


def test_a_streaming_job_of_kafkas_source_runs_with_another_format_and_address(
    spark: Any, topic: Any, records: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format(FORMAT)
        .option("kafka.bootstrap.servers", topic.endpoints)  # was: the address of Kafka
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", 7)
        .load()
    )
    assert frame.schema == DOCUMENTED
    query = (
        frame.selectExpr(*COLUMNS)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    assert query.exception() is None
    assert rows(spark.read.parquet(str(tmp_path / "rows"))) == records


def test_a_job_of_kafkas_sink_runs_with_another_format_and_address(
    spark: Any, make_topic: Any, topic: Any, records: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    other = make_topic()
    frame = (
        spark.readStream.format(FORMAT)
        .option("kafka.bootstrap.servers", topic.endpoints)  # was: the address of Kafka
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    query = (
        frame.selectExpr("key", "concat(cast(value as string), '!') as value", "headers", "'unused' as topic")
        .writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", topic.endpoints)  # was: the address of Kafka
        .option("topic", other.name)  # as in Kafka's sink, it wins over the column
        .option("includeHeaders", "true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    assert query.exception() is None
    spark.createDataFrame([("k", "by a batch")], "key string, value string").write.format(FORMAT).option(
        "kafka.bootstrap.servers", topic.endpoints
    ).option("topic", other.name).mode("append").save()
    written = (
        spark.read.format(FORMAT)
        .option("kafka.bootstrap.servers", topic.endpoints)
        .option("subscribe", other.name)
        .option("includeHeaders", "true")
        .load()
    )
    expected = [(key, f"{value}!", headers) for _, _, key, value, headers in records] + [("k", "by a batch", None)]
    result = [(key, value, headers) for _, _, key, value, headers in rows(written.selectExpr(*COLUMNS))]
    assert sorted(result, key=str) == sorted(expected, key=str)
