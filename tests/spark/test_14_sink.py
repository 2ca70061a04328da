"""A real Spark writes to real brokers: each row becomes a message once, whatever is killed, repeated or shuffled."""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq import send_back, sink_cluster, sink_publishing, sink_staging, sink_writer, to_dlq
from pyspark_evenq.arrow_schema import TYPES, OutputColumn
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.reader import BatchReader
from pyspark_evenq.sink_options import WriteOptions
from pyspark_evenq.sink_staging import TaskAttempt

import evenq
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node
from evenq.testing.peer import Peer
from tests.spark.waiting import within

FAILPOINT = "EVENQ_FAILPOINT"
SDK_PEER = Path(__file__).parents[1] / "compat" / "python_sdk_peer.py"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    settings = {"AUTO_CREATE_TOPICS": "false", "STAGING__ASK_INTERVAL_MS": "300"}
    with LocalCluster(brokers=2, rebalancer=False, broker_settings=settings) as running:
        yield running


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


def _metric(broker: Node, name: str) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


@pytest.fixture
def sink(brokers: LocalCluster) -> Iterator[Sink]:
    yield Sink(brokers)
    for broker in brokers.brokers:  # as they were
        if broker.environment.pop(FAILPOINT, None) is not None or not broker.alive:
            broker.restart()


def rows(spark: Any, count: int, *, prefix: str = "row") -> Any:
    return spark.range(count).selectExpr(f"concat('{prefix} ', id) as body")


def expected(count: int, *, prefix: str = "row") -> collections.Counter[str]:
    return collections.Counter(f"{prefix} {number}" for number in range(count))


class Stream:
    """A streaming query over text files, one file a batch, shuffled anew each time it runs."""

    def __init__(self, spark: Any, sink: Sink, folder: Path) -> None:
        self._spark = spark
        self._sink = sink
        self.folder = folder
        (folder / "in").mkdir()
        self.files = 0
        self.rows = 0

    def feed(self, count: int) -> None:
        lines = [f"row {self.rows + number}" for number in range(count)]
        beside = self.folder / f"{self.files}.new"
        beside.write_text("\n".join(lines))
        beside.rename(self.folder / "in" / f"{self.files:05d}.txt")
        self.files += 1
        self.rows += count

    def start(self, **options: Any) -> Any:
        frame = (
            self._spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", 1)
            .text(str(self.folder / "in"))
            .withColumnRenamed("value", "body")
            .selectExpr("body", "rand() as place")
            .repartition(3, "place")
            .drop("place")
        )
        return (
            frame.writeStream.format("evenq")
            .options(**self._sink.options(**options))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, **options: Any) -> None:
        assert self.start(**options).awaitTermination(120)


@pytest.fixture
def stream(spark: Any, sink: Sink, tmp_path: Path) -> Stream:
    return Stream(spark, sink, tmp_path)


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


# ---------------------------------------------------------------------------------------------------------- batches


def test_a_batch_job_writes_every_row_once_and_a_second_one_again(spark: Any, sink: Sink) -> None:
    for _ in range(2):
        rows(spark, 1_000).write.format("evenq").mode("append").options(**sink.options()).save()
    assert sink.bodies() == collections.Counter(dict.fromkeys(expected(1000), 2))
    assert sink.staged() == 0


def test_every_column_arrives_and_message_groups_keep_the_order_of_their_partition(spark: Any, sink: Sink) -> None:
    other, ordered = f"{sink.name}-other", f"{sink.name}-ordered"
    sink.make(other)
    sink.make(ordered, message_type="FIFO", queues=2)
    frame = spark.range(600).selectExpr(
        f"if(id % 2 = 0, '{other}', '{ordered}') as topic",
        "concat('row ', lpad(id, 4, '0')) as body",
        "if(id % 2 = 0, 'even', null) as tag",
        "array(concat('key ', id), 'all') as keys",
        "map('number', string(id)) as properties",
        "if(id % 2 = 0, null, concat('group ', id % 7)) as messageGroup",
    )
    options = {name: value for name, value in sink.options().items() if name != "topic"}
    frame.coalesce(1).write.format("evenq").mode("append").options(**options, blockRows="37").save()
    plain, grouped = sink.read(other), sink.read(ordered)
    assert sorted(row.body.decode() for row in plain + grouped) == [f"row {n:04}" for n in range(600)]
    for row in plain + grouped:
        number = int(row.body[4:])
        assert (row.tag, row.messageGroup) == (("even", None) if number % 2 == 0 else (None, f"group {number % 7}"))
        assert (row.keys, dict(row.properties)) == ([f"key {number}", "all"], {"number": str(number)})
    by_group: dict[str, list[Any]] = {}
    for row in sorted(grouped, key=lambda row: (row.brokerName, row.queueId, row.queueOffset)):
        by_group.setdefault(row.messageGroup, []).append(row)
    for of_group in by_group.values():
        assert len({(row.brokerName, row.queueId) for row in of_group}) == 1
        assert [row.body for row in of_group] == sorted(row.body for row in of_group)


