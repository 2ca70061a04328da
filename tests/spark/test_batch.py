"""Batch reads by a real Spark."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def load(spark: Any, broker: Any) -> Any:
    def load(schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("evenq").option("endpoints", broker.endpoint).option("subscribe", broker.topic)
        return (reader.schema(schema) if schema else reader).options(**options).load()

    return load


def fill(broker: Any, count: int) -> list[tuple[int, int, str]]:
    for number in range(count):
        broker.send(f"body {number}", queue=number % 4, tag="even" if number % 2 == 0 else "odd", at=str(number))
    return sorted((number % 4, number // 4, f"body {number}") for number in range(count))


def test_earliest_to_latest_is_what_was_sent_with_a_partition_per_queue(load: Any, broker: Any) -> None:
    sent = fill(broker, 1_000)
    frame = load()
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert sorted((row.queueId, row.queueOffset, row.body.decode()) for row in rows) == sent
    one = next(row for row in rows if row.queueId == 1 and row.queueOffset == 0)
    assert (one.topic, one.tag, one.properties) == (broker.topic, "odd", {"at": "1"})
    assert one.bornTimestamp is not None
    assert one.storeTimestamp is not None


def test_offsets_as_json_and_more_partitions_than_queues(load: Any, broker: Any) -> None:
    fill(broker, 400)
    name = broker.name
    frame = load(
        "queueOffset long, queueId int",
        startingOffsets=json.dumps({broker.topic: {name: {"0": 90, "1": -1, "2": 50}}}),
        endingOffsets=json.dumps({broker.topic: {name: {"2": 60}}}),
        maxRecordsPerPartition=30,
    )
    assert frame.rdd.getNumPartitions() == 1 + 1 + 4
    assert sorted((row.queueId, row.queueOffset) for row in frame.collect()) == sorted(
        [(0, offset) for offset in range(90, 100)]
        + [(2, offset) for offset in range(50, 60)]
        + [(3, offset) for offset in range(100)]
    )


def test_counting_tags_and_sql_views(spark: Any, load: Any, broker: Any) -> None:
    fill(broker, 100)
    assert load().count() == 100
    assert load("tag string", tags="odd").count() == 50
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW flights USING evenq "
        f"OPTIONS (endpoints '{broker.endpoint}', subscribe '{broker.topic}')"
    )
    assert spark.sql("SELECT count(DISTINCT messageId) AS n FROM flights").first().n == 100


def test_an_empty_topic_gives_no_rows(load: Any) -> None:
    assert load().count() == 0


def test_a_broker_that_dies_in_the_middle_and_comes_back_loses_nothing(load: Any, broker: Any) -> None:
    sent = fill(broker, 2_000)
    frame = load("queueId int, queueOffset long, body binary", blockBytes=2048, readTimeoutMs=30_000)
    assert frame.rdd.getNumPartitions() == 4  # planned
    broker.cut_scans = 20
    broker.stop()
    timer = threading.Timer(2, broker.start)
    timer.start()
    rows = frame.collect()
    timer.join()
    assert sorted((row.queueId, row.queueOffset, row.body.decode()) for row in rows) == sent


def test_mistakes_are_told_in_words(load: Any, broker: Any) -> None:
    for options, text in (
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "no-such-topic", "readTimeoutMs": 1000}, "TopicNotFound"),
        ({"startingOffsets": json.dumps({broker.topic: {broker.name: {"0": 7}}})}, "to be read at offset 7"),
    ):
        with pytest.raises(Exception, match=text):
            load(**options).collect()
