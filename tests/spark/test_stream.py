"""Streams by a real Spark from real brokers: checkpoints, limits, progress at the brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.waiting import within


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    """Start a query that appends rows to a table of files."""
    queries: list[Any] = []

    def start(*, forever: bool = False, **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "commitIntervalMs": 50} | options
        frame = (
            spark.readStream.format("evenq")
            .schema("brokerName string, queueId int, queueOffset long, body binary")
            .option("endpoints", topic.endpoints)
            .option("subscribe", topic.name)
            .options(**given)
            .load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
        )
        queries.append((writer if forever else writer.trigger(availableNow=True)).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def seen(spark: Any, tmp_path: Path) -> list[tuple[str, int, int]]:
    rows = spark.read.schema("brokerName string, queueId int, queueOffset long").parquet(str(tmp_path / "rows"))
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows.collect())


def rows_in(query: Any) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_available_now_twice_from_one_checkpoint_is_exactly_once_and_leaves_no_lag(
    spark: Any, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(100)
    first = start(maxOffsetsPerTrigger=150)
    first.awaitTermination()
    assert rows_in(first) == [150, 150, 100]
    assert seen(spark, tmp_path) == topic.every([100] * 4)
    assert topic.progress(topic.name) == [100] * 4
    topic.send({1: ["more"] * 25})
    start().awaitTermination()
    assert seen(spark, tmp_path) == topic.every([100, 125, 100, 100])
    assert topic.progress(topic.name) == [100, 125, 100, 100]
    last = start()
    last.awaitTermination()
    assert rows_in(last) == []


def test_a_running_query_follows_the_topic_and_its_progress_shows_at_the_brokers(
    spark: Any, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    query = start(forever=True)
    assert within(40, lambda: topic.progress(topic.name) == [10] * 4)
    topic.send({2: ["more"] * 5})
    assert within(20, lambda: topic.progress(topic.name) == [10, 10, 15, 10])
    query.stop()
    assert query.exception() is None
    assert seen(spark, tmp_path) == topic.every([10, 10, 15, 10])


def test_a_query_outlives_the_kill_of_a_broker_and_loses_and_repeats_nothing(
    spark: Any, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    query = start(forever=True)
    assert within(40, lambda: topic.progress(topic.name) == [10] * 4)
    topic.broker.kill()
    topic.send({2: ["more"] * 10, 3: ["more"] * 10})
    assert within(30, lambda: topic.progress(topic.name)[2:] == [20] * 2)
    topic.broker.restart()
    topic.send({0: ["more"] * 10, 1: ["more"] * 10})
    assert within(30, lambda: topic.progress(topic.name) == [20] * 4)
    query.stop()
    assert query.exception() is None
    assert seen(spark, tmp_path) == topic.every([20] * 4)


def test_stopping_a_query_sends_its_last_progress_first(topic: Any, start: Any) -> None:
    """Spark ends the process with SIGTERM and calls no `stop()`."""
    topic.send_each(10)
    query = start(forever=True, commitIntervalMs=3_600_000, idleWaitMs=50)
    assert within(40, lambda: sum(rows_in(query)) == 40)
    topic.send_each(
        10
    )  # by the time that these are in a batch, Spark has reported that the first one is in its commit log
    assert within(20, lambda: sum(rows_in(query)) == 80)
    assert topic.progress(topic.name) == [0] * 4
    query.stop()
    assert within(10, lambda: min(topic.progress(topic.name)) >= 10)
