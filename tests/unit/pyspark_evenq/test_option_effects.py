"""What an option changes where it counts: at the broker, or in the work that is planned.

The table in the guide names these tests; each fails when its option is parsed and passed over.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.sink import cluster as sink_cluster
from pyspark_evenq.sink import staging as sink_staging
from pyspark_evenq.sink.staging import TaskAttempt
from pyspark_evenq.source.reader import BatchReader
from pyspark_evenq.source.stream import StreamReader

from evenq.columns.arrow_schema import OutputColumn
from evenq.errors import ConnectionFailed
from evenq.model.queue import MessageQueue
from evenq.wire.stubs.evenq.v1 import staging_pb2

BODY = (OutputColumn("body", nullable=True),)
QUEUE = MessageQueue("flights", "broker-a", 0)


@pytest.fixture
def filled(broker: Any) -> Any:
    for number in range(64):
        broker.send(str(number), queue=number % 2)
    return broker


def batch(broker: Any, **more: str) -> BatchReader:
    given = {"endpoints": broker.endpoint, "subscribe": "flights", "gcFreeze": "false"}
    return BatchReader(ReadOptions.parse(given | more, streaming=False), BODY)


def blocks(reader: BatchReader) -> list[int]:
    """Rows of each block that came."""
    return [rows.num_rows for task in reader.partitions() for rows in reader.read(task)]


def test_a_broker_sends_blocks_of_the_size_that_the_option_says(filled: Any) -> None:
    assert blocks(batch(filled, blockBytes="1024")) == [4] * 16, "it counts 256 bytes a message"
    assert blocks(batch(filled, blockBytes="4096")) == [16] * 4


@pytest.mark.parametrize(("kind", "records"), [("auto", True), ("log", True), ("message", False)])
def test_a_broker_sends_what_the_option_format_says(filled: Any, kind: str, records: bool) -> None:
    filled.sends_records = True
    assert sum(blocks(batch(filled, format=kind))) == 64
    assert bool(filled.parts) is records


def test_a_broker_that_does_not_answer_is_tried_for_as_long_as_the_option_says(broker: Any) -> None:
    broker.send("a")
    reader = batch(broker, readTimeoutMs="300")
    [task] = reader.partitions()
    broker.stop()
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match="is a broker running there"):
        reader.partitions()
    with pytest.raises(ConnectionFailed, match="is a broker running there"):
        next(reader.read(task))
    assert time.monotonic() - began < 40, "the default is a minute"


def test_short_ranges_share_a_task_until_it_has_as_many_messages_as_the_option_says(filled: Any) -> None:
    assert len(batch(filled).partitions()) == 2
    assert len(batch(filled, minRecordsPerPartition="33").partitions()) == 1
    given = {"endpoints": filled.endpoint, "subscribe": "flights", "group": "g", "startingOffsets": "earliest"}
    for more, tasks in (({}, 1), ({"minRecordsPerPartition": "32"}, 2)):
        reader = StreamReader(ReadOptions.parse(given | more, streaming=True), BODY)
        try:
            start = reader.initialOffset()
            assert len(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == tasks
        finally:
            reader.stop()


class Brokers:
    """In place of the sink's calls: what was sent, and how much of it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Condition()
        self._together = 0
        found = sink_cluster.Brokers((QUEUE,), {"broker-a": "127.0.0.1:1"})
        monkeypatch.setattr(sink_cluster, "route_of", lambda *_, **__: found)
        monkeypatch.setattr(sink_cluster, "coordinator_of", lambda *_, **__: ("broker-a", False))
        monkeypatch.setattr(sink_cluster, "address_of", lambda *_: "127.0.0.1:1")
        monkeypatch.setattr(sink_cluster, "stage", self._stage)

    def _stage(self, _address: str, request: bytes, *, timeout_ms: int) -> None:
        with self._lock:
            self.rows.append(staging_pb2.StageRequest.FromString(request).rows.count)
            self._now += 1
            self.most = max(self.most, self._now)
            self._lock.notify_all()
            self._lock.wait_for(lambda: self.most >= self._together, 5)  # until as many are here as may be
            self._now -= 1

    def sent(self, *, together: int = 1, **options: str) -> list[int]:
        """Rows of each transfer of 40 rows, largest first."""
        self.rows, self.most, self._now, self._together = [], 0, 0, together
        given = WriteOptions.parse({"endpoints": "h:1", "topic": "flights"} | options)
        attempt = TaskAttempt(query_id="q", batch_id=0, partition_id=0, attempt_id=0)
        rows = pa.record_batch({"body": pa.array(["x" * 500] * 40)})
        staged = sink_staging.stage(given, attempt, iter([rows]))
        assert staged is not None
        assert staged.rows == 40
        return sorted(self.rows, reverse=True)


def test_a_task_sends_blocks_of_the_size_that_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch)
    assert brokers.sent() == [40]
    assert brokers.sent(blockRows="15") == [15, 15, 10]
    by_bytes = brokers.sent(blockBytes="5120")
    assert len(by_bytes) > 3
    assert max(by_bytes) <= 10, "of 500 bytes each"


@pytest.mark.parametrize("many", [1, 6])
def test_a_task_has_as_many_transfers_under_way_as_the_option_says(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    brokers = Brokers(monkeypatch)
    assert brokers.sent(together=many, blockRows="5", inFlight=str(many)) == [5] * 8
    assert brokers.most == many
