"""A query without data leaves the brokers in peace (spark.md test 15)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.brokers import calls
from tests.spark.waiting import within

pytestmark = pytest.mark.slow

SECONDS = 20
CALLS_PER_SECOND_MAX = 5


def test_an_idle_query_makes_at_most_5_calls_a_second(
    spark: Any, cluster: LocalCluster, topic: Any, tmp_path: Path
) -> None:
    """To both brokers together; what they say to each other meanwhile is counted, too."""
    topic.send_each(10)
    frame = spark.readStream.format("evenq").schema("queueOffset long").option("endpoints", topic.endpoints)
    frame = frame.options(subscribe=topic.name, group=topic.name, startingOffsets="earliest", commitIntervalMs=50)
    query = frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
        before = calls(cluster)
        time.sleep(SECONDS)  # the span that is counted over, not a wait for something
        during = calls(cluster) - before
        assert query.isActive
        assert during["QueryOffsets"] > 0, "the query looks for data"
        assert during.total() <= CALLS_PER_SECOND_MAX * SECONDS, during
    finally:
        query.stop()
