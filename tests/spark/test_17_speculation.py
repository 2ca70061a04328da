"""Spark runs a slow task twice, at once (`spark.speculation`): the rows of one attempt become messages, those of the
other never.

Spark copies a task to another host only. So there is a standalone cluster here whose two workers have addresses of
their own, both on loopback: to Spark, they are two hosts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from evenq_proofs.peer import Peer

from evenq.testing.local_cluster import LocalCluster
from tests.integration.sink_jobs import Sink
from tests.spark.chaos.world import until
from tests.spark.speculating import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]  # a busy machine starts six JVMs slowly
HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).parent / "speculating.py"
HOSTS = ("127.0.0.2", "127.0.0.3")
START_S = 900.0


@pytest.fixture
def master(spark_environment: None, tmp_path: Path) -> Iterator[str]:
    """The address of a standalone cluster of two hosts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    of_worker = ["--cores", "3", "--memory", "700m", "--webui-port", "0", "--work-dir", str(tmp_path / "work")]
    commands = [
        ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *(["worker.Worker", "--host", host, *of_worker, address] for host in HOSTS),
    ]
    environment = {**os.environ, "SPARK_DAEMON_MEMORY": "300m"}
    with (tmp_path / "cluster.log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                cwd=tmp_path, stdout=log, stderr=log, env=environment,
            )
            for name, *arguments in commands
        ]  # fmt: skip
    try:
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait(60)


class Job:
    """One job of the program, and the topic that it writes."""

    def __init__(self, cluster: LocalCluster, folder: Path, *, stream: bool, **options: str) -> None:
        self.sink = Sink(cluster)
        self.folder = folder
        self.settings = {"topic": self.sink.name, "folder": str(folder), "stream": stream, "options": options}
        folder.mkdir()

    def attempts(self) -> int:
        """Of the first task, that have given the sink all their rows. None ends before it may."""
        return len(list(self.folder.glob("attempt-*")))

    def bodies(self) -> Counter[str]:
        return Counter(body.strip() for body in self.sink.bodies().elements())


def test_of_two_attempts_of_a_task_at_once_one_is_written(master: str, tmp_path: Path) -> None:
    settings = {"AUTO_CREATE_TOPICS": "false", "STAGING__ASK_INTERVAL_MS": "300"}
    with LocalCluster(brokers=2, rebalancer=False, broker_settings=settings) as cluster:
        batch = Job(cluster, tmp_path / "batch", stream=False)
        stream = Job(cluster, tmp_path / "stream", stream=True)
        doubled = Job(cluster, tmp_path / "twice", stream=False, delivery="atLeastOnce")
        jobs = [batch, stream, doubled]
        given: dict[str, Any] = {
            "master": master, "endpoints": cluster.endpoints, "jobs": [job.settings for job in jobs],
        }  # fmt: skip
        peer = Peer([sys.executable, str(PROGRAM), json.dumps(given)], log_path=tmp_path / "driver.log")
        try:
            for job in (batch, stream):
                until(START_S, lambda job=job: job.attempts() >= 2, "no task is run twice")  # type: ignore[misc]
                until(60, lambda job=job: job.sink.staged() > ROWS, "only one attempt stages rows")  # type: ignore[misc]
                assert job.bodies() == Counter(), "before the decision nothing is seen"
                (job.folder / "go").touch()
                until(START_S, lambda job=job: sum(job.bodies().values()) >= ROWS, "nothing is written")  # type: ignore[misc]
            until(START_S, lambda: doubled.attempts() >= 2, "no task is run twice")
            until(60, lambda: doubled.bodies().total() > ROWS, "only one attempt writes rows")
            (doubled.folder / "go").touch()
            peer.wait_done(seconds=START_S)
        finally:
            peer.end()
        expected = Counter(f"row {number}" for number in range(ROWS))
        for job in (batch, stream):
            assert job.bodies() == expected
            until(30, lambda job=job: job.sink.staged() == 0, "rows of the other attempt stay staged")  # type: ignore[misc]
            assert job.bodies() == expected
        twice = doubled.bodies()
        assert twice.keys() == expected.keys()
        assert twice.total() > ROWS, "both attempts had given rows to the sink"
        assert set(twice.values()) <= {1, 2}
