"""Batch reads by a real Spark from real brokers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def load(spark: Any, topic: Any) -> Any:
    def load(schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("evenq").option("endpoints", topic.endpoints).option("subscribe", topic.name)
        return (reader.schema(schema) if schema else reader).options(**options).load()

    return load


def places(rows: Any) -> list[tuple[str, int, int]]:
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows)


def test_earliest_to_latest_is_what_was_sent_with_a_partition_per_queue(load: Any, topic: Any) -> None:
    topic.send_each(250)
    frame = load()
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert places(rows) == topic.every([250] * 4)
    assert all(row.body.decode() == f"body {row.queueOffset}" for row in rows)
    one = rows[0]
    assert (one.topic, one.tag, one.keys) == (topic.name, None, [])
    assert one.properties == {"length": str(len(one.body))}
    assert one.messageId.startswith(topic.name)
    assert abs(one.storeTimestamp.timestamp() - time.time()) < 600


def test_offsets_as_json_and_more_partitions_than_queues(load: Any, topic: Any) -> None:
    topic.send_each(100)
    broker, other = topic.queues[0].broker_name, topic.queues[2].broker_name
    frame = load(
        "queueOffset long, brokerName string, queueId int",
        startingOffsets=json.dumps({topic.name: {broker: {"0": 90, "1": -1}, other: {"0": 50}}}),
        endingOffsets=json.dumps({topic.name: {other: {"0": 60}}}),
        maxRecordsPerPartition=30,
    )
    assert frame.rdd.getNumPartitions() == 1 + 1 + 4
    expected = [(broker, 0, offset) for offset in range(90, 100)]
    expected += [(other, 0, offset) for offset in range(50, 60)]
    expected += [(other, 1, offset) for offset in range(100)]
    assert places(frame.collect()) == sorted(expected)


def test_counting_tags_and_sql_views(spark: Any, load: Any, topic: Any) -> None:
    tags = {str(number): "odd" if number % 2 else "even" for number in range(100)}
    topic.send({1: list(tags), 2: list(tags)}, tags=tags)
    assert load().count() == 200
    odd = load("body binary, tag string", tags="odd || none").collect()
    assert len(odd) == 100
    assert all(row.tag == "odd" and int(row.body) % 2 for row in odd)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW flights USING evenq "
        f"OPTIONS (endpoints '{topic.endpoints}', subscribe '{topic.name}')"
    )
    assert spark.sql("SELECT count(DISTINCT messageId) AS n FROM flights").first().n == 200


def test_a_time_to_start_at(load: Any, topic: Any) -> None:
    topic.send_each(10, text="early")
    later = max(row.storeTimestamp for row in load("storeTimestamp timestamp").collect()).timestamp() * 1000
    while time.time() * 1000 <= later + 1:
        time.sleep(0.001)
    topic.send({0: ["late"]})
    rows = load("body binary", startingTimestamp=int(later) + 1).collect()
    assert [row.body for row in rows] == [b"late"]


def test_an_empty_topic_gives_no_rows(load: Any) -> None:
    assert load().count() == 0


def test_a_broker_killed_in_the_middle_of_a_read_loses_and_repeats_nothing(
    load: Any, topic: Any, tmp_path: Path
) -> None:
    for _ in range(8):
        topic.send({number: ["x" * 100_000] * 25 for number in range(4)})
    begun = tmp_path / "begun"

    def slowly(row: Any) -> Any:
        begun.touch()
        time.sleep(0.005)
        return type(row)(brokerName=row.brokerName, queueId=row.queueId, queueOffset=row.queueOffset)

    frame = load("brokerName string, queueId int, queueOffset long, body binary", blockBytes=100_000)
    rows: list[Any] = []
    reading = threading.Thread(target=lambda: rows.extend(frame.rdd.map(slowly).collect()))
    reading.start()
    while not begun.exists():
        reading.join(0.01)
    topic.broker.kill()
    topic.broker.restart()
    reading.join()
    assert places(rows) == topic.every([200] * 4)


def test_mistakes_are_told_in_words(load: Any, topic: Any) -> None:
    broker = topic.queues[0].broker_name
    for options, text in (
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"startingOffsets": json.dumps({topic.name: {broker: {"0": 7}}})}, "to be read at offset 7"),
        ({"endpoints": "127.0.0.1:1", "readTimeoutMs": 300}, "is a broker running there"),
    ):
        with pytest.raises(Exception, match=text):
            load(**options).collect()
