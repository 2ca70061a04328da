"""Spark jobs and consumers share a group: each message once over graceful changes, and who is killed repeats no more than
its last batch.

`make spark-group` is the full size: EVENQ_TEST_SECONDS of joins and leaves, one each second, under EVENQ_TEST_RATE
messages/s; its figures are printed. Here, beside all other tests, the same with less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.members import members, within

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(name: str, **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "assignment": "shared"} | options
        frame = spark.readStream.format("evenq").schema("brokerName string, queueId int, queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        queries.append(writer.option("path", str(tmp_path / name / "rows")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def read(spark: Any, folder: Path) -> list[tuple[str, int, int]]:
    rows = spark.read.schema("brokerName string, queueId int, queueOffset long").parquet(str(folder / "rows"))
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows.collect())


def test_two_queries_divide_the_queues_and_one_goes_on_with_all_of_them(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    one = start("one")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4) is not None, one.exception()
    two = start("two")
    assert within(60, lambda: len(members(cluster, topic.name)) == 2) is not None, two.exception()
    assert within(60, lambda: bool(two.lastProgress)) is not None

    def both_read() -> bool:
        topic.send_each(1)
        return any(progress.numInputRows for progress in two.recentProgress)

    assert within(60, both_read) is not None, (one.exception(), two.exception())
    ends = topic.ends()
    assert within(60, lambda: topic.progress(topic.name) == ends) is not None
    two.stop()
    assert within(5, lambda: len(members(cluster, topic.name)) == 1) is not None
    topic.send_each(5)
    ends = topic.ends()
    assert within(60, lambda: topic.progress(topic.name) == ends) is not None, one.exception()
    assert sorted(read(spark, tmp_path / "one") + read(spark, tmp_path / "two")) == topic.every(ends)
