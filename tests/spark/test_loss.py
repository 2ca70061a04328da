"""Nothing is left out in silence: brokers away, topics made anew, ends lost and beginnings trimmed, at each moment of a
batch read, a stream and `availableNow`. Either an error, or rows and counts that together are all there was.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.state.records import Op, decode, encode
from pyspark_evenq.brokers import cluster as calls
from pyspark_evenq.brokers import connection

from evenq.model.queue import MessageQueue
from evenq.runtime.clock import SystemClock
from evenq.store import MessageStore, StoreOptions
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2
from tests.spark.waiting import within

pytestmark = pytest.mark.slow

SCHEMA = "brokerName string, queueId int, queueOffset long, body binary"
READ_TIMEOUT_MS = 1_500
SEGMENT_BYTES = 1 << 16
AWAY = r"no broker answers for {topic} on broker-b \(queues 0, 1\)"
Row = tuple[str, int, int, str]
"""Broker, queue id, offset, and when it was sent."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    nameserver = {"EXPIRY_MS": "900", "HEARTBEAT_INTERVAL_MS": "200"}
    broker = {
        "AUTO_CREATE_TOPICS": "true",
        "BODY_BYTES_MAX": "16384",
        "STORE__SEGMENT_BYTES": str(SEGMENT_BYTES),
        "STORE__RETENTION_HOUR": "-1",
        "DRAIN_MS": "200",
    }
    with LocalCluster(brokers=2, rebalancer=False, nameserver_settings=nameserver, broker_settings=broker) as running:
        yield running


def admin(address: str, method: str, request: Any, response: Any) -> Any:
    answer = connection.unary(address, f"/evenq.v1.Admin/{method}", request.SerializeToString(), timeout_ms=60_000)
    answered = response.FromString(answer)
    check(answered.status)
    return answered


async def clean(folder: Path, broker_name: str) -> None:
    """What a broker's store does at its hour, at once."""
    ops: list[Op] = []
    options = StoreOptions(retention_ms=1, retention_hour=-1, segment_bytes=SEGMENT_BYTES)
    store = await MessageStore.open(
        folder,
        options,
        clock=SystemClock(),
        broker_name=broker_name,
        on_state=lambda _, record: ops.extend(decode(record)),
        on_snapshot=lambda record: ops.extend(decode(record)),
        snapshot_of=lambda: encode(ops),
        topic_retention_ms=lambda _: None,
    )
    await store.clean()
    await store.close()


