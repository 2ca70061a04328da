"""A worker that dies in the middle of its range: another one reads the range again, and nothing is there twice.

What becomes of two attempts of one task at once is in `test_17_speculation.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import JOBS, World, Writer, hooked, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 300.0
"""What a driver may need on a machine that does other things as well."""
POINTS = ["source.read.middle", "source.read.after"]
TIMES = 2
"""At each point. `make spark-chaos ROUNDS=200 ONLY="worker at source"` has more."""


def test_a_range_that_is_read_again_doubles_nothing(
    cluster: LocalCluster, tmp_path: Path, spark_environment: None
) -> None:
    (tmp_path / "job").mkdir()
    with hooked(tmp_path / "hooks"):
        world = World(cluster, "faults", tmp_path / "job", master="local[2,4]")
        world.settings["options"] |= {"minRecordsPerPartition": "1", "blockBytes": "4096"}
        try:
            with Writer(cluster.endpoints, world.topics.source, rate=50) as writer:
                until(60, lambda: writer.sent > 100, "nothing is written")
                world.start()
                for point in POINTS * TIMES:
                    world.arm(point)
                    until(START_S, lambda point=point: not world.armed(point), "nobody reads")  # type: ignore[misc]
                    ends = world.topics.ends()
                    until(START_S, lambda ends=ends: world.caught_up(ends), "the queries go on")  # type: ignore[misc]
            ends = world.topics.ends()
            until(START_S, lambda: world.caught_up(ends), "the queries read to the end")
            until(START_S, lambda: world.judge.complete(ends), "not all that was read has been seen in the outputs")
            for job in JOBS:
                assert world.judge.faults(ends, job=job) == (set(), {}), job
        finally:
            world.close()
