"""Table and tail together have each offset once, and a query can do nothing but read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evenq.errors import BadRequest, NotFound
from evenq.tables import query
from evenq.tables.folder import FolderTables, TableTarget, place_bytes, table_target
from evenq.tables.layout import TableChanged, TableGap, TableRange
from evenq.tables.query import QueriedTopic, named_topics, run_query, view_of_files, view_with_tail
from tests.unit.evenq.tables.fake_log import FakeLog, FakeReader
from tests.unit.evenq.tables.test_exporting import FOLDER, LATER_MS, export

pytest.importorskip("duckdb")


@pytest.fixture
def target(tmp_path: Path) -> FolderTables:
    return FolderTables(tmp_path / "tables")


def with_tail(log: FakeLog, target: TableTarget) -> QueriedTopic:
    return asyncio.run(view_with_tail(target, log.topic, FakeReader(log)))


def rows(target: TableTarget, view: QueriedTopic, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_query(target, [view], sql).to_pylist()
    return found


@pytest.fixture
def log(target: FolderTables) -> FakeLog:
    """250 messages of queue 0 in files, 30 more only in the log, and 20 of queue 1."""
    log = FakeLog(queues=2)
    log.add(250)
    export(log, target)
    log.add(30, at_ms=LATER_MS)
    log.add(20, at_ms=LATER_MS, queue=1)
    return log


def test_each_offset_is_there_once(log: FakeLog, target: FolderTables) -> None:
    sql = "select queueId q, count(*) n, count(distinct queueOffset) d, min(queueOffset) a, max(queueOffset) b from orders group by 1 order by 1"
    assert rows(target, with_tail(log, target), sql) == [
        {"q": 0, "n": 280, "d": 280, "a": 0, "b": 279},
        {"q": 1, "n": 20, "d": 20, "a": 0, "b": 19},
    ]
    assert rows(target, view_of_files(target, "orders"), "select count(*) n from orders") == [{"n": 250}]


def test_rows_of_files_and_of_the_tail_have_the_same_columns(log: FakeLog, target: FolderTables) -> None:
    sql = "select queueOffset o, decode(body) b, keys, properties['n'] n, tag from orders where queueId = 0 and queueOffset in (249, 250) order by 1"
    assert rows(target, with_tail(log, target), sql) == [
        {"o": offset, "b": f"body {offset}", "keys": [f"k{offset}"], "n": str(offset), "tag": "t"}
        for offset in (249, 250)
    ]


def test_a_file_that_another_exporter_writes_meanwhile_repeats_nothing(log: FakeLog, target: FolderTables) -> None:
    view = with_tail(log, target)
    export(log, target, now_ms=LATER_MS + 3_600_000)
    assert rows(target, view, "select count(*) n from orders") == [{"n": 300}]
    assert rows(target, with_tail(log, target), "select count(*) n from orders") == [{"n": 300}]


def test_a_table_that_has_no_file_yet_is_its_tail(target: FolderTables) -> None:
    log = FakeLog()
    log.add(12)
    assert rows(target, with_tail(log, target), "select count(*) n from orders") == [{"n": 12}]
    with pytest.raises(NotFound, match="evenq table export orders"):
        view_of_files(target, "orders")


def test_messages_that_are_nowhere_are_an_error(log: FakeLog, target: FolderTables) -> None:
    log.low[0] = 260
    with pytest.raises(TableGap, match=r"offsets 250 to 259 .* --no-tail"):
        with_tail(log, target)


def test_a_tail_that_does_not_fit_is_refused(log: FakeLog, target: FolderTables, monkeypatch: Any) -> None:
    monkeypatch.setattr(query, "TAIL_BYTES_MAX", 1_000)
    with pytest.raises(BadRequest, match="table export orders"):
        with_tail(log, target)


def test_rows_of_a_deleted_topic_of_the_same_name_are_left_out(log: FakeLog, target: FolderTables) -> None:
    again = FakeLog(uid="u2-b1")
    again.add(7, at_ms=LATER_MS)
    assert rows(target, with_tail(again, target), "select count(*) n from orders") == [{"n": 7}]
    export(again, target, now_ms=LATER_MS + 3_600_000)
    assert rows(target, view_of_files(target, "orders"), "select count(*) n from orders") == [{"n": 7}]
    assert rows(target, with_tail(log, target), "select count(*) n from orders") == [{"n": 300}]


def test_a_topic_that_returned_to_its_broker_keeps_its_older_rows(log: FakeLog, target: FolderTables) -> None:
    returned = FakeLog(uid="u1-b2")
    returned.add(5, at_ms=LATER_MS)
    assert rows(target, with_tail(returned, target), "select count(*) n from orders") == [{"n": 255}]


def test_brokers_that_are_away_are_named(log: FakeLog, target: FolderTables) -> None:
    other = FakeLog(broker="broker-b", uid="u1-b9")
    other.add(3)
    assert with_tail(other, target).silent == ["broker-a"]
    assert with_tail(log, target).silent == []


def test_overlapping_files_are_not_read(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    (tmp_path / "tables" / FOLDER / TableRange(start=249, end=300).name).write_bytes(b"")
    with pytest.raises(TableChanged, match="in two files"):
        with_tail(log, target)


def test_topics_are_found_by_whole_names(log: FakeLog, target: FolderTables) -> None:
    assert named_topics(target, 'select 1 from "Orders"') == ["orders"]
    for sql in ("select 1 from orders2", "select 1 from my_orders", "select 1"):
        with pytest.raises(NotFound, match="it has orders"):
            named_topics(target, sql)
    with pytest.raises(NotFound, match="evenq table export"):
        named_topics(FolderTables(target.root / "none"), "select 1 from orders")


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ('select 1 from "shop%orders"', ["shop%orders"]),
        ('select 1 from "SHOP%Orders", orders', ["orders", "shop%orders"]),
        ('select 1 from "n-orders"', ["n-orders"]),
        ("select n-orders.n from orders", ["orders"]),
        ("select orders.n-n from orders-- all", ["orders"]),
        ("select orders.n - 2024 from orders", ["orders"]),
        ('select 1 from "2024"', ["2024"]),
        ('select orders.n-"n" from orders join"n"using (k)', ["n", "orders"]),
        ("from orders", ["orders"]),
    ],
)
def test_a_topic_is_named_by_its_whole_name_alone(tmp_path: Path, sql: str, named: list[str]) -> None:
    """Another topic may be one that the caller cannot read."""
    target = FolderTables(tmp_path)
    for topic in ("2024", "n-orders", "orders", "shop%orders"):
        place_bytes(target, f"{topic}/_table.json", b"", lambda _: None)
    if "n" in named:
        place_bytes(target, "n/_table.json", b"", lambda _: None)
    assert named_topics(target, sql) == named


@pytest.mark.parametrize(
    "sql",
    [
        "copy orders to '{file}'",
        "copy (select 1) to '{data}'",
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}'), orders",
        "select * from '{secret}'",
        "select * from glob('/*')",
        "select * from read_blob('{data}'); copy orders to '{file}'",
        "attach '{file}'",
        "create table t as select 1",
        "create view orders as select 1",
        "export database '{file}'",
        "set enable_external_access = true",
        "reset enable_external_access",
        "install httpfs",
        "load parquet",
        "pragma database_list",
        "select * from read_parquet('{secret}')",
        "select count(*) from __import__",
        "delete from orders",
        "",
        "select nothing from orders",
        "select * from orders where",
    ],
)
def test_a_query_cannot_read_other_files_or_write(log: FakeLog, target: FolderTables, tmp_path: Path, sql: str) -> None:
    view = with_tail(log, target)
    secret, file = tmp_path / "secret.csv", tmp_path / "written"
    secret.write_text("a,b\n1,2\n")
    data = target.path(view.paths[0])
    before = Path(data).read_bytes()
    with pytest.raises(BadRequest, match="the query"):
        run_query(target, [view], sql.format(file=file, secret=secret, data=data))
    assert not file.exists()
    assert Path(data).read_bytes() == before


def test_python_variables_are_no_tables(log: FakeLog, target: FolderTables) -> None:
    secret = with_tail(log, target).tail
    assert secret.num_rows
    with pytest.raises(BadRequest, match="secret"):
        run_query(target, [with_tail(log, target)], "select * from secret")


def test_names_with_other_characters_are_quoted(tmp_path: Path) -> None:
    log = FakeLog(topic="shop%orders")
    log.add(120)
    target = FolderTables(tmp_path / "it's")
    export(log, target)
    assert named_topics(target, 'select 1 from "shop%orders"') == ["shop%orders"]
    assert rows(target, with_tail(log, target), 'select count(*) n from "shop%orders"') == [{"n": 120}]


def test_a_table_behind_a_url_is_queried(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    target = table_target(f"memory://{tmp_path.name}")
    log = FakeLog()
    log.add(120)
    export(log, target)
    log.add(5, at_ms=LATER_MS)
    assert rows(target, with_tail(log, target), "select count(*) n from orders") == [{"n": 125}]
    with pytest.raises(BadRequest, match="the query"):
        rows(target, with_tail(log, target), "select * from read_text('memory:///other')")
