"""A query is a member of its group from its first batch to its end, however it ends, and the only one there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.members import driver, members, process_of
from tests.spark.waiting import within

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a process of Spark of its own takes a minute to start beside other work


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(name: str = "one", **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "commitIntervalMs": 50} | options
        frame = spark.readStream.format("evenq").schema("queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def only(cluster: LocalCluster, group: str) -> Callable[[], bool]:
    return lambda: len(members(cluster, group)) == 1


def shown(cluster: LocalCluster, *words: str) -> str:
    environment = os.environ | {"EVENQ_ENDPOINT": cluster.endpoint}
    command = [str(Path(sys.executable).with_name("evenq")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


def test_a_query_is_a_member_that_holds_all_queues_until_it_is_stopped(
    cluster: LocalCluster, topic: Any, start: Any
) -> None:
    topic.send_each(10)
    query = start(queryName="delays")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    ((client_id, member),) = members(cluster, topic.name).items()
    assert (member.language, member.protocol, member.instance) == ("PYTHON", "evenq", "delays")
    assert member.version
    assert "spark-delays" in client_id
    for words in (("group", "show", topic.name), ("client", "list"), ("client", "show", client_id)):
        assert client_id in shown(cluster, *words), words
    owners = shown(cluster, "offset", "show", topic.name, "--json")
    assert owners.count(client_id) == 4
    assert client_id in shown(cluster, "group", "explain", topic.name)
    query.stop()
    assert within(3, lambda: not members(cluster, topic.name))
    assert query.exception() is None


def test_a_second_query_in_the_group_fails_and_names_the_first(cluster: LocalCluster, topic: Any, start: Any) -> None:
    topic.send_each(10)
    first = start()
    assert within(60, only(cluster, topic.name))
    (client_id,) = members(cluster, topic.name)
    second = start("two")
    assert within(60, lambda: not second.isActive)
    assert client_id in str(second.exception())
    assert "onGroupBusy" in str(second.exception())
    assert first.isActive
    assert set(members(cluster, topic.name)) == {client_id}


def test_a_waiting_query_begins_when_the_other_has_left(cluster: LocalCluster, topic: Any, start: Any) -> None:
    topic.send_each(10)
    first = start()
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4)
    (client_id,) = members(cluster, topic.name)
    second = start("two", onGroupBusy="wait", startingOffsets="group")
    topic.send_each(5)
    assert within(60, lambda: topic.progress(topic.name) == [15] * 4)
    first.stop()
    assert within(30, lambda: bool(set(members(cluster, topic.name)) - {client_id}))
    topic.send_each(5)
    assert within(60, lambda: topic.progress(topic.name) == [20] * 4)
    assert second.isActive


@pytest.mark.parametrize("victim", ["jvm", "runner"])
def test_a_query_that_is_killed_is_gone_in_5_s_and_its_restart_goes_on(
    cluster: LocalCluster, topic: Any, start: Any, spark_errors: Path, tmp_path: Path, victim: str
) -> None:
    """The JVM that is killed is that of a driver of its own."""
    topic.send_each(10)
    running = None
    try:
        if victim == "jvm":
            options = json.dumps({
                "endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name, "startingOffsets": "earliest",
                "commitIntervalMs": "50",
            })  # fmt: skip
            running = driver(options, tmp_path / "checkpoint", spark_errors)
        else:
            start("checkpoint")
        assert within(200, lambda: topic.progress(topic.name) == [10] * 4)
        (client_id,) = members(cluster, topic.name)
        os.kill(process_of(client_id) if running is None else jvm_of(running.pid), signal.SIGKILL)
        assert within(5, lambda: client_id not in members(cluster, topic.name))
    finally:
        if running is not None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    topic.send_each(5)
    again = start("checkpoint")
    assert within(200, lambda: topic.progress(topic.name) == [15] * 4), again.exception()


def jvm_of(driver_pid: int) -> int:
    """The JVM that a Python driver started."""
    waiting = [driver_pid]
    while waiting:
        pid = waiting.pop()
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
        waiting += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    raise AssertionError("no JVM")
