"""A task's reading, over real gRPC with a broker that breaks."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.cluster import Located
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.planner import OffsetRange
from pyspark_evenq.sink import writer as sink_writer
from pyspark_evenq.source.scanning import read, scan_tasks

from evenq.columns.arrow_schema import OutputColumn
from evenq.errors import ConnectionFailed, IllegalOffset, Unsupported
from evenq.model.queue import MessageQueue

BODY = (OutputColumn("body", nullable=True),)


def at(addresses: dict[MessageQueue, str]) -> Located:
    return Located(addresses=addresses)


def options(broker: Any, **more: str) -> ReadOptions:
    given = {"endpoints": broker.endpoint, "subscribe": "flights", "blockBytes": "1024", "gcFreeze": "false"}
    return ReadOptions.parse(given | more, streaming=False)


def bodies(broker: Any, start: int, end: int, *, address: str | None = None, uid: str = "", **more: str) -> list[str]:
    part = OffsetRange(queue=broker.queue(0), start=start, end=end)
    address = broker.endpoint if address is None else address
    [task] = scan_tasks([[part]], at({part.queue: address}), {("flights", "broker-a"): uid})
    return [
        body.decode()
        for batch in read(task, options(broker, **more), BODY)
        for body in batch.column("body").to_pylist()
    ]


@pytest.fixture
def filled(broker: Any) -> Any:
    for number in range(50):
        broker.send(str(number), tag="even" if number % 2 == 0 else "odd")
    return broker


def test_a_range_is_read_in_order_and_nothing_else(filled: Any) -> None:
    assert bodies(filled, 7, 33) == [str(number) for number in range(7, 33)]
    assert filled.calls.count("Scan") == 1


def test_a_broken_scan_goes_on_at_the_next_unread_message(filled: Any) -> None:
    filled.cut_scans = 3
    assert bodies(filled, 0, 50) == [str(number) for number in range(50)]
    assert filled.calls.count("Scan") == 4


def test_a_broker_that_comes_back_is_found_again(filled: Any) -> None:
    filled.stop()
    timer = threading.Timer(0.3, filled.start)
    timer.start()
    assert bodies(filled, 0, 50, readTimeoutMs="20000") == [str(number) for number in range(50)]
    timer.join()


def test_a_broker_that_stays_away_is_an_error_after_the_read_timeout(filled: Any) -> None:
    filled.stop()
    with pytest.raises(ConnectionFailed, match="is a broker running there"):
        bodies(filled, 0, 50, readTimeoutMs="200")


def test_a_broker_that_alone_had_the_topic_is_waited_for_and_nothing_is_called_lost(filled: Any) -> None:
    """The others know no open queue of the topic, and remember that the broker had some."""
    filled.queues.clear()
    filled.away = {"broker-b": 1}
    part = OffsetRange(queue=MessageQueue("flights", "broker-b", 0), start=0, end=5)
    [task] = scan_tasks([[part]], at({part.queue: "127.0.0.1:1"}), {("flights", "broker-b"): "uid"})
    with pytest.raises(ConnectionFailed, match=r"no broker serves flights@broker-b:0 now: broker-b is not there"):
        list(read(task, options(filled, readTimeoutMs="300"), BODY))


def test_an_unknown_address_is_asked_for(filled: Any) -> None:
    assert len(bodies(filled, 0, 50, address="")) == 50


def test_tags_leave_messages_out_without_a_gap(filled: Any) -> None:
    assert bodies(filled, 0, 50, tags="even") == [str(number) for number in range(0, 50, 2)]


def test_a_trimmed_start_is_data_loss_with_all_numbers(filled: Any) -> None:
    filled.low[0] = 20
    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was to be read at offset 5, .* 20 to 50"):
        bodies(filled, 5, 50)
    assert bodies(filled, 5, 50, failOnDataLoss="false") == [str(number) for number in range(20, 50)]


def test_a_lost_end_is_data_loss(filled: Any) -> None:
    del filled.queues[0][40:]
    with pytest.raises(IllegalOffset, match=r"0 to 40"):
        bodies(filled, 0, 50)
    assert len(bodies(filled, 0, 50, failOnDataLoss="false")) == 40


def test_a_range_of_a_topic_that_was_made_anew_is_data_loss(filled: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It has grown past the range, so that only its uid tells."""
    filled.uid = "new"
    with pytest.raises(IllegalOffset, match="was deleted or created again on broker broker-a"):
        bodies(filled, 5, 40, uid="old")
    assert bodies(filled, 5, 40, uid="old", failOnDataLoss="false") == []
    assert "evenq: lost messages=35 of flights@broker-a:0" in caplog.text
    assert len(bodies(filled, 5, 40, uid="new")) == len(bodies(filled, 5, 40)) == 35
    filled.uid = ""
    assert len(bodies(filled, 5, 40, uid="old")) == 35, "an older broker"


