"""A worker that dies or stands still in the middle of its range: others read it again, and nothing is there twice."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import JOBS, World, Writer, hooked, until

pytestmark = pytest.mark.timeout(900)
POINT = "source.read.middle"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.task.duration.threshold": "5s",
}


def test_speculative_and_repeated_tasks_double_nothing(cluster: LocalCluster, tmp_path: Path, java: None) -> None:
    (tmp_path / "job").mkdir()
    with hooked(tmp_path / "hooks"):
        world = World(cluster, "faults", tmp_path / "job", spark=SPECULATION)
        world.settings["options"] |= {"minRecordsPerPartition": "1", "blockBytes": "4096"}
        try:
            with Writer(cluster.endpoints, world.topics.source, rate=300) as writer:
                until(30, lambda: writer.sent > 600, "nothing is written")
                world.start()
                for victim in ((), ("stop",), (), ("stop",)):
                    before = set(world.passed(POINT))
                    world.arm(POINT, *victim)
                    until(300, lambda: not world.armed(POINT), "nobody reads")
                    ends = world.topics.ends()
                    # What stands still is passed over: only a speculative copy of its task can end the batch.
                    until(300, lambda ends=ends: world.caught_up(ends), "the queries go on")  # type: ignore[misc]
                    for pid in set(world.passed(POINT)) - before:
                        with suppress(ProcessLookupError):  # Spark ends the workers of attempts that lost
                            os.kill(pid, signal.SIGCONT)
            ends = world.topics.ends()
            until(300, lambda: world.caught_up(ends), "the queries read to the end")
            world.judge.look()
            for job in JOBS:
                assert world.judge.faults(ends, job=job) == (set(), {}), job
        finally:
            world.close()