class Topic:
    """Two queues on each of two brokers, and what may happen to them. All is done through broker-a."""

    numbers = iter(range(1, 1_000))

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.name = f"loss-{next(self.numbers)}"
        self.a, self.b = cluster.brokers
        self.endpoints = self.a.address
        self.folder = folder
        self.queues = [MessageQueue(self.name, node.name, queue_id) for node in cluster.brokers for queue_id in (0, 1)]
        self.make()

    def make(self) -> None:
        request = admin_pb2.CreateTopicRequest(topic=self.name, queues=2)

        def made() -> bool:  # one that has just come back may miss the first call
            admin(self.a.address, "CreateTopic", request, admin_pb2.CreateTopicResponse)
            return len(calls.route([self.a.address], [self.name])) == 4

        assert within(60, made)

    def delete(self) -> None:
        request = admin_pb2.DeleteTopicRequest(topic=self.name)
        admin(self.a.address, "DeleteTopic", request, admin_pb2.DeleteTopicResponse)

    def made_anew(self, count: int) -> None:
        self.delete()
        self.make()
        self.send(count, "anew")

    def send(self, count: int, label: str, queues: list[MessageQueue] | None = None) -> list[Row]:
        rows: list[Row] = []
        for queue in (queues or self.queues) if count else ():
            messages = []
            for number in range(count):
                message = definition_pb2.Message(body=label.encode().ljust(1_500))
                message.system_properties.message_id = f"{self.name}-{label}-{queue}-{number}"
                messages.append(message)
            request = data_pb2.PublishRequest(
                queue=common_pb2.Queue(topic=self.name, broker_name=queue.broker_name, queue_id=queue.queue_id),
                messages=messages,
            )
            address = next(node.address for node in self.cluster.brokers if node.name == queue.broker_name)
            encoded = connection.unary(
                address, "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000
            )
            response = data_pb2.PublishResponse.FromString(encoded)
            check(response.status)
            first = response.first_offset
            rows += [(queue.broker_name, queue.queue_id, first + number, label) for number in range(count)]
        return rows

    def away(self, *, told: bool = True) -> None:
        """broker-b dies; with `reported` the nameserver has noticed."""
        self.b.kill()
        if told:
            assert within(30, lambda: len(calls.route([self.a.address], [self.name])) == 2)

    def back(self) -> None:
        self.b.restart()
        assert within(30, lambda: len(calls.route([self.a.address], [self.name])) == 4)

    def remember(self) -> None:
        """Keep broker-b's store as it is now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.store, self.folder)

    def tail_lost(self) -> None:
        """broker-b has the store that was kept, no more."""
        self.b.kill()
        shutil.rmtree(self.store)
        shutil.copytree(self.folder, self.store)
        self.back()

    def trimmed(self) -> dict[MessageQueue, int]:
        """broker-b deletes what is old. Gives the first offsets that are left."""
        self.b.stop()
        asyncio.run(clean(self.store, self.b.name))
        self.back()
        mine = [queue for queue in self.queues if queue.broker_name == self.b.name]
        lows = {queue: state.bounds.low for queue, state in calls.query(self.b.address, mine).items()}
        assert all(lows.values())
        return lows

    @property
    def store(self) -> Path:
        return self.cluster.folder / self.b.name


@pytest.fixture
def topic(cluster: LocalCluster, tmp_path: Path) -> Iterator[Topic]:
    made = Topic(cluster, tmp_path / "store")
    yield made
    if not made.b.alive:
        made.back()


class Said:
    """What the source's processes wrote to their standard error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size

    @property
    def text(self) -> str:
        with self._path.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    @property
    def lost(self) -> int:
        """Messages, over all lines."""
        return sum(map(int, re.findall(r"evenq: lost messages=(\d+)", self.text))) + sum(
            map(int, re.findall(r"evenq: left out queues=\d+ messages=(\d+)", self.text))
        )

    @property
    def left_out(self) -> int:
        """Queues, over all lines."""
        return sum(map(int, re.findall(r"evenq: left out queues=(\d+)", self.text)))


@pytest.fixture
def said(spark: Any, spark_errors: Path) -> Said:
    return Said(spark_errors)


def row_of(row: Any) -> Row:
    return (row.brokerName, row.queueId, row.queueOffset, row.body.decode().strip())


class Batch:
    """A batch read whose tasks stop, after they have read, until the test lets them go on."""

    def __init__(self, spark: Any, topic: Topic, folder: Path) -> None:
        self._spark, self._topic = spark, topic
        self._begun, self._go = folder / "begun", folder / "go"

    def again(self) -> None:
        """Let the tasks of the next read stop, too."""
        for file in [*self._begun.parent.glob("begun-*"), self._go]:
            file.unlink()

    def read(self, *, meanwhile: Callable[[], object] | None = None, **options: Any) -> list[Row]:
        given = {"endpoints": self._topic.endpoints, "subscribe": self._topic.name, "readTimeoutMs": READ_TIMEOUT_MS}
        frame = self._spark.read.format("evenq").schema(SCHEMA).options(**{**given, **options}).load()
        if meanwhile is None:
            return sorted(row_of(row) for row in frame.collect())
        begun, go = self._begun, self._go

        def gate(rows: Iterator[Any]) -> Iterator[Any]:
            read = list(rows)
            if not go.exists() and read:
                (begun.parent / f"begun-{read[0].brokerName}-{read[0].queueId}").touch()
                deadline = time.monotonic() + 250
                while not go.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
            return iter([(row.brokerName, row.queueId, row.queueOffset, row.body.decode().strip()) for row in read])

        outcome: dict[str, Any] = {}

        def collect() -> None:
            try:
                outcome["rows"] = frame.rdd.mapPartitions(gate).collect()
            except Exception as error:  # noqa: BLE001  handed to the test
                outcome["error"] = error

        reading = threading.Thread(target=collect)
        reading.start()
        try:
            assert within(60, lambda: len(list(begun.parent.glob("begun-*"))) == 2 or not reading.is_alive())
            meanwhile()
        finally:
            go.touch()
            reading.join(60)
        if "error" in outcome:
            raise outcome["error"]
        return sorted(outcome["rows"])


@pytest.fixture
def batch(spark: Any, topic: Topic, tmp_path: Path) -> Batch:
    return Batch(spark, topic, tmp_path)


