"""The listener beside a real query, and what brokers count of one."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark_evenq import EvenqProgressListener
from pyspark_evenq.figures.query_figures import Failure, QueryFigures

from evenq.testing.local_cluster import LocalCluster
from tests.spark.brokers import delivered
from tests.spark.waiting import within


@pytest.fixture
def listener(spark: Any) -> Iterator[EvenqProgressListener]:
    made = EvenqProgressListener(port=0)
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)
    made.close()


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(name: str, *, each: str = "0 seconds", **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "commitIntervalMs": 50} | options
        frame = spark.readStream.format("evenq").schema("queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("noop").queryName(name).trigger(processingTime=each)
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def figures(listener: EvenqProgressListener, name: str) -> QueryFigures:
    return next((query for query in listener.queries() if query.name == name), QueryFigures(name))


def page(listener: EvenqProgressListener) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as response:
        return str(response.read().decode())


def test_rows_lag_and_losses_of_a_query_are_at_the_port_and_it_ends_there_too(
    topic: Any, start: Any, listener: EvenqProgressListener
) -> None:
    topic.send_each(50)
    query = start("listened", maxOffsetsPerTrigger=40)
    assert within(60, lambda: figures(listener, "listened").rows == 200)
    assert within(30, lambda: figures(listener, "listened").lag.total == 0)
    lags = figures(listener, "listened").lags
    assert sorted(lags) == sorted(topic.queues)
    shown = page(listener)
    assert 'evenq_spark_rows_total{query="listened"} 200.0' in shown
    assert 'evenq_spark_queues{query="listened"} 4.0' in shown
    assert shown.count("evenq_spark_queue_lag_messages{") == 4
    assert 'part="triggerExecution"' in shown
    assert len([one for one in query.recentProgress if one.numInputRows]) == 5
    query.stop()
    assert within(30, lambda: not figures(listener, "listened").active)
    assert figures(listener, "listened").failures == {}
    assert "evenq_spark_queue_lag_messages{" not in page(listener)


def test_lag_is_what_a_limited_batch_leaves(topic: Any, start: Any, listener: EvenqProgressListener) -> None:
    topic.send_each(50)
    start("limited", each="1 hour", maxOffsetsPerTrigger=4)  # the first one comes at once
    assert within(60, lambda: figures(listener, "limited").rows == 4)
    assert figures(listener, "limited").lag == (196, 49, 49, 49.0)


def test_what_a_query_leaves_out_is_counted(
    topic: Any, start: Any, listener: EvenqProgressListener, cluster: LocalCluster
) -> None:
    """A broker that goes away takes two queues with it."""
    topic.send_each(10)
    start("left-out")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    cluster.brokers[1].kill()
    try:

        def grown() -> bool:
            topic.send({0: ["more"]})
            return within(2, lambda: len(figures(listener, "left-out").away) == 2)

        assert within(40, grown)
    finally:
        cluster.brokers[1].restart()


def test_a_query_that_finds_its_group_busy_says_why_it_ended(
    topic: Any, start: Any, listener: EvenqProgressListener
) -> None:
    topic.send_each(10)
    start("first")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    second = start("second")
    assert within(60, lambda: not second.isActive)
    assert within(30, lambda: figures(listener, "second").failures == {Failure.GROUP_BUSY: 1})
    assert 'evenq_spark_failures_total{query="second",reason="group_busy"} 1.0' in page(listener)


def test_brokers_count_what_a_stream_reads_as_delivered_to_its_group_once(
    topic: Any, start: Any, cluster: LocalCluster
) -> None:
    topic.send_each(100)
    query = start("counted", maxBytesPerTrigger=500)  # it looks at the size of messages first, which is no delivery
    assert within(200, lambda: topic.progress(topic.name) == [100] * 4)
    query.stop()
    assert delivered(cluster, topic.name, topic.name) == 400


def test_brokers_count_what_a_batch_reads_if_it_names_a_group(
    spark: Any, topic: Any, start: Any, cluster: LocalCluster
) -> None:
    topic.send_each(25)
    query = start("makes-the-group")
    assert within(60, lambda: topic.progress(topic.name) == [25] * 4)
    query.stop()
    assert delivered(cluster, topic.name, topic.name) == 100

    def read(**more: str) -> int:
        given = {"endpoints": topic.endpoints, "subscribe": topic.name, "startingOffsets": "earliest"} | more
        return int(spark.read.format("evenq").options(**given).load().count())

    assert read(group=topic.name) == 100
    assert delivered(cluster, topic.name, topic.name) == 200
    assert read(group=topic.name, tags="none") == 0
    assert read() == 100
    assert delivered(cluster, topic.name, topic.name) == 200