@pytest.mark.parametrize("delivery", ["atLeastOnce", "idempotent"])
def test_deliveries_without_a_decision_write_every_row_in_kafka_style(spark: Any, sink: Sink, delivery: str) -> None:
    frame = spark.range(500).selectExpr(
        "cast(concat('key ', id) as binary) as key", "concat('row ', id) as value",
        "array(named_struct('key', 'h', 'value', cast(string(id) as binary))) as headers",
    )  # fmt: skip
    options = sink.options(delivery=delivery, schemaStyle="kafka")
    frame.write.format("evenq").mode("append").options(**options).save()
    result = sink.read()
    assert collections.Counter(row.body.decode() for row in result) == expected(500)
    for row in result:
        number = row.body.decode()[4:]
        assert (row.keys, dict(row.properties)) == ([f"key {number}"], {"h": number})


def test_a_task_that_fails_in_the_middle_leaves_nothing_behind(spark: Any, sink: Sink, tmp_path: Path) -> None:
    marks = str(tmp_path)

    def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        Path(marks, f"{context.partitionId()}-{context.attemptNumber()}").touch()
        for number, batch in enumerate(batches):
            if number == 2 and context.attemptNumber() == 0:
                raise ValueError("this attempt fails")
            yield batch

    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = rows(spark, 1_000).coalesce(1).mapInArrow(failing_once, "body string")
        frame.write.format("evenq").mode("append").options(**sink.options(blockRows=50)).save()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "0-1"}
    assert sink.bodies() == expected(1_000)
    assert within(20, lambda: sink.staged() == 0)


def test_a_frame_that_cannot_be_written_fails_with_what_to_do(spark: Any, sink: Sink) -> None:
    def refused(frame: Any, mode: str = "append", **more: Any) -> str:
        with pytest.raises(Exception, match="SettingsError") as caught:
            frame.write.format("evenq").mode(mode).options(**sink.options(**more)).save()
        return str(caught.value)

    frame = rows(spark, 3)
    assert "use mode('append')" in refused(frame, mode="overwrite")
    assert "does not write column 'extra'" in refused(frame.selectExpr("body", "1 as extra"))
    assert "column tag must be string, not int" in refused(frame.selectExpr("body", "1 as tag"))
    assert "did you mean delivery?" in refused(frame, delivry="x")


def test_rows_that_a_job_cannot_handle_go_to_dead_letters_or_are_delivered_again(spark: Any, sink: Sink) -> None:
    job, group = Job(sink), f"{sink.name}-group"
    job.commit(job.attempt(0, bodies_of(0, 10)))
    with evenq.Admin(endpoint=sink.cluster.endpoint) as admin:
        admin.create_group(group)
    found = spark.read.format("evenq").options(endpoints=sink.endpoints, subscribe=sink.name).load()
    text = found.selectExpr("*", "cast(body as string) as text")
    assert to_dlq(text.where("text like '%1'"), group=group, endpoints=sink.endpoints) == 1
    assert send_back(text.where("text like '%2'"), group=group, endpoints=sink.endpoints) == 1
    letters = sink.read(f"%DLQ%{group}")
    assert [letter.body for letter in letters] == [b"0:1"]
    with pytest.raises(evenq.errors.SettingsError, match="keep topic, brokerName, queueId, queueOffset"):
        to_dlq(text.select("body"), group=group, endpoints=sink.endpoints)


# ---------------------------------------------------------------------------------------------------------- streams


def test_a_stream_writes_each_row_once_over_restarts_of_query_and_brokers(
    spark: Any, sink: Sink, stream: Stream
) -> None:
    """Shuffled anew each time. Both brokers end in the middle of a commit: first before the decision, then behind it,
    and the query fails; what it did is neither lost nor repeated when it runs again from its checkpoint.
    """
    stream.feed(400)
    stream.run()
    for point in ("staging.deciding", "staging.decided"):
        stream.feed(400)
        arm(sink, point)
        with pytest.raises(Exception, match="broker"):
            stream.start(writeTimeoutMs=4_000).awaitTermination(120)
        disarm(sink)
        for broker in sink.cluster.brokers:
            broker.restart()
        stream.run()
    assert sink.bodies() == expected(stream.rows)
    assert within(20, lambda: sink.staged() == 0)