def test_lost_messages_are_counted(filled: Any, caplog: pytest.LogCaptureFixture) -> None:
    filled.low[0] = 20
    del filled.queues[0][40:]
    assert len(bodies(filled, 5, 50, failOnDataLoss="false")) == 20
    assert [line.split(" of ")[0] for line in caplog.messages if line.startswith("evenq: lost")] == [
        "evenq: lost messages=15",
        "evenq: lost messages=10",
    ]


def test_a_broker_that_stays_away_is_left_out_and_counted_where_that_is_allowed(
    filled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    filled.stop()
    wanted = [OffsetRange(queue=filled.queue(0), start=5, end=50), OffsetRange(queue=filled.queue(1), start=0, end=7)]
    [task] = scan_tasks([wanted], at(dict.fromkeys([filled.queue(0), filled.queue(1)], filled.endpoint)), {})
    assert list(read(task, options(filled, readTimeoutMs="200"), BODY, leave_out=True)) == []
    assert "evenq: left out queues=1 messages=45: flights on broker-a (queue 0)" in caplog.text
    assert "evenq: left out queues=1 messages=7: flights on broker-a (queue 1)" in caplog.text


def test_a_hole_in_a_block_is_data_loss(filled: Any) -> None:
    class Holey(list[Any]):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key)[1:]

    filled.queues[0] = Holey(filled.queues[0])
    with pytest.raises(IllegalOffset, match="data loss"):
        bodies(filled, 0, 50)


@pytest.mark.parametrize("kind", ["auto", "log", "message"])
def test_a_broker_that_sends_records_gives_the_same_rows_in_every_format(filled: Any, kind: str) -> None:
    filled.sends_records = True
    filled.cut_scans = 2
    assert bodies(filled, 7, 50, format=kind) == [str(number) for number in range(7, 50)]


def test_a_broker_that_knows_of_no_records_sends_messages_or_is_named(filled: Any) -> None:
    assert len(bodies(filled, 0, 50, format="auto")) == 50
    with pytest.raises(Unsupported, match=r"does not support format=log; use format=auto"):
        bodies(filled, 0, 50, format="log")


def test_tags_are_read_as_messages_from_every_broker(filled: Any) -> None:
    filled.sends_records = True
    assert bodies(filled, 0, 50, tags="odd") == [str(number) for number in range(1, 50, 2)]


def test_records_that_do_not_fit_their_checksum_are_read_again_checked_by_the_broker(filled: Any) -> None:
    filled.sends_records = filled.flip = True
    part = OffsetRange(queue=filled.queue(0), start=7, end=50)
    [task] = scan_tasks([[part]], at({part.queue: filled.endpoint}), {})
    columns = (OutputColumn("body", nullable=True), OutputColumn("messageId", nullable=True))
    result = [row["body"].decode() for batch in read(task, options(filled), columns) for row in batch.to_pylist()]
    assert result == [str(number) for number in range(7, 50)]
    assert filled.calls.count("Scan") == 2


