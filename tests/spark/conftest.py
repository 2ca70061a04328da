"""One local Spark and one real cluster of two brokers for the run; a topic per test."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.quick_spark import make_classes, quick_spark
from pyspark_evenq.brokers import cluster as calls
from pyspark_evenq.brokers import connection

from evenq.model.queue import MessageQueue
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def spark_errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard error of Spark's processes: its workers, and those that plan, log there."""
    path: Path = tmp_path_factory.mktemp("spark") / "stderr"
    path.touch()
    return path


@contextmanager
def errors_to(path: Path) -> Iterator[None]:
    """What is started in here writes its standard error to the file."""
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def java_home() -> str:
    """Raises CalledProcessError if there is no Java."""
    known = os.environ.get("JAVA_HOME")
    if known:
        return known
    finds = (sys.executable, str(ROOT / "tools" / "java_home.py"))
    return subprocess.run(finds, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def pytest_sessionstart(session: pytest.Session) -> None:
    """What is made once is made before the first test, whose limit is too short for it on a busy machine."""
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    with suppress(subprocess.SubprocessError):  # the first test says so
        make_classes(java_home())


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Java, this Python, the loopback address and quick defaults, for every Spark that is started from here."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(quick_spark(os.environ["JAVA_HOME"], tmp_path_factory.mktemp("spark-home")))


@pytest.fixture(scope="session", autouse=True)
def spark(spark_environment: None, spark_errors: Path) -> Iterator[Any]:
    """Started before any test calls a broker: a process that has called over gRPC cannot fork the JVM's launcher safely."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").appName("evenq-tests").config("spark.driver.memory", "1g")
    with errors_to(spark_errors):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def plain_again() -> Iterator[None]:
    """What a test called here, as a driver or a worker would, leaves its keys and TLS to the process; not to the next test."""
    yield
    connection.sign_with(None)
    connection.secure_with(None)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, rebalancer=False, broker_settings={"AUTO_CREATE_TOPICS": "false"}) as running:
        yield running


class Topic:
    """A new topic with two queues on each of the two brokers, numbered 0 to 3 over both."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.name = f"topic-{next(_numbers)}"
        self.endpoints = ",".join(broker.address for broker in cluster.brokers)
        self.broker = cluster.brokers[0]
        self._create(cluster)
        self.queues = [
            MessageQueue(self.name, broker.name, queue_id) for broker in cluster.brokers for queue_id in range(2)
        ]

    def _create(self, cluster: LocalCluster) -> None:
        """On every broker: one that a busy machine kept from answering gets it with the next try."""
        request = admin_pb2.CreateTopicRequest(topic=self.name, queues=2).SerializeToString()
        brokers, deadline = {broker.name for broker in cluster.brokers}, time.monotonic() + 60
        while True:
            response = admin_pb2.CreateTopicResponse.FromString(
                connection.unary(cluster.endpoint, "/evenq.v1.Admin/CreateTopic", request, timeout_ms=60_000)
            )
            check(response.status)
            missing = brokers - {one.broker_name for one in response.placements if not one.error}
            if not missing:
                return
            assert time.monotonic() < deadline, f"{self.name} is not on {missing} after 30 s: {response.placements}"
            time.sleep(0.5)

    def send(
        self,
        bodies: dict[int, list[str]],
        *,
        tags: dict[str, str] | None = None,
        properties: dict[str, dict[str, str]] | None = None,
    ) -> None:
        """Bodies per queue number, as one block each; `tags` and more properties by body."""
        for number, texts in bodies.items():
            queue = self.queues[number]
            messages = []
            for text in texts:
                message = definition_pb2.Message(body=text.encode(), user_properties={"length": str(len(text))})
                message.system_properties.message_id = f"{self.name}-{number}-{next(_numbers)}"
                message.user_properties.update((properties or {}).get(text, {}))
                if tags:
                    message.system_properties.tag = tags[text]
                messages.append(message)
            request = data_pb2.PublishRequest(
                queue=common_pb2.Queue(topic=self.name, broker_name=queue.broker_name, queue_id=queue.queue_id),
                messages=messages,
            )
            response = connection.unary(
                self._address(queue), "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000
            )
            check(data_pb2.PublishResponse.FromString(response).status)

    def send_each(self, count: int, *, text: str = "body") -> None:
        """`count` messages on every queue."""
        self.send({number: [f"{text} {index}" for index in range(count)] for number in range(4)})

    def progress(self, group: str) -> list[int]:
        """The group's committed offset of each queue as the brokers tell it, -1 for none."""
        states: dict[MessageQueue, Any] = {}
        for broker in self._cluster.brokers:
            if broker.alive:
                here = [queue for queue in self.queues if queue.broker_name == broker.name]
                states |= calls.query(broker.address, here, group=group)
        return [states[queue].committed if queue in states else -1 for queue in self.queues]

    def ends(self) -> list[int]:
        """How many messages each queue has."""
        states: dict[MessageQueue, Any] = {}
        for broker in self._cluster.brokers:
            states |= calls.query(broker.address, [queue for queue in self.queues if queue.broker_name == broker.name])
        return [states[queue].bounds.high for queue in self.queues]

    def every(self, counts: list[int]) -> list[tuple[str, int, int]]:
        """(broker, queue id, offset) of this number of messages from the beginning of each queue."""
        return sorted(
            (queue.broker_name, queue.queue_id, offset)
            for queue, count in zip(self.queues, counts, strict=True)
            for offset in range(count)
        )

    def _address(self, queue: MessageQueue) -> str:
        return next(broker.address for broker in self._cluster.brokers if broker.name == queue.broker_name)


@pytest.fixture(scope="session")
def make_topic(cluster: LocalCluster) -> Callable[[], Topic]:
    """For tests that share a topic, or need more than one."""
    return lambda: Topic(cluster)


@pytest.fixture
def topic(cluster: LocalCluster) -> Topic:
    return Topic(cluster)