def test_a_stream_goes_on_while_brokers_are_killed_as_they_publish(spark: Any, sink: Sink, stream: Stream) -> None:
    for _ in range(3):
        stream.feed(300)
    arm(sink, "staging.publishing:2")
    done = threading.Event()
    ends: list[str] = []
    watcher = reviving(sink, done, ends)
    try:
        stream.run()
    finally:
        done.set()
        watcher.join()
    assert "was ended by SIGKILL" in ends
    assert sink.bodies() == expected(stream.rows)


# ------------------------------------------------------------------------------------- what Spark does, without Spark


class Job:
    """One batch by hand: attempts of tasks and their commit, as Spark calls them."""

    def __init__(self, sink: Sink, *, query: str = "", batch: int = 0, **options: Any) -> None:
        self.options = WriteOptions.parse(sink.options(writeTimeoutMs=30_000, **options))
        self.query = query or f"query-{next(_numbers)}"
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


def test_of_two_attempts_that_ran_to_their_end_the_one_that_is_committed_counts(sink: Sink) -> None:
    """A speculative copy, its rows in another order."""
    job = Job(sink)
    first = job.attempt(0, bodies_of(0))
    second = job.attempt(0, bodies_of(0)[::-1], number=1)
    other = job.attempt(1, bodies_of(1))
    assert sink.staged() == 300
    job.commit(second, other)
    job.commit(first, other)  # again, with other winners: the first decision stands
    job.abort(second)  # too late
    assert sink.bodies() == collections.Counter(bodies_of(0) + bodies_of(1))
    assert within(20, lambda: sink.staged() == 0)
    late = job.attempt(0, bodies_of(0), number=2)
    assert late.staged is not None
    assert (late.staged.brokers, late.staged.rows) == ((), 0)


def test_an_aborted_batch_leaves_nothing_and_runs_again(sink: Sink) -> None:
    job = Job(sink)
    lost = job.attempt(0, bodies_of(0))
    job.abort(lost)
    assert within(20, lambda: sink.staged() == 0)
    with pytest.raises(evenq.errors.PreconditionFailed, match="dropped"):
        job.commit(lost)
    job.commit(job.attempt(0, bodies_of(0)))
    assert sink.bodies() == collections.Counter(bodies_of(0))


@pytest.mark.parametrize(("delivery", "times"), [("idempotent", 1), ("atLeastOnce", 2)])
def test_a_task_that_runs_again_is_told_by_its_rows_only_when_idempotent(sink: Sink, delivery: str, times: int) -> None:
    options = WriteOptions.parse(sink.options(delivery=delivery, blockRows=7, inFlight=3))
    attempt = TaskAttempt(query_id=f"query-{next(_numbers)}", batch_id=3, partition_id=1, attempt_id=0)
    for _ in range(2):
        sink_publishing.publish(options, attempt, iter([pa.record_batch({"body": pa.array(bodies_of(0))})]))
    assert sink.bodies() == collections.Counter(bodies_of(0) * times)


@pytest.mark.parametrize("delivery", ["transactional", "atLeastOnce"])
def test_a_message_group_keeps_its_order_over_many_blocks_under_way(sink: Sink, delivery: str) -> None:
    ordered = f"{sink.name}-ordered"
    sink.make(ordered, message_type="FIFO")
    job = Job(sink, topic=ordered, delivery=delivery, blockRows=3, inFlight=8)
    batch = pa.record_batch({"body": pa.array([f"{n:04}" for n in range(200)]), "messageGroup": pa.array(["g"] * 200)})
    attempt = TaskAttempt(query_id=job.query, batch_id=0, partition_id=0, attempt_id=0)
    if delivery == "transactional":
        job.commit(sink_writer.Done(job.query, sink_staging.stage(job.options, attempt, iter([batch]))))
    else:
        sink_publishing.publish(job.options, attempt, iter([batch]))
    assert [row.body for row in sink.read(ordered)] == [f"{n:04}".encode() for n in range(200)]


POINTS = [
    "staging.staged:3", "staging.deciding", "staging.decided", "staging.publishing", "staging.published",
    "staging.rolled",
]  # fmt: skip


def test_brokers_killed_at_every_step_neither_lose_nor_double_a_row(sink: Sink) -> None:
    ends: list[str] = []
    expected: list[str] = []
    query = f"query-{next(_numbers)}"
    for batch, point in enumerate(POINTS):
        arm(sink, point)
        done = threading.Event()
        watcher = reviving(sink, done, ends)
        try:
            job = Job(sink, query=query, batch=batch)
            parts = [job.attempt(partition, bodies_of(10 * batch + partition)) for partition in range(2)]
            job.commit(*parts)
            job.commit(*parts)  # as a replayed batch does
            assert within(30, lambda: sink.staged() == 0), point
        finally:
            done.set()
            watcher.join()
        expected += [body for partition in range(2) for body in bodies_of(10 * batch + partition)]
    assert ends.count("was ended by SIGKILL") >= len(POINTS)
    assert sink.bodies() == collections.Counter(expected)