def test_bodies_that_no_column_is_made_of_do_not_travel(filled: Any) -> None:
    filled.sends_records = True
    part = OffsetRange(queue=filled.queue(0), start=0, end=50)
    [task] = scan_tasks([[part]], at({part.queue: filled.endpoint}), {})
    offsets = (OutputColumn("queueOffset", nullable=True), OutputColumn("storeTimestamp", nullable=True))
    result = list(read(task, options(filled), offsets))
    assert [offset for batch in result for offset in batch.column(0).to_pylist()] == list(range(50))
    assert filled.parts == {(False, False)}


def test_a_long_range_is_read_in_order_and_leaves_no_connection(broker: Any) -> None:
    broker.sends_records = True
    for number in range(200):
        broker.send(str(number))
    broker.cut_scans = 3
    assert bodies(broker, 0, 200) == [str(number) for number in range(200)]
    assert broker.calls.count("Scan") == 4
    assert not connection._idle
    part = OffsetRange(queue=broker.queue(0), start=0, end=200)
    [task] = scan_tasks([[part]], at({part.queue: broker.endpoint}), {})
    rows = read(task, options(broker), BODY)
    assert next(rows).num_rows == 4
    rows.close()  # Spark needs no more of it
    assert not connection._idle


def test_sparks_own_empty_partition_yields_nothing(broker: Any) -> None:
    assert list(read(InputPartition(None), options(broker), BODY)) == []
    assert broker.calls == []


def test_a_worker_freezes_its_libraries_once_unless_told_not_to(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr("pyspark_evenq.rows.collector._frozen", (0, 0))
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(len(sys.modules)))
    bodies(filled, 0, 2, gcFreeze="false")
    assert frozen == []
    bodies(filled, 0, 2, gcFreeze="true")
    bodies(filled, 0, 2, gcFreeze="true")
    assert len(frozen) == 1


def test_libraries_are_frozen_after_the_rows_and_again_when_more_were_loaded(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr("pyspark_evenq.rows.collector._frozen", (0, 0))
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(len(sys.modules)))
    part = OffsetRange(queue=filled.queue(0), start=0, end=30)
    [task] = scan_tasks([[part]], at({part.queue: filled.endpoint}), {})
    rows = read(task, options(filled, gcFreeze="true"), BODY)
    assert next(rows).num_rows
    assert frozen == [], "what the first block needs was loaded after that"
    for _ in rows:
        pass
    assert frozen == [len(sys.modules)]
    monkeypatch.setitem(sys.modules, "loaded_later", ModuleType("loaded_later"))
    bodies(filled, 0, 2, gcFreeze="true")
    assert len(frozen) == 2


def test_a_worker_that_reads_or_writes_keeps_freed_memory_and_freezes_last(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr("pyspark_evenq.source.scanning.keep_freed_memory", lambda: kept.append("reader"))
    bodies(filled, 0, 2, gcFreeze="false")
    monkeypatch.setattr("pyspark_evenq.sink.writer.keep_freed_memory", lambda: kept.append("writer"))
    monkeypatch.setattr("pyspark_evenq.sink.writer.stage", lambda *_: kept.append("staged"))
    monkeypatch.setattr("pyspark_evenq.sink.writer.freeze_libraries", lambda: kept.append("frozen"))
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=int, taskAttemptId=int))
    sink_writer.write(WriteOptions.parse({"endpoints": "h:1", "topic": "t"}), "query", 0, iter(()))
    assert kept == ["reader", "writer", "staged", "frozen"]
    given = {"endpoints": "h:1", "topic": "t", "gcFreeze": "false", "delivery": "atLeastOnce"}
    monkeypatch.setattr("pyspark_evenq.sink.writer.publish", lambda *_: kept.append("published"))
    sink_writer.write(WriteOptions.parse(given), "query", 0, iter(()))
    assert kept[4:] == ["writer", "published"]