class Stream:
    """A stream with one checkpoint; its rows by batch, so that a batch that is run again counts once."""

    def __init__(self, spark: Any, topic: Topic, folder: Path) -> None:
        self._spark, self._topic, self._folder = spark, topic, folder
        self._batches: dict[int, list[Row]] = {}
        self.queries: list[Any] = []

    @property
    def rows(self) -> list[Row]:
        return sorted(row for rows in self._batches.values() for row in rows)

    @property
    def lost(self) -> int:
        """Messages, as the offsets in the checkpoint tell."""
        return sum(
            count
            for path in (self._folder / "checkpoint" / "offsets").glob("[0-9]*")
            for brokers in json.loads(path.read_text().splitlines()[2]).get("lost", {}).values()
            for queues in brokers.values()
            for count in queues.values()
        )

    def newest_offset(self) -> str:
        """As the checkpoint has it."""
        paths = (self._folder / "checkpoint" / "offsets").glob("[0-9]*")
        return max(paths, key=lambda path: int(path.name)).read_text().splitlines()[2]

    def start(self, *, now: bool, after: dict[int, Callable[[], object]] | None = None, **options: Any) -> Any:
        """`after`: what happens at the end of a batch, by its number in this run."""
        given = {
            "endpoints": self._topic.endpoints, "subscribe": self._topic.name, "group": self._topic.name,
            "startingOffsets": "earliest", "commitIntervalMs": 50, "readTimeoutMs": READ_TIMEOUT_MS, "idleWaitMs": 100,
        }  # fmt: skip
        frame = self._spark.readStream.format("evenq").schema(SCHEMA).options(**{**given, **options}).load()
        events = dict(after or {})
        first = len(self._batches)

        def take(rows: Any, number: int) -> None:
            self._batches[number] = [row_of(row) for row in rows.collect()]
            if event := events.pop(number - first, None):
                event()

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self._folder / "checkpoint"))
        self.queries.append((writer.trigger(availableNow=True) if now else writer).start())
        return self.queries[-1]

    def run(self, *, now: bool, until: list[Row] | None = None, **options: Any) -> None:
        """Run until it ends, or in the default trigger until it has these rows. Raises the query's error."""
        query = self.start(now=now, **options)
        if now:
            assert query.awaitTermination(200)
            return
        assert within(120, lambda: self.rows == until or not query.isActive), self.rows
        error = query.exception()
        query.stop()
        if error is not None:
            raise error


@pytest.fixture
def stream(spark: Any, topic: Topic, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, topic, tmp_path)
    yield made
    for query in made.queries:
        query.stop()


triggers = pytest.mark.parametrize("now", [True, False], ids=["availableNow", "default"])


def of(rows: list[Row], *names: str) -> list[Row]:
    return sorted(row for row in rows if row[0] in names)


# ------------------------------------------------------------------------------------------------ a broker away


@pytest.mark.parametrize("told", [True, False], ids=["expired", "killed-just-now"])
def test_a_batch_without_a_broker_from_the_start_is_an_error_or_a_count(
    topic: Topic, batch: Batch, said: Said, told: bool
) -> None:
    rows = topic.send(20, "x")
    topic.away(told=told)
    with pytest.raises(Exception, match=AWAY.format(topic=topic.name)):
        batch.read()
    assert batch.read(failOnUnavailable=False, failOnDataLoss=False) == of(rows, "broker-a")
    assert said.left_out == 2
    topic.back()
    assert batch.read() == sorted(rows)


def test_a_batch_waits_for_a_broker_that_comes_in_time(topic: Topic, batch: Batch) -> None:
    rows = topic.send(5, "x")
    topic.away()
    topic.b.start()
    assert batch.read(readTimeoutMs=30_000) == sorted(rows)


def test_a_batch_that_loses_a_broker_in_the_middle_is_an_error_or_a_count(
    topic: Topic, batch: Batch, said: Said
) -> None:
    rows = topic.send(20, "x")
    with pytest.raises(Exception, match=r"is a broker running there|no broker serves"):
        batch.read(meanwhile=topic.away)
    topic.back()
    batch.again()
    assert batch.read(meanwhile=topic.away, failOnUnavailable=False) == of(rows, "broker-a")
    assert said.lost == 40
    assert said.left_out == 2


