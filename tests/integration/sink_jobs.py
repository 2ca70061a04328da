"""The sink against real brokers without a Spark: a topic, what a task and the driver call, and brokers that are killed."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.sink import staging as sink_staging
from pyspark_evenq.sink import writer as sink_writer
from pyspark_evenq.sink.staging import TaskAttempt
from pyspark_evenq.source.reader import BatchReader

import evenq
from evenq.columns.arrow_schema import TYPES, OutputColumn
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node

FAILPOINT = "EVENQ_FAILPOINT"
_numbers = itertools.count(1)


@contextmanager
def sink_brokers() -> Iterator[LocalCluster]:
    """Two brokers that look after staged rows soon."""
    settings = {"AUTO_CREATE_TOPICS": "false", "STAGING__ASK_INTERVAL_MS": "300"}
    with LocalCluster(brokers=2, rebalancer=False, broker_settings=settings) as running:
        yield running


@contextmanager
def new_sink(brokers: LocalCluster) -> Iterator[Sink]:
    """A new topic; afterwards the brokers are as they were."""
    yield Sink(brokers)
    for broker in brokers.brokers:
        if broker.environment.pop(FAILPOINT, None) is not None or not broker.alive:
            broker.restart()


def new_query() -> str:
    """An id that no other query has."""
    return f"query-{next(_numbers)}"


class Sink:
    """A new topic, and what is in it."""

    def __init__(self, cluster: LocalCluster, **topic: Any) -> None:
        self.cluster = cluster
        self.name = f"sink-{next(_numbers)}"
        self.endpoints = cluster.endpoints
        self.make(self.name, **topic)

    def make(self, name: str, **topic: Any) -> None:
        with evenq.Admin(endpoint=self.cluster.endpoint) as admin:
            admin.create_topic(name, **{"queues": 2, **topic})

    def options(self, **more: Any) -> dict[str, str]:
        return {"endpoints": self.endpoints, "topic": self.name} | {name: str(value) for name, value in more.items()}

    def read(self, topic: str = "") -> list[Any]:
        """All messages, as the source reads them, without a Spark."""
        options = ReadOptions.parse({"endpoints": self.endpoints, "subscribe": topic or self.name}, streaming=False)
        reader = BatchReader(options, tuple(OutputColumn(name, nullable=True) for name in TYPES))
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]

    def bodies(self) -> collections.Counter[str]:
        return collections.Counter(row.body.decode() for row in self.read())

    def staged(self) -> int:
        """Rows that wait for a decision, at all brokers that are there or on their way."""
        for broker in self.cluster.brokers:
            if broker.alive:
                broker.wait_ready()
        return int(sum(_metric(broker, "evenq_broker_staged_rows") for broker in self.cluster.brokers if broker.alive))

    def settled(self) -> bool:
        """True if all brokers are there and have published what was decided: one that was down does so when it is back."""
        return all(broker.alive for broker in self.cluster.brokers) and self.staged() == 0


def _metric(broker: Node, name: str) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def arm(sink: Sink, point: str) -> None:
    """Let both brokers end by SIGKILL at this place."""
    for broker in sink.cluster.brokers:
        broker.environment[FAILPOINT] = point
        broker.restart()


def disarm(sink: Sink) -> None:
    for broker in sink.cluster.brokers:
        broker.environment.pop(FAILPOINT, None)


def reviving(sink: Sink, done: threading.Event, ends: list[str]) -> threading.Thread:
    """Start brokers again when they were killed, without failpoints from then on."""

    def watch() -> None:
        while not done.wait(0.05):
            for broker in sink.cluster.brokers:
                if not broker.alive:
                    ends.append(broker.end_text)
                    broker.environment.pop(FAILPOINT, None)
                    broker.restart()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


class Job:
    """One batch by hand: attempts of tasks and their commit, as Spark calls them."""

    def __init__(self, sink: Sink, *, query: str = "", batch: int = 0, **options: Any) -> None:
        self.options = WriteOptions.parse(sink.options(writeTimeoutMs=30_000, **options))
        self.query = query or new_query()
        self.batch = batch

    def attempt(self, partition: int, bodies: list[str], *, number: int = 0) -> sink_writer.Done:
        attempt = TaskAttempt(query_id=self.query, batch_id=self.batch, partition_id=partition, attempt_id=number)
        batches = [pa.record_batch({"body": pa.array(bodies[at : at + 20])}) for at in range(0, len(bodies), 20)]
        return sink_writer.Done(self.query, sink_staging.stage(self.options, attempt, iter(batches)))

    def commit(self, *done: sink_writer.Done) -> None:
        sink_writer.commit(self.options, self.batch, list(done))

    def abort(self, *done: sink_writer.Done) -> None:
        sink_writer.abort(self.options, self.batch, [None, *done])


def bodies_of(number: int, count: int = 100) -> list[str]:
    return [f"{number}:{at}" for at in range(count)]
