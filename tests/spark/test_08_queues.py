"""A running query follows its topics as they get more queues, fewer queues, and company. (Lost and trimmed messages, and
brokers that go away, are in `test_loss.py`.)
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

import evenq
from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]
ROUTE_S = 150.0
"""A query looks for new queues every 30 s; the rest is for a machine that does other things as well."""


class Sender:
    """Numbered messages, spread over all writable queues."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._producer = evenq.Producer(endpoint=cluster.endpoints)
        self.wanted: collections.Counter[str] = collections.Counter()
        self.places: collections.Counter[tuple[str, str, int]] = collections.Counter()

    def send(self, topic: str, count: int) -> None:
        for number in range(count):
            text = f"{topic} {len(self.wanted)} {number}"
            queue = self._producer.send(evenq.Message(topic=topic, body=text.encode())).queue
            self.wanted[text] += 1
            self.places[queue.topic, queue.broker_name, queue.queue_id] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()


@pytest.fixture
def follow(spark: Any, cluster: LocalCluster, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(**options: Any) -> Any:
        given = {"startingOffsets": "earliest", "commitIntervalMs": "50"} | options
        frame = spark.readStream.format("evenq").schema("topic string, brokerName string, queueId int, body binary")
        frame = frame.options(endpoints=cluster.endpoints, **given).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        queries.append(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def seen(spark: Any, tmp_path: Path) -> Callable[[], Any]:
    """The rows so far, read again by Spark when there are more batches."""
    known: tuple[set[str], Any] = (set(), [])

    def read() -> Any:
        nonlocal known
        batches = {entry.name for entry in (tmp_path / "rows").glob("_spark_metadata/[0-9]*")}
        if batches != known[0]:
            schema = "topic string, brokerName string, queueId int, body string"
            known = batches, spark.read.schema(schema).parquet(str(tmp_path / "rows")).collect()
        return known[1]

    return read


def bodies(rows: Any) -> collections.Counter[str]:
    return collections.Counter(row.body for row in rows)


def test_more_and_fewer_queues_lose_and_repeat_nothing(
    cluster: LocalCluster, follow: Any, seen: Callable[[], Any]
) -> None:
    topic, group = "resized", "resized-group"
    with evenq.Admin(endpoint=cluster.endpoint) as admin, Sender(cluster) as sender:
        admin.create_topic(topic, queues=2)
        sender.send(topic, 100)
        query = follow(subscribe=topic, group=group)
        until(ROUTE_S, lambda: bodies(seen()) == sender.wanted, "the first messages")
        admin.scale_topic(topic, queues=4)
        give_up = time.monotonic() + 60
        while len(sender.places) < 8:  # until the producer knows them
            assert time.monotonic() < give_up, sender.places
            sender.send(topic, 8)
        until(ROUTE_S, lambda: bodies(seen()) == sender.wanted, "what is in the new queues")
        assert {(row.brokerName, row.queueId) for row in seen()} >= {(name, at) for _, name, at in sender.places}
        # Its progress shows that it has read the last queues to their end: so they may be closed.
        admin.scale_topic(topic, queues=1, wait_ms=60_000)
        sender.send(topic, 50)
        until(ROUTE_S, lambda: bodies(seen()) == sender.wanted, "what came when there were fewer queues")
        admin.scale_topic(topic, queues=3)
        until(30, lambda: _sent_to_all(sender, topic, 6), "the producer does not use the queues")
        until(ROUTE_S, lambda: bodies(seen()) == sender.wanted, "what is in queues that were closed and opened again")
        assert query.isActive, query.exception()


def _sent_to_all(sender: Sender, topic: str, queues: int) -> bool:
    sender.places.clear()
    sender.send(topic, 3 * queues)
    return len(sender.places) == queues


def test_a_topic_that_comes_and_fits_the_pattern_is_read_from_its_first_message(
    cluster: LocalCluster, follow: Any, seen: Callable[[], Any]
) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin, Sender(cluster) as sender:
        admin.create_topic("fits-1", queues=1)
        sender.send("fits-1", 20)
        query = follow(subscribePattern="fits-[0-9]", group="fits-group")
        until(ROUTE_S, lambda: bodies(seen()) == sender.wanted, "the first topic")
        admin.create_topic("fits-2", queues=1)
        admin.create_topic("fits-not", queues=1)
        sender.send("fits-2", 20)
        other = dict(sender.wanted)
        sender.send("fits-not", 5)
        sender.send("fits-1", 20)
        wanted = collections.Counter({text for text in sender.wanted if text in other or "fits-not" not in text})
        until(ROUTE_S, lambda: bodies(seen()) == wanted, "the second topic")
        assert query.isActive, query.exception()
