"""Where a query begins is kept until Spark has a batch of it, and a group that was made for it ends with it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.members import driver, members, process_of, within

pytestmark = pytest.mark.timeout(300)


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
        assert within(90, lambda: topic.progress(kept) == [10] * 4) is not None
        assert within(30, lambda: len(members(cluster, topic.name)) == 1) is not None
        (client_id,) = members(cluster, topic.name)
        os.kill(process_of(client_id), signal.SIGKILL)
        os.killpg(running.pid, signal.SIGKILL)
        topic.send_each(5)
        again = driver(options, tmp_path / "checkpoint", spark_errors)
        assert within(90, lambda: topic.progress(topic.name) == [15] * 4) is not None
        assert within(30, lambda: topic.progress(kept) == [-1] * 4) is not None
        starts = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])["from"]
        assert {offset for brokers in starts[topic.name].values() for offset in brokers.values()} == {10}
    finally:
        for process in (running, again):
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