def test_a_batch_that_loses_a_broker_after_its_last_message_has_all(topic: Topic, batch: Batch, said: Said) -> None:
    rows = topic.send(20, "x")
    assert batch.read(meanwhile=topic.away, minRecordsPerPartition=1_000) == sorted(rows)
    assert said.left_out == 0


def test_available_now_without_a_broker_from_the_start_is_an_error_or_a_count(
    topic: Topic, stream: Stream, said: Said
) -> None:
    rows = topic.send(20, "x")
    topic.away()
    with pytest.raises(Exception, match=AWAY.format(topic=topic.name)):
        stream.run(now=True)
    assert stream.rows == []
    stream.run(now=True, failOnUnavailable=False)
    assert stream.rows == of(rows, "broker-a")
    assert said.left_out == 2
    topic.back()
    stream.run(now=True)
    assert stream.rows == sorted(rows), "from the first message: the group has no progress there"


def test_a_stream_without_a_broker_from_the_start_reads_the_others_and_it_when_it_comes(
    topic: Topic, stream: Stream, said: Said
) -> None:
    rows = topic.send(20, "x")
    topic.away()
    query = stream.start(now=False)
    assert within(200, lambda: stream.rows == of(rows, "broker-a"))
    assert within(30, lambda: "make no progress until they are served again" in said.text)
    topic.back()
    assert within(200, lambda: stream.rows == sorted(rows)), query.exception()
    assert stream.lost == 0


def test_a_queue_that_comes_into_the_route_begins_at_the_groups_progress(topic: Topic, stream: Stream) -> None:
    rows = topic.send(20, "x")
    mine = [queue for queue in topic.queues if queue.broker_name == topic.b.name]
    request = common_pb2.Queue(topic=topic.name, broker_name=topic.b.name, queue_id=0)
    assert mine[0].queue_id == request.queue_id
    calls.commit(topic.b.address, topic.name, {mine[0]: 15}, client_id="before")
    topic.away()
    stream.run(now=True, failOnUnavailable=False)
    topic.back()
    stream.run(now=True)
    assert stream.rows == [row for row in sorted(rows) if row[:2] != ("broker-b", 0) or row[2] >= 15]


def test_available_now_that_loses_a_broker_in_the_middle_is_an_error_and_the_next_run_reads_on(
    topic: Topic, stream: Stream
) -> None:
    rows = topic.send(20, "x")
    for options in ({}, {"failOnUnavailable": False}):
        with pytest.raises(Exception, match=r"is a broker running there|no broker"):
            stream.run(now=True, after={0: topic.away}, maxOffsetsPerTrigger=20, **options)
        topic.back()
    stream.run(now=True)
    assert stream.rows == sorted(rows)


def test_a_stream_that_loses_a_broker_in_the_middle_goes_on_with_the_others(topic: Topic, stream: Stream) -> None:
    rows = topic.send(10, "x")
    query = stream.start(now=False, after={0: topic.away})
    assert within(200, lambda: not topic.b.alive)
    rows += topic.send(10, "y", [queue for queue in topic.queues if queue.broker_name == topic.a.name])
    assert within(200, lambda: stream.rows == sorted(rows)), query.exception()
    topic.back()
    rows += topic.send(10, "z")
    assert within(200, lambda: stream.rows == sorted(rows)), query.exception()
    assert stream.lost == 0


def test_available_now_that_loses_a_broker_after_its_last_batch_has_all(topic: Topic, stream: Stream) -> None:
    rows = topic.send(10, "x")
    stream.run(now=True, after={0: topic.away})
    assert stream.rows == sorted(rows)


def test_a_forgotten_broker_is_no_hole_and_a_nameserver_that_restarts_forgets_nothing(
    topic: Topic, batch: Batch, cluster: LocalCluster
) -> None:
    rows = topic.send(5, "x")
    topic.away()
    cluster.nameservers[0].restart()
    assert within(30, lambda: len(calls.route([topic.a.address], [topic.name])) == 2)
    with pytest.raises(Exception, match=AWAY.format(topic=topic.name)):
        batch.read()
    topic.a.restart()
    with pytest.raises(Exception, match=AWAY.format(topic=topic.name)):
        batch.read()
    request = admin_pb2.ForgetBrokerRequest(broker_name=topic.b.name)
    admin(topic.a.address, "ForgetBroker", request, admin_pb2.ForgetBrokerResponse)
    assert batch.read() == of(rows, "broker-a")


