"""Typed columns in the files of a table, in queries, and in its verification."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from evenq.tables.checking import findings, table_of
from evenq.tables.exporting import ExportPlan, TopicExport
from evenq.tables.folder import FolderTables
from evenq.tables.query import named_topics, run_query, view_of_files, view_with_tail
from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.stored import keep_schema
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog, FakeReader
from tests.unit.evenq.tables.test_exporting import FOLDER, LATER_MS, SETTINGS, export
from tests.unit.evenq.tables.typed.conversion import schema_of

TOTAL = schema_of(total={"type": "number"}, customer={"properties": {"id": {"type": "string"}}})
MORE = schema_of(
    total={"type": "number"}, state={"type": "string"},
    customer={"properties": {"id": {"type": "string"}, "vip": {"type": "boolean"}}},
)  # fmt: skip


def order(number: int) -> bytes:
    return json.dumps(
        {"total": number / 2, "state": f"s{number % 3}", "customer": {"id": f"c{number}", "vip": True}}
    ).encode()


def add(log: FakeLog, bodies: list[bytes], *, at_ms: int = START_MS) -> None:
    log.queues[0] += [(at_ms, body) for body in bodies]


@pytest.fixture
def log() -> FakeLog:
    """150 messages, of which offset 30 does not fit."""
    log = FakeLog()
    add(log, [order(number) if number != 30 else b"not JSON" for number in range(150)])
    return log


@pytest.fixture
def target(tmp_path: Path) -> FolderTables:
    return FolderTables(tmp_path)


def whole(tmp_path: Path) -> pa.Table:
    return ds.dataset(tmp_path / "orders", format="parquet").to_table().sort_by("queueOffset")


def found(target: FolderTables) -> list[str]:
    return [finding.what for finding in findings(target, table_of(target, "orders")[0], whole=True)]


def test_files_have_the_values_and_what_does_not_fit(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    keep_schema(target, "orders", TOTAL)
    turn = export(log, target)
    assert (turn.files, turn.rows, turn.misfits) == (2, 150, 1)
    rows = whole(tmp_path).to_pylist()
    assert [row["body"] for row in rows] == [body for _, body in log.queues[0]]
    assert [row["total"] for row in rows] == [number / 2 if number != 30 else None for number in range(150)]
    assert rows[7]["customer"] == {"id": "c7"}
    assert [row["queueOffset"] for row in rows if row["bodyError"]] == [30]
    assert (rows[30]["bodyError"], rows[30]["customer"], rows[30]["body"]) == ("syntax", None, b"not JSON")
    assert found(target) == []


def test_leaves_have_statistics_for_groups_and_pages(log: FakeLog, target: FolderTables) -> None:
    keep_schema(target, "orders", TOTAL)
    export(log, target)
    metadata = pq.read_metadata(target.root / FOLDER / f"{0:020d}-{100:020d}.parquet")
    columns = {
        metadata.row_group(0).column(n).path_in_schema: metadata.row_group(0).column(n)
        for n in range(metadata.num_columns)
    }
    total, customer = columns["total"], columns["customer.id"]
    assert (total.statistics.min, total.statistics.max, total.statistics.null_count) == (0.0, 49.5, 1)
    assert (customer.statistics.min, customer.statistics.max) == ("c0", "c99")
    assert all(
        columns[name].has_column_index and columns[name].has_offset_index
        for name in ("total", "customer.id", "bodyError")
    )


def test_a_repeat_and_other_blocks_write_the_same_rows(log: FakeLog, tmp_path: Path) -> None:
    tables = []
    for block in (1, 7, 50):
        log.block = block
        target = FolderTables(tmp_path / str(block))
        keep_schema(target, "orders", TOTAL)
        export(log, target)
        assert export(log, target).files == 0
        tables.append(whole(tmp_path / str(block)))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_columns_that_are_added_are_in_later_files(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    """An exporter that runs takes them with its next turn."""
    plan = ExportPlan(topic="orders", settings=SETTINGS)
    running = TopicExport(FakeReader(log), target, plan, clock_ms=lambda: LATER_MS * 2)
    assert asyncio.run(running.turn()).misfits == 0, "without typed columns"
    for schema, names in (
        (TOTAL, ["total", "customer", "bodyError"]),
        (MORE, ["total", "state", "customer", "bodyError"]),
    ):
        keep_schema(target, "orders", schema)
        add(log, [order(number) for number in range(100)], at_ms=LATER_MS)
        asyncio.run(running.turn())
        newest = max((target.root / FOLDER).glob("*.parquet"))
        assert pq.read_schema(newest).names[12:] == names
    assert found(target) == []
    duckdb = pytest.importorskip("duckdb")
    sql = f"select count(*), count(total), count(state), count(customer.vip) from read_parquet('{tmp_path}/**/*.parquet', union_by_name=true)"
    assert duckdb.sql(sql).fetchall() == [(350, 200, 100, 100)]


def test_a_query_sees_typed_columns_of_files_and_tail(log: FakeLog, target: FolderTables) -> None:
    pytest.importorskip("duckdb")
    sql = "select count(*) n, count(total) t, sum(total) s, count(customer.vip) v, max(state) m, count(bodyError) e from orders"

    def result(view: Any) -> dict[str, Any]:
        [row] = run_query(target, [view], sql).to_pylist()
        return dict(row)

    keep_schema(target, "orders", TOTAL)
    export(log, target)
    add(log, [order(2), b"7", b'{"total":"x"}'], at_ms=LATER_MS)
    keep_schema(target, "orders", MORE)
    total = sum(range(150)) / 2 - 15
    assert result(view_of_files(target, "orders")) == {"n": 150, "t": 149, "s": total, "v": 0, "m": None, "e": 1}
    assert result(asyncio.run(view_with_tail(target, "orders", FakeReader(log)))) == {
        "n": 153, "t": 150, "s": total + 1, "v": 1, "m": "s2", "e": 3
    }  # fmt: skip
    assert named_topics(target, "from orders") == ["orders"], "the folder of schemas is none"


def test_a_query_before_the_first_file_and_before_the_schema(log: FakeLog, target: FolderTables) -> None:
    pytest.importorskip("duckdb")
    export(log, target)
    keep_schema(target, "orders", TOTAL)
    assert run_query(target, [view_of_files(target, "orders")], "select count(total) n from orders").to_pylist() == [
        {"n": 0}
    ]
    new = FolderTables(target.root / "new")
    keep_schema(new, "orders", TOTAL)
    view = asyncio.run(view_with_tail(new, "orders", FakeReader(log)))
    assert run_query(new, [view], "select count(total) n from orders").to_pylist() == [{"n": 149}]


def test_verify_finds_other_columns_other_values_and_a_missing_schema(log: FakeLog, target: FolderTables) -> None:
    stored = keep_schema(target, "orders", TOTAL)
    export(log, target)
    path = target.root / FOLDER / f"{100:020d}-{150:020d}.parquet"
    fact = {b"evenq.last_store_ms": str(START_MS)}
    table = pq.read_table(path).replace_schema_metadata({b"evenq.schema": b"1"} | fact)
    position = table.schema.get_field_index("total")
    pq.write_table(table.set_column(position, "total", pa.array([1.0] * 50)), path)
    assert found(target) == ["has other typed values than its bodies: total from offset 100 on"]
    pq.write_table(table.set_column(position, "total", table.column("total").cast(pa.string())), path)
    assert found(target) == ["has the column total as string, not as double"]
    pq.write_table(table.drop_columns(["total"]), path)
    [what] = found(target)
    assert what.startswith("has the columns topic, ")
    assert what.endswith("storeTimestamp, total, customer, bodyError")
    pq.write_table(table.replace_schema_metadata(fact), path)
    [what] = found(target)
    assert what.endswith(
        "bodyError, not topic, brokerName, queueId, queueOffset, messageId, tag, keys, messageGroup, body, properties, bornTimestamp, storeTimestamp"
    )
    pq.write_table(table, path)
    assert found(target) == []
    Path(stored.path).unlink()
    assert found(target)[0] == "was written with schema 1, which the table does not have in its folder _schema"


def test_values_that_are_not_numbers_equal_themselves(tmp_path: Path) -> None:
    from evenq.tables.typed.descriptors import protobuf_schema
    from tests.unit.evenq.tables.typed.conversion import descriptor_set

    target, log = FolderTables(tmp_path), FakeLog()
    keep_schema(target, "orders", protobuf_schema(descriptor_set(O=[("d", "TYPE_DOUBLE", {})]), "shop.O", "f"))
    add(log, [b"\x09\x00\x00\x00\x00\x00\x00\xf8\x7f"] * 30)
    export(log, target)
    assert str(whole(tmp_path).column("d")[0].as_py()) == "nan"
    assert found(target) == []


def test_plain_columns_may_be_others(log: FakeLog) -> None:
    """A reader may have others than a table."""
    batch = pa.record_batch({"x": pa.array([1]), "body": pa.array([order(3)])})
    [piece] = TypedBodies(TOTAL, plain=batch.schema).batches(batch)
    assert piece.schema.names == ["x", "body", "total", "customer", "bodyError"]
    assert piece.column("total").to_pylist() == [1.5]
