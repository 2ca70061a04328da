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

from evenq.model.queue import MessageQueue
from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import World, Writer, hooked, until
from tests.spark.members import driver, members, process_of, within

pytestmark = pytest.mark.timeout(900)
START_S = 300.0
"""What a driver may need on a machine that does other things as well."""


def test_latest_is_what_it_was_before_the_driver_died_without_a_batch(
    cluster: LocalCluster, topic: Any, spark_errors: Path, tmp_path: Path
) -> None:
    options = json.dumps({
        "endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name, "startingOffsets": "latest",
        "commitIntervalMs": "50",
    })  # fmt: skip
    kept = f"{topic.name}-start"
    topic.send_each(10)
    running = driver(options, tmp_path / "checkpoint", spark_errors)
    again = None
    try:
        assert within(200, lambda: topic.progress(kept) == [10] * 4) is not None
        assert within(30, lambda: len(members(cluster, topic.name)) == 1) is not None
        (client_id,) = members(cluster, topic.name)
        os.kill(process_of(client_id), signal.SIGKILL)
        os.killpg(running.pid, signal.SIGKILL)
        topic.send_each(5)
        again = driver(options, tmp_path / "checkpoint", spark_errors)
        assert within(200, lambda: topic.progress(topic.name) == [15] * 4) is not None
        assert within(30, lambda: topic.progress(kept) == [-1] * 4) is not None
        starts = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])["from"]
        assert {offset for brokers in starts[topic.name].values() for offset in brokers.values()} == {10}
    finally:
        for process in (running, again):
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.parametrize("when", ["before", "after"])
def test_latest_loses_and_repeats_nothing_if_the_driver_dies_at_its_first_entry(
    cluster: LocalCluster, tmp_path: Path, spark_environment: None, when: str
) -> None:
    """Exactly before and after the entry of batch 0 in Spark's offset log."""
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
            kept = f"{world.topics.groups['rows']}-start"
            until(START_S, lambda: world.topics.progress(kept) == earlier, "the start is kept")
            _written(world)
            until(START_S, lambda: not world.armed(f"rows.offsets.{when}"), "the first entry")
            until(START_S, lambda: not first.jvm_lives, "the end of the driver")
            first.end()
            ends = _written(world)
            world.start()
            until(START_S, lambda: world.caught_up(ends, jobs=("rows",)), "the second driver reads on")
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