@contextmanager
def drained(topic: Topic) -> Iterator[None]:
    change = admin_pb2.DrainBrokerRequest
    admin(topic.b.address, "DrainBroker", change(change=change.DRAIN), admin_pb2.DrainBrokerResponse)
    topic.b.stop()
    assert within(30, lambda: len(calls.route([topic.a.address], [topic.name])) == 2)
    yield
    topic.b.restart()
    admin(topic.b.address, "DrainBroker", change(change=change.RESUME), admin_pb2.DrainBrokerResponse)
    topic.back()


def test_a_drained_broker_is_no_hole(spark: Any, tmp_path: Path) -> None:
    nameserver = {"EXPIRY_MS": "900", "HEARTBEAT_INTERVAL_MS": "200"}
    with LocalCluster(brokers=2, rebalancer=False, nameserver_settings=nameserver) as fresh:
        topic = Topic(fresh, tmp_path / "store")
        rows = topic.send(5, "x")
        for node in fresh.brokers:
            here = [queue for queue in topic.queues if queue.broker_name == node.name]
            calls.commit(node.address, "reader", dict.fromkeys(here, 5), client_id="me")
        with drained(topic):
            assert Batch(spark, topic, tmp_path).read() == of(rows, "broker-a")


def test_a_topic_of_a_broker_that_is_away_is_not_taken_for_a_misspelt_one(topic: Topic, batch: Batch) -> None:
    name = topic.name + "-alone"
    share = admin_pb2.TopicShare(broker_name=topic.b.name, queues=1)
    request = admin_pb2.CreateTopicRequest(topic=name, queues=1, brokers=[share])
    admin(topic.a.address, "CreateTopic", request, admin_pb2.CreateTopicResponse)
    topic.away()
    with pytest.raises(Exception, match=rf"no broker answers for {name} on broker-b \(queue 0\)"):
        batch.read(subscribe=name)


# ------------------------------------------------------------------------------------------------ topics made anew


@triggers
@pytest.mark.parametrize("count", [5, 30], ids=["smaller", "grown-past"])
def test_a_topic_made_anew_between_two_runs_is_an_error_or_read_from_its_first_message(
    topic: Topic, stream: Stream, now: bool, count: int
) -> None:
    old = topic.send(20, "old")
    stream.run(now=True)
    topic.made_anew(count)
    with pytest.raises(Exception, match=r"was deleted or created again"):
        stream.run(now=now, until=[])
    assert stream.rows == sorted(old)
    new = [(queue.broker_name, queue.queue_id, offset, "anew") for queue in topic.queues for offset in range(count)]
    stream.run(now=now, until=sorted(old + new), failOnDataLoss=False)
    assert stream.rows == sorted(old + new)
    assert stream.lost == 0, "all of the old topic had been read"
    more = topic.send(3, "more")
    stream.run(now=now, until=sorted(old + new + more))
    assert stream.rows == sorted(old + new + more)


@pytest.mark.parametrize("count", [5, 30], ids=["smaller", "grown-past"])
def test_a_topic_made_anew_while_a_stream_runs_counts_what_had_not_been_read(
    topic: Topic, stream: Stream, said: Said, count: int
) -> None:
    topic.send(20, "old")
    query = stream.start(
        now=False, failOnDataLoss=False, maxOffsetsPerTrigger=8, after={0: lambda: topic.made_anew(count)}
    )
    new = [(queue.broker_name, queue.queue_id, offset, "anew") for queue in topic.queues for offset in range(count)]
    assert within(60, lambda: [row for row in stream.rows if row[3] == "anew"] == sorted(new)), query.exception()
    assert Counter(row[3] for row in stream.rows) == {"old": 8, "anew": len(new)}
    assert said.lost == 72
    assert 72 - 8 <= stream.lost <= 72, "what a batch had planned already, its tasks tell; the offset, what came behind"


@pytest.mark.parametrize("count", [5, 30], ids=["smaller", "grown-past"])
def test_a_topic_made_anew_within_available_now_is_an_error_or_a_count(
    topic: Topic, stream: Stream, said: Said, count: int
) -> None:
    topic.send(20, "old")
    with pytest.raises(Exception, match=r"was deleted or created again"):
        stream.run(now=True, maxOffsetsPerTrigger=8, after={0: lambda: topic.made_anew(count)})
    stream.run(now=True, failOnDataLoss=False)
    new = [(queue.broker_name, queue.queue_id, offset, "anew") for queue in topic.queues for offset in range(count)]
    stream.run(now=True, failOnDataLoss=False)
    assert [row for row in stream.rows if row[3] == "anew"] == sorted(new)
    assert Counter(row[3] for row in stream.rows)["old"] == 8
    assert said.lost == 8, "of the batch that was planned; what else the old topic had, no process knows that lives"