def test_a_broker_that_was_away_publishes_its_part_when_it_is_back(sink: Sink) -> None:
    job = Job(sink)
    done = job.attempt(0, bodies_of(0))
    assert done.staged is not None
    assert len(done.staged.brokers) == 2
    [away] = [broker for broker in sink.cluster.brokers if broker.name != done.staged.coordinator]
    away.kill()
    job.commit(done)
    away.restart()
    assert within(30, lambda: sink.staged() == 0)
    assert sink.bodies() == collections.Counter(bodies_of(0))


def test_a_querys_coordinator_is_known_to_whoever_is_left_of_its_brokers(sink: Sink) -> None:
    """The list of brokers changes between two batches, and the new list would have chosen another one."""
    job = Job(sink)
    parts = [job.attempt(0, bodies_of(0))]
    job.commit(*parts)
    first = parts[0].staged
    assert first is not None
    route = sink_cluster.route_of(job.options.endpoints, sink.name, timeout_ms=60_000)
    for name, address in route.addresses.items():
        sink_cluster._coordinators.clear()  # as another process
        result = sink_cluster.coordinator_of({name: address}, job.query, 0, [sink.name], timeout_ms=60_000)
        assert result == (first.coordinator, True), f"asked of {name} alone"


def test_a_query_does_not_begin_while_a_broker_that_may_know_it_is_silent(sink: Sink) -> None:
    away = sink.cluster.brokers[1]
    job = Job(sink)
    route = sink_cluster.route_of(job.options.endpoints, sink.name, timeout_ms=60_000)
    away.kill()
    with pytest.raises(evenq.errors.ConnectionFailed, match="is a broker running there"):
        sink_cluster.coordinator_of(route.addresses, job.query, 0, [sink.name], timeout_ms=1_000)
    away.restart()
    name, decided = sink_cluster.coordinator_of(route.addresses, job.query, 0, [sink.name], timeout_ms=60_000)
    assert (name in route.addresses, decided) == (True, False)


def test_a_broker_that_does_not_answer_is_tried_for_as_long_as_the_option_says() -> None:
    options = WriteOptions.parse({"endpoints": "127.0.0.1:1", "topic": "t", "writeTimeoutMs": "300"})
    began = time.monotonic()
    with pytest.raises(evenq.errors.ConnectionFailed, match="is a broker running there"):
        sink_staging.stage(options, TaskAttempt(query_id="q", batch_id=0, partition_id=0, attempt_id=0), iter(()))
    assert time.monotonic() - began < 30  # the default is a minute


def test_an_ordinary_consumer_gets_each_row_once(sink: Sink) -> None:
    job = Job(sink)
    job.commit(*[job.attempt(partition, bodies_of(partition)) for partition in range(5)])
    seen: collections.Counter[str] = collections.Counter()
    with evenq.SimpleConsumer(
        endpoint=sink.cluster.endpoint, group=f"{sink.name}-readers", subscriptions={sink.name: "*"}, start_from="FIRST"
    ) as consumer:
        while messages := consumer.receive(32, wait_ms=3_000 if sum(seen.values()) >= 500 else 20_000):
            for message in messages:
                seen[message.body.decode()] += 1
                consumer.ack(message)
    assert seen == collections.Counter(body for partition in range(5) for body in bodies_of(partition))


def test_a_consumer_of_the_official_python_sdk_gets_each_row_once_and_whole(sink: Sink, tmp_path: Path) -> None:
    count, group = 120, f"{sink.name}-official"
    with evenq.Admin(endpoint=sink.cluster.endpoint) as admin:
        admin.create_group(group, start_from="FIRST")
    job = Job(sink)
    columns = {
        "body": pa.array([f"body-{number}" for number in range(count)]), "tag": pa.array(["even"] * count),
        "keys": pa.array([[f"key-{number}"] for number in range(count)], pa.list_(pa.string())),
        "properties": pa.array([[("number", str(number))] for number in range(count)], pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    attempt = TaskAttempt(query_id=job.query, batch_id=0, partition_id=0, attempt_id=0)
    batches = iter([pa.record_batch(columns)])
    job.commit(sink_writer.Done(job.query, sink_staging.stage(job.options, attempt, batches)))
    peer = Peer(
        [sys.executable, str(SDK_PEER), "simple", sink.cluster.endpoint, sink.name, group, "even", str(count)],
        log_path=tmp_path / "peer.log",
    )
    try:
        peer.wait_done(seconds=120)
    finally:
        peer.end()
    assert sorted(peer.numbers()) == list(range(count))
    for said in peer.of("got"):
        assert (said["body"], said["keys"], said["attempt"]) == (f"body-{said['got']}", [f"key-{said['got']}"], 1)
    assert len(sink.read()) == count
