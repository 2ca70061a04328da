"""A runner that stood still for longer than its session undoes nothing, and its query fails and says who has the queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenq import PullConsumer
from evenq.testing.local_cluster import LocalCluster
from tests.spark.members import members, process_of
from tests.spark.waiting import within

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    broker = {"AUTO_CREATE_TOPICS": "false", "SESSION_TIMEOUT_MS": "1500", "SESSION_BEAT_INTERVAL_MS": "300"}
    with LocalCluster(brokers=2, rebalancer=False, broker_settings=broker) as running:
        yield running


@pytest.mark.parametrize("stays", [True, False])
def test_a_query_that_was_paused_past_its_session_fails_and_moves_no_progress_back(
    spark: Any, cluster: LocalCluster, topic: Any, tmp_path: Path, stays: bool
) -> None:
    topic.send_each(10)
    frame = (
        spark.readStream.format("evenq")
        .schema("queueOffset long")
        .option("endpoints", topic.endpoints)
        .option("subscribe", topic.name)
        .options(group=topic.name, startingOffsets="earliest", commitIntervalMs=50)
        .load()
    )
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    runner = 0
    consumer = PullConsumer(group=topic.name, subscriptions={topic.name: "*"}, endpoint=cluster.endpoint)
    try:
        assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
        (client_id,) = members(cluster, topic.name)
        runner = process_of(client_id)
        os.kill(runner, signal.SIGSTOP)
        assert within(20, lambda: not members(cluster, topic.name))
        topic.send_each(5)
        consumer.start()
        taken: list[Any] = []

        def all_read() -> bool:
            taken.extend(consumer.poll(wait_ms=200))
            consumer.commit()
            return topic.progress(topic.name) == [15] * 4

        assert within(30, all_read)
        assert len(taken) == 20
        successor = next(iter(members(cluster, topic.name)))
        if not stays:
            consumer.close()
        os.kill(runner, signal.SIGCONT)
        assert within(30, lambda: not query.isActive)
        said = str(query.exception())
        assert "is not this query's" in said
        # Who stays may let a queue go to the query that comes back, before that asks for it.
        assert "it was read up to 15" in said or (stays and successor in said), said
        assert topic.progress(topic.name) == [15] * 4
        assert within(5, lambda: client_id not in members(cluster, topic.name))
    finally:
        if runner:
            with suppress(ProcessLookupError):
                os.kill(runner, signal.SIGCONT)
        query.stop()
        consumer.close()