@pytest.mark.parametrize("count", [5, 30], ids=["smaller", "grown-past"])
def test_a_topic_made_anew_within_a_batch_is_an_error_or_a_count(
    topic: Topic, batch: Batch, said: Said, count: int
) -> None:
    rows = topic.send(20, "old")
    with pytest.raises(Exception, match=r"was deleted or created again"):
        batch.read(meanwhile=lambda: topic.made_anew(count))
    batch.again()
    topic.made_anew(0)
    rows = topic.send(20, "old")
    read = batch.read(meanwhile=lambda: topic.made_anew(count), failOnDataLoss=False)
    assert read == of(rows, "broker-a")
    assert said.lost == 40


def test_a_topic_deleted_while_a_stream_runs_is_an_error(topic: Topic, stream: Stream) -> None:
    topic.send(5, "x")
    query = stream.start(now=False, after={0: topic.delete})
    assert within(200, lambda: not query.isActive)
    assert "was deleted" in str(query.exception())


# ------------------------------------------------------------------------------------------------ ends lost


@triggers
def test_a_lost_tail_is_an_error_or_reading_goes_on_at_what_is_left(topic: Topic, stream: Stream, now: bool) -> None:
    rows = topic.send(10, "kept")
    topic.remember()
    lost = topic.send(10, "lost")
    stream.run(now=True)
    topic.tail_lost()
    with pytest.raises(Exception, match=r"data loss: .* was to be read at offset 20"):
        stream.run(now=now, until=[])

    def moved() -> bool:
        return len(json.loads(stream.newest_offset()).get("lost", {})) > 0

    query = stream.start(now=now, failOnDataLoss=False)
    assert within(200, moved), query.exception()
    if now:
        assert query.awaitTermination(60)
    more = topic.send(5, "more")
    if now:
        stream.run(now=True)
    assert within(200, lambda: stream.rows == sorted(rows + lost + more)), query.exception()
    assert stream.lost == 0, "the tail had been read"


@triggers
def test_what_came_in_place_of_a_lost_tail_before_the_query_looked_is_read(
    topic: Topic, stream: Stream, now: bool
) -> None:
    rows = topic.send(10, "kept")
    topic.remember()
    lost = topic.send(10, "lost")
    stream.run(now=True)
    topic.tail_lost()
    more = topic.send(5, "more")
    query = stream.start(now=now, failOnDataLoss=False)
    assert within(200, lambda: stream.rows == sorted(rows + lost + more)), query.exception()
    assert json.loads(stream.newest_offset())["lost"] == {topic.name: {topic.b.name: {"0": 0, "1": 0}}}


@triggers
def test_a_lost_tail_that_has_grown_past_the_old_offset_is_an_error_or_read_from_where_it_was_lost(
    topic: Topic, stream: Stream, now: bool
) -> None:
    rows = topic.send(10, "kept")
    topic.remember()
    lost = topic.send(10, "lost")
    stream.run(now=True)
    topic.tail_lost()
    more = topic.send(15, "more")
    with pytest.raises(Exception, match=r"data loss: .* was read up to offset 20, but .* lost the end"):
        stream.run(now=now, until=[])
    query = stream.start(now=now, failOnDataLoss=False)
    assert within(200, lambda: stream.rows == sorted(rows + lost + more)), query.exception()


def test_a_tail_lost_within_a_batch_is_an_error_or_a_count(topic: Topic, batch: Batch, said: Said) -> None:
    rows = topic.send(10, "kept")
    topic.remember()
    rest = topic.send(10, "lost")
    with pytest.raises(Exception, match=r"data loss"):
        batch.read(meanwhile=topic.tail_lost, readTimeoutMs=30_000)
    batch.again()
    rest = of(rest, "broker-a") + topic.send(10, "lost", topic.queues[2:])
    read = batch.read(meanwhile=topic.tail_lost, failOnDataLoss=False, readTimeoutMs=30_000)
    assert read == sorted(rows + of(rest, "broker-a"))
    assert said.lost == 20


