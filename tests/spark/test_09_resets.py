"""An operator moves the group of a query: a running one goes there with its next batch, a stopped one as its options say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.waiting import within

pytestmark = pytest.mark.slow


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(**options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "commitIntervalMs": 50} | options
        frame = spark.readStream.format("evenq").schema("brokerName string, queueId int, queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.append(writer.option("path", str(tmp_path / "rows")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def reset(cluster: LocalCluster, group: str, *where: str) -> str:
    environment = os.environ | {"EVENQ_ENDPOINT": cluster.endpoint}
    command = [str(Path(sys.executable).with_name("evenq")), "offset", "reset", group, *where, "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


def times_read(spark: Any, tmp_path: Path) -> list[int]:
    """How often each message was read."""
    rows = spark.read.schema("brokerName string, queueId int, queueOffset long").parquet(str(tmp_path / "rows"))
    return sorted(row["count"] for row in rows.groupBy("brokerName", "queueId", "queueOffset").count().collect())


def test_a_running_query_follows_a_reset_back_and_forward(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    query = start()
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    said = reset(cluster, topic.name, "--to", "earliest")
    assert "failed" not in said
    assert within(60, lambda: times_read(spark, tmp_path) == [2] * 40), (said, query.lastProgress)
    assert within(30, lambda: topic.progress(topic.name) == [10] * 4), (said, query.lastProgress)
    reset(cluster, topic.name, "--to-offset", "4")
    assert within(60, lambda: len([n for n in times_read(spark, tmp_path) if n == 3]) == 24)
    assert within(30, lambda: topic.progress(topic.name) == [10] * 4)
    topic.send_each(5)
    assert within(30, lambda: topic.progress(topic.name) == [15] * 4)
    assert query.exception() is None


@pytest.mark.parametrize("conflict", ["checkpoint", "broker", "fail"])
def test_a_stopped_query_whose_group_was_moved_starts_as_it_was_told(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path, conflict: str
) -> None:
    topic.send_each(10)
    first = start()
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    topic.send_each(2)
    assert within(60, lambda: topic.progress(topic.name) == [12] * 4)
    first.stop()
    reset(cluster, topic.name, "--to-offset", "5")
    assert topic.progress(topic.name) == [5] * 4
    query = start(onOffsetConflict=conflict)
    topic.send_each(1)
    if conflict == "fail":
        assert within(60, lambda: not query.isActive)
        assert "the progress of group" in str(query.exception())
        assert topic.progress(topic.name) == [5] * 4
        return
    assert within(60, lambda: topic.progress(topic.name) == [13] * 4)
    twice = 28 if conflict == "broker" else 0
    assert times_read(spark, tmp_path) == sorted([1] * (52 - twice) + [2] * twice)


def test_a_group_is_not_moved_while_a_query_runs_that_does_not_follow(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    query = start(honorOffsetReset=False)
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    said = reset(cluster, topic.name, "--to", "earliest")
    assert f"group {topic.name} is not moved" in said
    assert "honorOffsetReset=false" in said
    assert topic.progress(topic.name) == [10] * 4
    query.stop()
    assert "is not moved" not in reset(cluster, topic.name, "--to", "earliest")
    assert topic.progress(topic.name) == [0] * 4
    assert times_read(spark, tmp_path) == [1] * 40


def test_a_query_that_shares_its_group_follows_a_reset(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    query = start(assignment="shared")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    reset(cluster, topic.name, "--to-offset", "4")
    assert within(60, lambda: times_read(spark, tmp_path) == [1] * 16 + [2] * 24), query.exception()
    assert within(30, lambda: topic.progress(topic.name) == [10] * 4)
    topic.send_each(5)
    assert within(30, lambda: topic.progress(topic.name) == [15] * 4)
    assert query.exception() is None
