"""What Spark calls to write: tasks bring what they staged, the driver decides about all of it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark_evenq.brokers import connection
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink.blocks import checksum_of
from pyspark_evenq.sink.staging import Staged
from pyspark_evenq.sink.writer import BATCH_ID, QUERY_ID, BatchWriter, Done, StreamWriter

from evenq.errors import BadRequest, InternalError, PreconditionFailed


@pytest.fixture(autouse=True)
def plain_again() -> Iterator[None]:
    yield
    connection.sign_with(None)
    connection.secure_with(None)


class Task:
    """In place of Spark's context of a task."""

    def __init__(self, partition: int, **local: str) -> None:
        self._partition, self._local = partition, local

    def partitionId(self) -> int:  # noqa: N802  Spark's name
        return self._partition

    def taskAttemptId(self) -> int:  # noqa: N802  the same
        return 40 + self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  the same
        return self._local.get(name)


def options_of(broker: Any, **more: str) -> WriteOptions:
    return WriteOptions.parse({"endpoints": broker.endpoint, "topic": "flights", "gcFreeze": "false"} | more)


def rows(*bodies: str) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"body": pa.array(bodies, pa.string())})])


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    def task(partition: int, batch: int = 0, query: str = "q") -> None:
        made = Task(partition, **{QUERY_ID: query, BATCH_ID: str(batch)})
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda: made)

    return task


def staged(coordinator: str = "broker-a", *, token: bytes = b"t" * 16, **more: Any) -> Staged:
    return Staged(**{
        "token": token, "coordinator": coordinator, "address": "h:1", "topics": ("flights",),
        "brokers": ("broker-a",), "rows": 1, "checksum": 2, **more,
    })  # fmt: skip


def test_a_batch_is_decided_once_with_all_that_its_tasks_staged(broker: Any, task: Any) -> None:
    writer = StreamWriter(options_of(broker))
    messages = []
    for partition, bodies in enumerate([("a", "b"), (), ("c",)]):
        task(partition, batch=3)
        messages.append(pickle.loads(pickle.dumps(writer.write(rows(*bodies)))))
    writer.commit([*messages, None], 3)
    [decision] = broker.sink.decided
    assert (decision.query_id, decision.batch_id, list(decision.topics)) == ("q", 3, ["flights"])
    tokens = {bytes(block.token) for block in broker.sink.staged}
    assert {bytes(one.token) for one in decision.winners} == tokens
    assert len(tokens) == 2, "no broker knows a task without rows"
    assert decision.content.rows == 3
    assert decision.content.checksum == checksum_of(next(rows("c", "b", "a")))
    assert {(block.partition_id, block.attempt_id) for block in broker.sink.staged} == {(0, 40), (2, 42)}


def test_the_sum_of_two_tasks_stays_within_its_width(broker: Any) -> None:
    writer = StreamWriter(options_of(broker))
    halves = [staged(token=bytes([at]) * 16, checksum=(1 << 64) - 1, address=broker.endpoint) for at in range(2)]
    writer.commit([Done("q", one) for one in halves], 0)
    assert broker.sink.decided[0].content.checksum == (1 << 64) - 2


def test_a_batch_whose_tasks_wrote_to_different_topics_names_all_of_them(broker: Any) -> None:
    writer = StreamWriter(options_of(broker))
    done = [
        Done("q", staged(token=topic.encode() * 16, address=broker.endpoint, topics=(topic,)))
        for topic in ("b", "a", "c")
    ]
    writer.commit(list(done), 0)
    writer.abort(list(done), 1)
    for request in (*broker.sink.decided, *broker.sink.abandoned):
        assert list(request.topics) == ["a", "b", "c"]
    assert len(broker.sink.decided) == len(broker.sink.abandoned) == 1


def test_nothing_is_decided_where_nothing_was_staged(broker: Any) -> None:
    StreamWriter(options_of(broker)).commit([None, Done("q", None)], 0)
    StreamWriter(options_of(broker)).abort([None, Done("q", None)], 0)
    assert broker.sink.decided == broker.sink.abandoned == []


def test_a_decision_that_is_refused_fails_the_batch(broker: Any) -> None:
    broker.sink.refuses = lambda _: True
    with pytest.raises(BadRequest, match="refused by the test"):
        StreamWriter(options_of(broker)).commit([Done("q", staged(address=broker.endpoint))], 0)


def test_tasks_that_found_different_coordinators_are_not_decided(broker: Any) -> None:
    with pytest.raises(PreconditionFailed, match=r"different coordinators, \['a', 'b'\]"):
        StreamWriter(options_of(broker)).commit([Done("q", staged("a")), Done("q", staged("b"))], 0)


def test_an_abort_drops_what_was_staged_and_never_fails(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter(options_of(broker))
    messages = [Done("q", staged(address=broker.endpoint)), None, Done("q", staged(token=b"n" * 16, brokers=()))]
    writer.abort(messages, 5)
    [request] = broker.sink.abandoned
    assert (request.query_id, request.batch_id, list(request.tokens)) == ("q", 5, [b"t" * 16])
    broker.sink.refuses = lambda _: True
    with caplog.at_level(logging.WARNING):
        writer.abort(messages, 5)
    assert "rows of batch 5 could not be dropped and stay staged until staging.timeout_ms: refused" in caplog.text


def test_a_batch_job_is_a_query_of_its_own(broker: Any, task: Any) -> None:
    task(0)
    writers = [BatchWriter(options_of(broker)) for _ in range(2)]
    for writer in writers:
        writer.commit([writer.write(rows("a"))])
    first, second = (decision.query_id for decision in broker.sink.decided)
    assert first != second
    assert first.startswith("job-")
    assert {(block.query_id, block.batch_id) for block in broker.sink.staged} == {(first, 0), (second, 0)}
    writers[0].abort([Done(first, staged(address=broker.endpoint))])
    assert broker.sink.abandoned[0].query_id == first


def test_without_a_decision_tasks_send_and_the_driver_has_nothing_to_do(broker: Any, task: Any) -> None:
    task(0)
    writer = StreamWriter(options_of(broker, delivery="atLeastOnce"))
    writer.commit([writer.write(rows("a"))], 0)
    assert [bytes(message.body) for message in broker.sink.messages] == [b"a"]
    assert broker.sink.begun == broker.sink.decided == []


def test_a_writer_outside_of_a_task_says_so(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: None)
    with pytest.raises(InternalError, match="Spark does not set query and batch"):
        StreamWriter(options_of(broker)).write(rows("a"))
    with pytest.raises(InternalError, match="runs outside of a task of Spark"):
        BatchWriter(options_of(broker)).write(rows("a"))
