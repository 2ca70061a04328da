"""A real Spark writes to real brokers: each row becomes a message once, whatever is killed, repeated or shuffled."""

from __future__ import annotations

import collections
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from evenq_proofs.peer import Peer
from pyspark_evenq import send_back, to_dlq
from pyspark_evenq.sink import staging as sink_staging
from pyspark_evenq.sink import writer as sink_writer
from pyspark_evenq.sink.staging import TaskAttempt

import evenq
from evenq.testing.local_cluster import LocalCluster
from tests.integration.sink_jobs import Job, Sink, arm, bodies_of, disarm, new_sink, reviving, sink_brokers
from tests.spark.waiting import within

SDK_PEER = Path(__file__).parents[1] / "compat" / "python_sdk_peer.py"


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    with sink_brokers() as running:
        yield running


@pytest.fixture
def sink(brokers: LocalCluster) -> Iterator[Sink]:
    with new_sink(brokers) as made:
        yield made


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
    assert within(20, sink.settled)
    assert sink.bodies() == expected(stream.rows)


def test_a_checkpoint_that_was_put_back_or_copied_fails_its_query_and_no_row_is_lost(
    sink: Sink, stream: Stream
) -> None:
    """12a: the batches of an older copy passed as written, and 200 of 1,200 rows were never stored."""
    checkpoint, older, other = stream.folder / "checkpoint", stream.folder / "older", f"{sink.name}-copy"
    sink.make(other)
    for number in range(3):
        stream.feed(100)
        stream.run()
        if number == 0:
            shutil.copytree(checkpoint, older)
    stream.feed(100)
    with pytest.raises(Exception, match="it comes from a copied checkpoint"):
        stream.start(topic=other).awaitTermination(120)
    shutil.rmtree(checkpoint)
    older.rename(checkpoint)
    with pytest.raises(Exception, match="older or second copy of this checkpoint"):
        stream.start().awaitTermination(120)
    assert sink.bodies() == expected(300)
    stream.run(onDecidedBatch="write")
    assert set(sink.bodies()) == set(expected(400)), "nothing is lost, and what was decided before is there twice"
    stream.feed(100)
    stream.run()
    assert set(sink.bodies()) == set(expected(500))


def test_a_stream_goes_on_while_brokers_are_killed_as_they_publish(spark: Any, sink: Sink, stream: Stream) -> None:
    for _ in range(3):
        stream.feed(300)
    arm(sink, "staging.publishing:2")
    done = threading.Event()
    ends: list[str] = []
    watcher = reviving(sink, done, ends)
    try:
        stream.run()
        assert within(60, sink.settled)
    finally:
        done.set()
        watcher.join()
    assert "was ended by SIGKILL" in ends
    assert sink.bodies() == expected(stream.rows)


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