def test_a_tail_lost_within_a_batch_that_has_grown_again_is_an_error_or_a_count(
    topic: Topic, batch: Batch, said: Said
) -> None:
    rows = topic.send(10, "kept")
    topic.remember()
    rest = of(topic.send(10, "lost"), "broker-a")
    on_b = topic.queues[2:]

    def regrown(label: str) -> None:
        topic.tail_lost()
        topic.send(15, label, on_b)

    with pytest.raises(Exception, match=r"data loss: .* was read up to offset 20, but .* lost the end"):
        batch.read(meanwhile=lambda: regrown("new"), readTimeoutMs=30_000)
    batch.again()
    read = batch.read(meanwhile=lambda: regrown("newer"), failOnDataLoss=False, readTimeoutMs=30_000)
    newer = [(queue.broker_name, queue.queue_id, at, "newer") for queue in on_b for at in range(10, 25)]
    assert read == sorted(rows + rest + newer)
    assert "lost the end of the queue" in said.text


# ------------------------------------------------------------------------------------------------ beginnings trimmed


@triggers
def test_a_trimmed_beginning_is_an_error_or_a_count(topic: Topic, stream: Stream, said: Said, now: bool) -> None:
    rows = topic.send(5, "x")
    stream.run(now=True)
    rows += topic.send(60, "y")
    lows = topic.trimmed()
    gone = sum(low - 5 for low in lows.values())
    with pytest.raises(Exception, match=r"data loss: .* was to be read at offset 5"):
        stream.run(now=now, until=[])
    left = [row for row in rows if row[2] < 5 or row[2] >= lows.get(MessageQueue(topic.name, row[0], row[1]), 0)]
    stream.run(now=now, until=sorted(left), failOnDataLoss=False)
    assert stream.rows == sorted(left)
    assert stream.lost == said.lost == gone


def test_a_beginning_trimmed_within_a_batch_is_an_error_or_a_count(topic: Topic, batch: Batch, said: Said) -> None:
    rows = topic.send(60, "x")
    lows: dict[MessageQueue, int] = {}
    with pytest.raises(Exception, match=r"data loss: .* was to be read at offset 0"):
        batch.read(meanwhile=lambda: lows.update(topic.trimmed()), readTimeoutMs=30_000)
    batch.again()
    topic.made_anew(0)
    rows = topic.send(60, "x")
    read = batch.read(meanwhile=lambda: lows.update(topic.trimmed()), failOnDataLoss=False, readTimeoutMs=30_000)
    assert read == sorted(row for row in rows if row[2] >= lows.get(MessageQueue(topic.name, row[0], row[1]), 0))
    assert said.lost == sum(lows.values())


def test_a_group_whose_next_message_was_trimmed_is_an_error_or_a_count(topic: Topic, batch: Batch, said: Said) -> None:
    rows = topic.send(60, "x")
    mine = topic.queues[2:]
    calls.commit(topic.a.address, "g", dict.fromkeys(topic.queues[:2], 60), client_id="me")
    calls.commit(topic.b.address, "g", dict.fromkeys(mine, 2), client_id="me")
    lows = topic.trimmed()
    with pytest.raises(Exception, match=r"data loss: .* was to be read at offset 2"):
        batch.read(startingOffsets="group", group="g")
    read = batch.read(startingOffsets="group", group="g", failOnDataLoss=False)
    assert read == [row for row in of(rows, "broker-b") if row[2] >= lows[MessageQueue(topic.name, row[0], row[1])]]
    assert said.lost == sum(low - 2 for low in lows.values())


# ------------------------------------------------------------------------------------------------ names


def test_loss_of_a_name_is_told_and_makes_no_topic(topic: Topic, batch: Batch, stream: Stream) -> None:
    """Brokers create topics at first use here."""
    near, far = topic.name.upper() + "S", "nothing-like-it"
    for run in (lambda name: batch.read(subscribe=name), lambda name: stream.run(now=True, subscribe=name)):
        with pytest.raises(Exception, match=rf"no topic '{near}'.*did you mean '{topic.name}'\?"):
            run(near)
        with pytest.raises(Exception, match=rf"no topic '{far}'") as raised:
            run(far)
        assert "did you mean" not in str(raised.value)
    for name in (near, far):
        request = admin_pb2.DescribeTopicRequest(topic=name)
        with pytest.raises(Exception, match=r"no topic"):
            admin(topic.a.address, "DescribeTopic", request, admin_pb2.DescribeTopicResponse)
