"""What Spark calls to write, by hand, against real brokers: each row becomes a message once, whatever is killed or
repeated. With a Spark: `tests/spark/test_14_sink.py`.
"""

from __future__ import annotations

import collections
import datetime as dt
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink import cluster as sink_cluster
from pyspark_evenq.sink import publishing as sink_publishing
from pyspark_evenq.sink import staging as sink_staging
from pyspark_evenq.sink import writer as sink_writer
from pyspark_evenq.sink.staging import TaskAttempt

import evenq
from evenq.testing.local_cluster import LocalCluster
from tests.integration.sink_jobs import Job, Sink, arm, bodies_of, new_query, new_sink, reviving, sink_brokers
from tests.spark.waiting import within


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    with sink_brokers() as running:
        yield running


@pytest.fixture
def sink(brokers: LocalCluster) -> Iterator[Sink]:
    with new_sink(brokers) as made:
        yield made


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
    assert (late.staged.brokers, late.staged.rows) == ((), 100)


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
    attempt = TaskAttempt(query_id=new_query(), batch_id=3, partition_id=1, attempt_id=0)
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


@pytest.mark.parametrize("delivery", ["transactional", "idempotent", "atLeastOnce"])
def test_odd_rows_are_the_same_messages_and_the_same_errors_with_every_delivery(sink: Sink, delivery: str) -> None:
    """12c: null keys and values, priorities and queues below 0, and headers twice were treated in three ways."""
    job = Job(sink, delivery=delivery)
    attempt = TaskAttempt(query_id=job.query, batch_id=0, partition_id=0, attempt_id=0)

    def write(**columns: Any) -> None:
        rows = iter([pa.record_batch({"body": pa.array(["1", "2"]), **columns})])
        if delivery == "transactional":
            job.commit(sink_writer.Done(job.query, sink_staging.stage(job.options, attempt, rows)))
        else:
            sink_publishing.publish(job.options, attempt, rows)

    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    twice = [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
    for columns in (
        {"priority": pa.array([None, -5], pa.int32())},
        {"queueId": pa.array([-7, None], pa.int32()), "brokerName": pa.array(["broker-a", None])},
        {"queueId": pa.array([0, None], pa.int32()), "brokerName": pa.array([None, None], pa.string())},
        {"headers": pa.array([None, twice], header)},
        {"headers": pa.array([None, [{"key": None, "value": b"1"}]], header)},
        {"key": pa.array([b"\xff", None])},
        {"body": pa.array(["1", None])},
    ):
        with pytest.raises(evenq.errors.SettingsError, match=r"row [01] of the task: "):
            write(**columns)
    assert sink.bodies() == collections.Counter()
    write(
        keys=pa.array([["a", None, ""], None], pa.list_(pa.string())), tag=pa.array(["", None]),
        messageGroup=pa.array([None, ""]),
        properties=pa.array([[("p", None)], None], pa.map_(pa.string(), pa.string())),
    )  # fmt: skip
    first, second = sorted(sink.read(), key=lambda row: bytes(row.body))
    assert (first.keys, first.tag, first.messageGroup, dict(first.properties)) == (["a"], None, None, {"p": ""})
    assert (second.keys, second.tag, second.messageGroup, dict(second.properties)) == ([], None, None, {})


@pytest.mark.parametrize("delivery", ["transactional", "idempotent", "atLeastOnce"])
def test_a_delayed_row_is_in_the_queue_that_it_names(sink: Sink, delivery: str) -> None:
    topic = f"{sink.name}-delayed"
    sink.make(topic, message_type="DELAY", queues=4)
    job = Job(sink, topic=topic, delivery=delivery)
    attempt = TaskAttempt(query_id=job.query, batch_id=0, partition_id=0, attempt_id=0)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    rows = pa.record_batch(
        {
            "body": pa.array(bodies_of(0, 5)), "brokerName": pa.array(["broker-a"] * 5),
            "queueId": pa.array([3] * 5, pa.int32()), "deliveryTimestamp": pa.array([soon] * 5, pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    if delivery == "transactional":
        job.commit(sink_writer.Done(job.query, sink_staging.stage(job.options, attempt, iter([rows]))))
    else:
        sink_publishing.publish(job.options, attempt, iter([rows]))
    assert within(20, lambda: len(sink.read(topic)) == 5)
    assert {(row.brokerName, row.queueId) for row in sink.read(topic)} == {("broker-a", 3)}


# ------------------------------------------------------------------------------------- which copy of a checkpoint it is


def test_a_checkpoint_that_was_put_back_is_an_error_and_loses_nothing(sink: Sink) -> None:
    """12a: its batches had numbers that were decided, and passed as written: 200 of 1,200 rows were lost."""
    query = new_query()
    for batch in range(3):
        job = Job(sink, query=query, batch=batch)
        job.commit(job.attempt(0, bodies_of(batch, 20)))
    with pytest.raises(evenq.errors.PreconditionFailed, match="older or second copy of this checkpoint"):
        Job(sink, query=query, batch=1).attempt(0, bodies_of(8, 20))
    last = Job(sink, query=query, batch=2)
    with pytest.raises(evenq.errors.PreconditionFailed, match="decided with 20 rows, and now has 20 rows that are not"):
        last.commit(last.attempt(0, bodies_of(9, 20)))
    # Spark's own retry after a crash: the same rows, in other tasks and another order.
    last.commit(last.attempt(0, bodies_of(2, 20)[10:]), last.attempt(1, bodies_of(2, 20)[:10][::-1]))
    skipping = Job(sink, query=query, batch=0, onDecidedBatch="skip")
    skipping.commit(skipping.attempt(0, bodies_of(9, 20)))
    expected = collections.Counter(body for batch in range(3) for body in bodies_of(batch, 20))
    assert sink.bodies() == expected
    for batch in (1, 2, 3):  # with other sizes of batches, as after `onDecidedBatch=write` in a real job
        again = Job(sink, query=query, batch=batch, onDecidedBatch="write")
        again.commit(again.attempt(0, bodies_of(10 + batch, 20)))
    assert sink.bodies() == expected + collections.Counter(
        body for batch in (11, 12, 13) for body in bodies_of(batch, 20)
    )


def test_a_copied_checkpoint_with_another_topic_takes_nothing_from_the_original(sink: Sink) -> None:
    """12a, 13: 0 of the copy's 400 rows were stored, and then the original lost 100."""
    other, query = f"{sink.name}-copy", new_query()
    sink.make(other)
    first = Job(sink, query=query)
    first.commit(first.attempt(0, bodies_of(0, 20)))
    for process in ("the same", "another"):
        if process == "another":
            sink_cluster._coordinators.clear()
        with pytest.raises(evenq.errors.PreconditionFailed, match="it comes from a copied checkpoint"):
            Job(sink, query=query, batch=1, topic=other).attempt(0, bodies_of(1, 20))
    second = Job(sink, query=query, batch=1)
    second.commit(second.attempt(0, bodies_of(1, 20)))
    assert sink.bodies() == collections.Counter(bodies_of(0, 20) + bodies_of(1, 20))
    moved = Job(sink, query=query, batch=2, topic=other, onDecidedBatch="write")
    moved.commit(moved.attempt(0, bodies_of(2, 20)))
    assert {row.body.decode() for row in sink.read(other)} == set(bodies_of(2, 20))


def test_rows_of_an_older_copy_are_not_taken_for_those_that_were_sent_under_their_numbers(sink: Sink) -> None:
    """12a with delivery=idempotent: brokers know a row by its id, which was made of its place alone."""
    options = WriteOptions.parse(sink.options(delivery="idempotent"))
    attempt = TaskAttempt(query_id=new_query(), batch_id=3, partition_id=1, attempt_id=0)
    for number in (0, 0, 1):
        rows = pa.record_batch({"body": pa.array(bodies_of(number, 20))})
        sink_publishing.publish(options, attempt, iter([rows]))
    assert sink.bodies() == collections.Counter(bodies_of(0, 20) + bodies_of(1, 20))


# ---------------------------------------------------------------------------------------------------- kills and silence


POINTS = [
    "staging.staged:3", "staging.deciding", "staging.decided", "staging.publishing", "staging.published",
    "staging.rolled",
]  # fmt: skip


@pytest.mark.slow
def test_brokers_killed_at_every_step_neither_lose_nor_double_a_row(sink: Sink) -> None:
    ends: list[str] = []
    expected: list[str] = []
    query = new_query()
    for batch, point in enumerate(POINTS):
        arm(sink, point)
        done = threading.Event()
        watcher = reviving(sink, done, ends)
        try:
            job = Job(sink, query=query, batch=batch)
            parts = [job.attempt(partition, bodies_of(10 * batch + partition)) for partition in range(2)]
            job.commit(*parts)
            job.commit(*parts)  # as a replayed batch does
            assert within(30, sink.settled), point
        finally:
            done.set()
            watcher.join()
        expected += [body for partition in range(2) for body in bodies_of(10 * batch + partition)]
    assert ends.count("was ended by SIGKILL") >= len(POINTS)
    assert sink.bodies() == collections.Counter(expected)


@pytest.mark.slow
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
    beginning = sink_cluster.BegunBatch(query_id=job.query, batch_id=0, topic=sink.name, fixed_topic=True)
    for name, address in route.addresses.items():
        sink_cluster._coordinators.clear()  # as another process
        result = sink_cluster.coordinator_of({name: address}, beginning, timeout_ms=60_000)
        assert result == (first.coordinator, True), f"asked of {name} alone"


def test_tasks_whose_topics_share_no_broker_find_one_coordinator(sink: Sink) -> None:
    """Each task begins with the topic of its first row; every retry of such a batch failed."""
    names = [broker.name for broker in sink.cluster.brokers]
    topics = [f"{sink.name}-{name}" for name in names]
    for topic, name in zip(topics, names, strict=True):
        sink.make(topic, brokers={name: 2})
    options = WriteOptions.parse({"endpoints": sink.endpoints, "writeTimeoutMs": "30000"})
    query = new_query()
    for batch in range(2):
        parts = []
        for partition, topic in enumerate(topics):
            sink_cluster._coordinators.clear()  # as another worker
            attempt = TaskAttempt(query_id=query, batch_id=batch, partition_id=partition, attempt_id=0)
            rows = pa.record_batch({"body": pa.array(bodies_of(batch, 20)), "topic": pa.array([topic] * 20)})
            parts.append(sink_writer.Done(query, sink_staging.stage(options, attempt, iter([rows]))))
        assert len({part.staged.coordinator for part in parts if part.staged}) == 1
        sink_writer.commit(options, batch, list(parts))
    assert within(20, lambda: sink.staged() == 0)
    for topic in topics:
        found = collections.Counter(row.body.decode() for row in sink.read(topic))
        assert found == collections.Counter(bodies_of(0, 20) + bodies_of(1, 20))


@pytest.mark.parametrize("leaves", ["closed", "withdrawn"])
def test_a_querys_coordinator_is_found_when_its_topic_has_moved_away_from_it(sink: Sink, leaves: str) -> None:
    """Spark repeats the last batch at its start; it was written twice."""
    old, new = (broker.name for broker in sink.cluster.brokers)
    topic = f"{sink.name}-{leaves}"
    sink.make(topic, brokers={old: 2})
    job = Job(sink, topic=topic)
    job.commit(job.attempt(0, bodies_of(0)))
    with evenq.Admin(endpoint=sink.cluster.endpoint) as admin:
        admin.create_topic(topic, brokers={new: 2})
        if leaves == "closed":
            admin.permit_topic(topic, "READ", broker=old)
        else:
            admin.withdraw_topic(topic, broker=old, force=True, wait_ms=10_000)
    assert within(
        20,
        lambda: sink_cluster.route_of(job.options.endpoints, topic, timeout_ms=60_000).addresses.keys() == {new},
    )
    sink_cluster._coordinators.clear()  # as another process
    again = job.attempt(0, bodies_of(0))
    assert again.staged is not None
    assert (again.staged.coordinator, again.staged.brokers) == (old, ())
    job.commit(again)
    assert len(sink.read(topic)) == (100 if leaves == "closed" else 0)


@pytest.mark.slow
def test_a_query_does_not_begin_while_a_broker_that_may_know_it_is_silent(sink: Sink) -> None:
    away = sink.cluster.brokers[1]
    job = Job(sink)
    route = sink_cluster.route_of(job.options.endpoints, sink.name, timeout_ms=60_000)
    beginning = sink_cluster.BegunBatch(query_id=job.query, batch_id=0, topic=sink.name, fixed_topic=True)
    away.kill()
    with pytest.raises(evenq.errors.ConnectionFailed, match="is a broker running there"):
        sink_cluster.coordinator_of(route.addresses, beginning, timeout_ms=1_000)
    away.restart()
    name, decided = sink_cluster.coordinator_of(route.addresses, beginning, timeout_ms=60_000)
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
