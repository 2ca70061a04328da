"""Where a query begins is kept until Spark has a batch of it, and a group that was made for it ends with it."""

from __future__ import annotations

import collections
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark_evenq.source.pinned_start import pinned_group

from evenq.model.queue import MessageQueue
from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import World, Writer, hooked, until
from tests.spark.members import driver, members, process_of
from tests.spark.waiting import within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 300.0
"""What a driver may need on a machine that does other things as well."""
ROW = "brokerName string, queueId int, queueOffset long, messageGroup string, body binary"


@pytest.fixture
def start(spark: Any) -> Any:
    """Start a query in the driver of all tests: what another driver began goes on there."""
    queries: list[Any] = []

    def start(schema: str, options: dict[str, str], checkpoint: Path, *, table: Path | None = None) -> Any:
        frame = spark.readStream.format("evenq").schema(schema).options(**options).load()
        writer = frame.writeStream.format("noop" if table is None else "parquet")
        writer = writer if table is None else writer.option("path", str(table))
        queries.append(writer.option("checkpointLocation", str(checkpoint)).start())
        return queries[-1]

    setting = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    spark.conf.set(setting, "false")  # half of an entry may be in the way
    yield start
    for query in queries:
        query.stop()
    spark.conf.unset(setting)


def test_latest_is_what_it_was_before_the_driver_died_without_a_batch(
    cluster: LocalCluster, topic: Any, spark_errors: Path, tmp_path: Path, start: Any
) -> None:
    options = {
        "endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name, "startingOffsets": "latest",
        "commitIntervalMs": "50",
    }  # fmt: skip
    kept = pinned_group(topic.name)
    topic.send_each(10)
    running = driver(json.dumps(options), tmp_path / "checkpoint", spark_errors)
    try:
        assert within(200, lambda: topic.progress(kept) == [10] * 4)
        assert within(30, lambda: len(members(cluster, topic.name)) == 1)
        (client_id,) = members(cluster, topic.name)
        os.kill(process_of(client_id), signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    topic.send_each(5)
    again = start("queueOffset long", options, tmp_path / "checkpoint")
    assert within(200, lambda: topic.progress(topic.name) == [15] * 4), again.exception()
    assert within(30, lambda: topic.progress(kept) == [-1] * 4)
    entry = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    starts = entry.get("from") or entry["q"]  # without: it is the first driver's, which had not read anything yet
    assert {offset for brokers in starts[topic.name].values() for offset in brokers.values()} == {10}


@pytest.mark.parametrize("when", ["before", "after"])
def test_latest_loses_and_repeats_nothing_if_the_driver_dies_at_its_first_entry(
    cluster: LocalCluster, tmp_path: Path, start: Any, when: str
) -> None:
    """Exactly before and after the entry of batch 0 in Spark's offset log. Another driver goes on."""
    (tmp_path / "job").mkdir()
    with hooked(tmp_path / "hooks"):
        world = World(
            cluster, f"latest-{when}", tmp_path / "job", jobs=["rows"], master="local[2]",
            options={"startingOffsets": "latest", "commitIntervalMs": "50"},
        )  # fmt: skip
        try:
            earlier = _written(world)
            world.arm(f"rows.offsets.{when}")
            first = world.start()
            kept = pinned_group(world.topics.groups["rows"])
            until(START_S, lambda: world.topics.progress(kept) == earlier, "the start is kept")
            _written(world)
            until(START_S, lambda: not world.armed(f"rows.offsets.{when}"), "the first entry")
            until(START_S, lambda: not first.jvm_lives, "the end of the driver")
            first.end()
            ends = _written(world)
            given = {"endpoints": world.settings["endpoints"], "subscribe": world.topics.source}
            given |= {"group": world.topics.groups["rows"], **world.settings["options"]}
            job = tmp_path / "job"
            query = start(ROW, given, job / "rows", table=job / "table")

            def read() -> bool:
                assert query.isActive, query.exception()
                progress = world.topics.progress(world.topics.groups["rows"])
                return all(progress[queue] >= end for queue, end in ends.items())

            until(START_S, read, "the second driver reads on")
            world.judge.look()
        finally:
            world.close()
    assert world.judge.rows == collections.Counter(
        (queue.broker_name, queue.queue_id, at) for queue, end in ends.items() for at in range(earlier[queue], end)
    )


def _written(world: World) -> dict[MessageQueue, int]:
    """A few messages to the first topic; where its queues end then."""
    with Writer(world.cluster.endpoints, world.topics.source, rate=200) as writer:
        until(30, lambda: writer.sent >= 50, "nothing is written")
    return world.topics.ends()
