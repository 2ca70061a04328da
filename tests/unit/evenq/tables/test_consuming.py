"""Messages that a consumer gets from a table: each offset once, as its broker would deliver it, and none left out silently."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenq.client.loops.reading.table_reads import TablePull
from evenq.client.rpc.messages import decode
from evenq.errors import Error, IllegalFilterExpression, NotFound, StoreError, Unsupported
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage
from evenq.tables import consuming
from evenq.tables.consuming import CURSORS_MAX, ConsumedTable
from evenq.tables.exporting import ExportPlan, TopicExport
from evenq.tables.files import COLUMNS
from evenq.tables.folder import FolderTables, TableTarget, table_target
from evenq.tables.layout import TableSettings
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog, FakeReader
from tests.unit.evenq.tables.test_checking import flip_a_body

QUEUE = MessageQueue("orders", "broker-a", 0)
UID = "u1-b1"
PLACE = f"orders/uid={UID}/broker=broker-a/queue=0"
ALL = FilterExpression()


def export(log: FakeLog, folder: Path | TableTarget) -> None:
    plan = ExportPlan(topic="orders", settings=TableSettings(rows_per_file=100, close_after_ms=60_000), tail=True)
    target = FolderTables(folder) if isinstance(folder, Path) else folder
    reader = TopicExport(FakeReader(log), target, plan, clock_ms=lambda: START_MS + 3_600_000)
    turn = asyncio.run(reader.turn())
    assert not turn.failures


@pytest.fixture
def log() -> FakeLog:
    made = FakeLog()
    made.add(250, step_ms=10)
    return made


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], ConsumedTable]]:
    """Opens the table of the folder, and closes it after the test."""
    made: list[ConsumedTable] = []

    def opened(url: str = "") -> ConsumedTable:
        made.append(ConsumedTable(table_target(url or str(tmp_path))))
        return made[-1]

    yield opened
    for table in made:
        table.close()


@pytest.fixture
def table(log: FakeLog, tmp_path: Path, opened: Callable[[], ConsumedTable]) -> ConsumedTable:
    export(log, tmp_path)
    return opened()


def pull(
    table: ConsumedTable, start: int, end: int = 250, expression: FilterExpression = ALL, **more: Any
) -> TablePull:
    options = {"queue": QUEUE, "uid": UID, "batch_max": 512, "bytes_max": 1 << 20, **more}
    return table.pull(
        options["queue"], options["uid"], start, end, expression, options["batch_max"], options["bytes_max"]
    )


def everything(table: ConsumedTable, start: int, end: int = 250, **more: Any) -> list[ReceivedMessage]:
    """All messages of a range, in as many pulls as that takes."""
    found: list[ReceivedMessage] = []
    while start < end:
        got = pull(table, start, end, **more)
        assert not got.missing
        assert got.next_offset > start
        found += got.messages
        start = got.next_offset
    assert start == end
    return found


@pytest.mark.parametrize("batch_max", [1, 7, 512])
@pytest.mark.parametrize(("start", "end"), [(0, 250), (37, 199), (99, 101), (249, 250)])
def test_a_range_has_each_offset_once_wherever_it_begins_and_ends(
    table: ConsumedTable, start: int, end: int, batch_max: int
) -> None:
    found = everything(table, start, end, batch_max=batch_max)
    assert [one.queue_offset for one in found] == list(range(start, end))
    assert [one.body for one in found] == [b"body %d" % offset for offset in range(start, end)]


def test_a_message_equals_the_one_of_its_broker(table: ConsumedTable) -> None:
    [found] = pull(table, 7, batch_max=1).messages
    wire = definition_pb2.Message(body=b"body 7", user_properties={"n": "7"})
    wire.topic.name = "orders"
    system = wire.system_properties
    system.message_id, system.tag, system.queue_id, system.queue_offset = f"01{7:030X}", "t", 0, 7
    system.keys.append("k7")
    set_ms(system.born_timestamp, START_MS + 65)
    set_ms(system.store_timestamp, START_MS + 70)
    assert found == decode(wire, broker_name="broker-a")


def test_pulls_are_bounded_by_bytes_and_one_message_is_always_returned(table: ConsumedTable) -> None:
    assert len(pull(table, 0, bytes_max=30).messages) == 5, "of 6 bytes each"
    assert len(pull(table, 0, bytes_max=1).messages) == 1


def test_rows_are_decoded_in_batches_and_row_groups_before_the_start_are_left_out(
    log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Any
) -> None:
    monkeypatch.setattr("evenq.tables.files.GROUP_ROWS", 20)
    monkeypatch.setattr(consuming, "BATCH_ROWS", 8)
    export(log, tmp_path)
    [file, *_] = sorted((tmp_path / PLACE).glob("*.parquet"))
    assert pq.read_metadata(file).num_row_groups > 1
    table = opened()
    assert len(pull(table, 0).messages) == 8
    assert [one.queue_offset for one in everything(table, 51)] == list(range(51, 250))


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        (FilterExpression("other || t"), range(250)),
        (FilterExpression("other"), ()),
        (FilterExpression.sql("n IN ('3', '120') AND TAGS = 't'"), (3, 120)),
        (FilterExpression.sql("n BETWEEN 95 AND 104"), range(95, 105)),
        (FilterExpression.sql("TAGS IS NULL"), ()),
    ],
    ids=str,
)
def test_filters_hold_for_rows_and_progress_passes_what_they_leave_out(
    table: ConsumedTable, expression: FilterExpression, offsets: range
) -> None:
    assert [one.queue_offset for one in everything(table, 0, expression=expression, batch_max=3)] == list(offsets)


def test_a_filter_that_is_changed_is_used_from_the_next_pull_on(table: ConsumedTable) -> None:
    assert pull(table, 0, batch_max=2).next_offset == 2
    assert pull(table, 2, expression=FilterExpression("other")).messages == []
    with pytest.raises(IllegalFilterExpression):
        pull(table, 100, expression=FilterExpression.sql("n ="))


def test_files_that_are_added_while_a_consumer_reads_are_read_too(log: FakeLog, tmp_path: Path, opened: Any) -> None:
    export(log, tmp_path)
    table = opened()
    everything(table, 0, 250)
    log.add(80, at_ms=START_MS + 120_000)
    export(log, tmp_path)
    assert [one.queue_offset for one in everything(table, 250, 330)] == list(range(250, 330))


def test_offsets_after_the_last_file_and_before_the_first_one_are_reported_as_missing(
    log: FakeLog, tmp_path: Path, opened: Any
) -> None:
    log.low[0] = 30
    export(log, tmp_path)
    table = opened()
    assert pull(table, 10, 400) == TablePull((), 30, missing=True)
    assert pull(table, 250, 400) == TablePull((), 400, missing=True)
    assert pull(table, 10, 20) == TablePull((), 20, missing=True)
    assert table.first(QUEUE, UID, 400) == 30
    assert table.first(QUEUE, UID, 20) == 20


def test_an_accepted_gap_is_reported_as_missing_and_a_hole_is_an_error_until_it_is_accepted(
    table: ConsumedTable, tmp_path: Path
) -> None:
    [first, middle, _] = sorted((tmp_path / PLACE).glob("*.parquet"))
    middle.unlink()
    everything(table, 0, 100)
    for _ in range(2):
        with pytest.raises(StoreError, match="no file with offsets 100 to 199") as error:
            pull(table, 100)
    name = f"_{100:020d}-{200:020d}.gap"
    assert name in str(error.value)
    (tmp_path / PLACE / name).write_bytes(b"")
    assert pull(table, 150) == TablePull((), 200, missing=True)
    assert len(everything(table, 200)) == 50
    first.unlink()
    assert table.first(QUEUE, UID, 250) == 200


def test_a_queue_without_files_of_a_topic_that_has_some_is_missing(table: ConsumedTable) -> None:
    queue = MessageQueue("orders", "broker-b", 3)
    assert pull(table, 0, 9, queue=queue, uid="u1-b2") == TablePull((), 9, missing=True)
    assert table.first(queue, "u1-b2", 9) == 9
    assert table.offset_at(queue, "u1-b2", START_MS, 9) == 9


def test_a_table_of_another_content_is_an_error(table: ConsumedTable) -> None:
    for work in (
        lambda: pull(table, 0, uid="u2-b1"),
        lambda: table.first(QUEUE, "u2-b1", 9),
        lambda: table.offset_at(QUEUE, "u2-b1", START_MS, 9),
    ):
        with pytest.raises(NotFound, match=r"uid u1.*uid u2.*another cluster"):
            work()
    with pytest.raises(Unsupported, match="reports no uid"):
        pull(table, 0, uid="")


def test_a_missing_folder_is_an_error_until_it_is_there(table: ConsumedTable, log: FakeLog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no files of topic calls; it has orders: write them"):
        pull(table, 0, queue=MessageQueue("calls", "broker-a", 0))
    assert pull(table, 0, batch_max=10).next_offset == 10
    shutil.rmtree(tmp_path / "orders")
    with pytest.raises(Error):
        everything(table, 10)
    with pytest.raises(NotFound, match="evenq table export orders --to"):
        pull(table, 10)
    export(log, tmp_path)
    assert len(everything(table, 10)) == 240


def damage_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def damage_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:1_000] = bytes(996)
    path.write_bytes(content)


def write_again(path: Path, change: Any) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path)


def column(table: Any, name: str, values: list[object]) -> Any:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values, type=table.schema.field(at).type))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_bytes, "is damaged or cannot be read"),
        (damage_pages, "is damaged or cannot be read"),
        (lambda path: write_again(path, lambda one: one.slice(1)), "has 99 rows, its name says 100"),
        (lambda path: write_again(path, lambda one: column(one, "queueOffset", [100] * 100)), "several rows of an"),
        (lambda path: write_again(path, lambda one: column(one, "queueId", [1] * 100)), "another queue: queueId"),
        (lambda path: write_again(path, lambda one: one.drop_columns(["body"])), "is damaged or cannot be read"),
    ],
)
def test_a_damaged_file_is_an_error_at_each_pull_until_it_is_restored(
    table: ConsumedTable, tmp_path: Path, damage: Any, text: str
) -> None:
    [_, file, _] = sorted((tmp_path / PLACE).glob("*.parquet"))
    whole = file.read_bytes()
    damage(file)
    everything(table, 0, 100)
    for _ in range(2):
        with pytest.raises(StoreError, match=text):
            pull(table, 150)
    assert not table._cursors
    file.write_bytes(whole)
    assert len(everything(table, 150)) == 100


def test_a_body_with_one_flipped_bit_is_not_delivered(tmp_path: Path, opened: Any) -> None:
    chance, log = random.Random(7), FakeLog()
    log.queues[0] = [(START_MS, chance.randbytes(300)) for _ in range(100)]
    export(log, tmp_path)
    [file] = (tmp_path / PLACE).glob("*.parquet")
    flip_a_body(file, log.queues[0][40][1])
    with pytest.raises(StoreError, match="is damaged or cannot be read"):
        pull(opened(), 0, 100)


def test_the_first_offset_of_a_time_is_found_in_files(table: ConsumedTable) -> None:
    for ms, offset in ((0, 0), (10, 1), (15, 2), (990, 99), (1_000, 100), (2_490, 249)):
        assert table.offset_at(QUEUE, UID, START_MS + ms, 250) == offset
    assert table.offset_at(QUEUE, UID, START_MS + 2_491, 300) == 300, "only the log has such messages"
    assert table.offset_at(QUEUE, UID, START_MS + 1_000, 60) == 60


def test_open_files_are_bounded_and_closed(tmp_path: Path, opened: Any) -> None:
    log = FakeLog(queues=CURSORS_MAX + 3)
    for queue in log.queues:
        log.add(20, queue=queue)
    export(log, tmp_path)
    table = opened()
    found: dict[int, list[int]] = {queue: [] for queue in log.queues}
    for start in range(0, 20, 5):  # in turns, so that files are closed between
        for queue in log.queues:
            got = pull(table, start, 20, queue=MessageQueue("orders", "broker-a", queue), batch_max=5)
            found[queue] += [one.queue_offset for one in got.messages]
            assert len(table._cursors) <= CURSORS_MAX
    assert all(offsets == list(range(20)) for offsets in found.values())
    assert not table._cursors, "read to their ends"
    pull(table, 0, 20, batch_max=1)
    [cursor] = table._cursors.values()
    table.close()
    assert cursor._file.closed
    assert not table._cursors


def test_a_table_behind_a_url_is_read_too(log: FakeLog, tmp_path: Path, opened: Any) -> None:
    pytest.importorskip("fsspec")
    export(log, table_target(f"memory://{tmp_path.name}"))
    table = opened(f"memory://{tmp_path.name}")
    assert [one.queue_offset for one in everything(table, 0)] == list(range(250))


def test_values_that_are_missing_are_those_of_a_message_without_them() -> None:
    schema = {column.name: column for column in COLUMNS}
    assert schema["tag"].nullable
    row = {
        "topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": 5, "messageId": "m", "tag": None,
        "keys": [], "messageGroup": None, "body": b"b", "properties": [], "bornTimestamp": None, "storeTimestamp": 7_000,
    }  # fmt: skip
    from evenq.columns.arrow_schema import arrow_schema

    batch = pa.RecordBatch.from_pylist([row], schema=arrow_schema(COLUMNS))
    [message] = consuming._messages(batch, QUEUE, 0)
    assert (message.tag, message.keys, message.properties, message.message_group) == (None, (), {}, None)
    assert (message.born_ms, message.store_ms, message.delivery_attempt) == (0, 7, 1)
