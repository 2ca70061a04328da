"""The lag that brokers show is gone within two triggers of the last batch, and after `availableNow`, without any kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import World, Writer, hooked, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TRIGGERS_MAX = 2


def test_no_lag_is_left_after_the_last_batch(cluster: LocalCluster, tmp_path: Path, spark_environment: None) -> None:
    (tmp_path / "job").mkdir()
    with hooked(tmp_path / "hooks"):
        world = World(cluster, "lag", tmp_path / "job", master="local[2]", trigger="1 second")
        try:
            world.start()
            for _ in range(3):
                with Writer(cluster.endpoints, world.topics.source, rate=200) as writer:
                    until(30, lambda writer=writer: writer.sent >= 100, "nothing is written")  # type: ignore[misc]
                triggers = world.triggers_until_no_lag(seconds=300)
                assert max(triggers.values()) <= TRIGGERS_MAX, triggers
            world.driver.rest()
            with Writer(cluster.endpoints, world.topics.source, rate=200) as writer:
                until(30, lambda: writer.sent >= 100, "nothing is written")
            world.available_now()
            assert world.backward == []
        finally:
            world.close()
