"""Streams by a real Spark: checkpoints, limits, progress at the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def start(spark: Any, broker: Any, tmp_path: Path) -> Any:
    """Start a query that appends (queue, offset, batch) rows to a table of files."""
    queries: list[Any] = []

    def start(**options: Any) -> Any:
        frame = (
            spark.readStream.format("evenq")
            .schema("queueId int, queueOffset long, body binary")
            .option("endpoints", broker.endpoint)
            .option("subscribe", broker.topic)
            .option("group", "spark-job")
            .option("startingOffsets", "earliest")
            .option("commitIntervalMs", 50)
            .options(**{name: value for name, value in options.items() if name != "forever"})
            .load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
        )
        query = (writer if options.get("forever") else writer.trigger(availableNow=True)).start()
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def seen(spark: Any, tmp_path: Path) -> list[tuple[int, int]]:
    rows = spark.read.schema("queueId int, queueOffset long").parquet(str(tmp_path / "rows")).collect()
    return sorted((row.queueId, row.queueOffset) for row in rows)


def send(broker: Any, count: int) -> None:
    for number in range(count):
        broker.send(f"body {number}", queue=number % 4)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def every(count: int) -> list[tuple[int, int]]:
    return sorted((number % 4, number // 4) for number in range(count))


def test_available_now_twice_from_one_checkpoint_is_exactly_once_and_leaves_no_lag(
    spark: Any, broker: Any, start: Any, tmp_path: Path
) -> None:
    send(broker, 400)
    first = start(maxOffsetsPerTrigger=150)
    first.awaitTermination()
    batches = [progress.numInputRows for progress in first.recentProgress if progress.numInputRows]
    assert batches == [150, 150, 100]
    assert seen(spark, tmp_path) == every(400)
    assert broker.progress("spark-job") == dict.fromkeys(range(4), 100)
    send(broker, 0)
    for number in range(400, 500):
        broker.send("more", queue=number % 4)
    start().awaitTermination()
    assert seen(spark, tmp_path) == every(500)
    assert broker.progress("spark-job") == dict.fromkeys(range(4), 125)


def test_a_running_query_follows_the_topic_and_its_progress_shows_at_the_broker(
    spark: Any, broker: Any, start: Any, tmp_path: Path
) -> None:
    send(broker, 40)
    query = start(forever=True)
    assert within(
        40, lambda: query.lastProgress is not None and broker.progress("spark-job") == dict.fromkeys(range(4), 10)
    )
    send(broker, 20)
    assert within(20, lambda: broker.progress("spark-job") == dict.fromkeys(range(4), 15))
    query.stop()
    assert query.exception() is None
    assert len(seen(spark, tmp_path)) == 60


def test_a_broker_that_restarts_under_a_running_query_loses_and_repeats_nothing(
    spark: Any, broker: Any, start: Any, tmp_path: Path
) -> None:
    send(broker, 40)
    query = start(forever=True)
    assert within(40, lambda: sum(broker.progress("spark-job").values()) == 40)
    broker.stop()
    broker.start()
    send(broker, 40)
    assert within(30, lambda: sum(broker.progress("spark-job").values()) == 80)
    query.stop()
    assert query.exception() is None
    assert seen(spark, tmp_path) == every(80)


def test_stopping_a_query_sends_its_last_progress_first(spark: Any, broker: Any, start: Any) -> None:
    """Spark ends the process with SIGTERM and calls no `stop()`."""
    send(broker, 40)
    query = start(forever=True, commitIntervalMs=3_600_000)
    assert within(40, lambda: sum(progress.numInputRows for progress in query.recentProgress) == 40)
    calls = broker.calls.count("QueryOffsets")
    assert within(20, lambda: broker.calls.count("QueryOffsets") >= calls + 3)  # idle triggers: the batch is in the log
    assert sum(broker.progress("spark-job").values()) == 0
    query.stop()
    assert within(10, lambda: sum(broker.progress("spark-job").values()) == 40)
