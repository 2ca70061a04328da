"""`evenq table publish`, and the other commands of tables with an Iceberg catalog: results, order, exit codes, waits."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenq.cli.table import publishing, reports
from evenq.cli.table.publishing import CatalogCalls, ask
from evenq.errors import ConnectionFailed, Error, Forbidden, RequestTimeout
from evenq.tables import checking
from evenq.tables.checking import queues_of
from evenq.tables.folder import FolderTables
from evenq.tables.iceberg import IcebergTable, PublishTurn
from evenq.tables.iceberg_state import IcebergName
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog
from tests.unit.evenq.tables.test_exporting import export

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three files of `orders`, and a catalog in SQLite with the namespace `sales`."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    pyiceberg.catalog.load_catalog("lake").create_namespace("sales")
    log = FakeLog()
    log.add(250)
    export(log, FolderTables(tmp_path / "tables"), now_ms=START_MS + 3_600_000)
    monkeypatch.setattr(reports, "_live", lambda *_: {})
    monkeypatch.setattr(publishing, "setup_logs", lambda *_, **__: None)  # of the whole process
    return tmp_path / "tables"


def publish(run: Any, tables: Path) -> dict[str, Any]:
    code, out, err, _ = run(f"table publish orders --to {tables} --iceberg lake.sales.orders -o json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_publish_prints_what_it_registered(run: Any, tables: Path) -> None:
    found = publish(run, tables)
    assert found.pop("snapshot").isdecimal()
    assert found == {
        "topic": "orders", "iceberg": "lake.sales.orders", "files": 3, "rows": 250, "left": 0, "failures": []
    }  # fmt: skip
    code, out, _, _ = run(f"table publish orders --to {tables}")
    assert (code, "files     0" in out) == (0, True)


def test_a_queue_that_stops_is_named_and_the_exit_code_says_so(run: Any, tables: Path) -> None:
    path = next(tables.rglob("*100-*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    code, out, err, _ = run(f"table publish orders --to {tables} --iceberg lake.sales.orders -o json")
    assert (code, json.loads(out)["files"], json.loads(out)["left"]) == (1, 1, 2)
    assert [str(path) in one["error"] for one in json.loads(out)["failures"]] == [True]
    assert str(path) in err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("orders", 2, "add --iceberg CATALOG.NAMESPACE.TABLE"),
        ("orders --iceberg orders", 2, "for example lake.sales.orders"),
        ("orders --iceberg lak.sales.orders", 2, "known catalogs: lake"),
        ("orders --iceberg lake.sale.orders", 3, "create namespace sale"),
        ("ordrs --iceberg lake.sales.orders", 3, "it has the tables orders"),
        ("ordrs --iceberg lake.sales.orders --follow", 3, "it has the tables orders"),
        ("orders --iceberg lake.sale.orders --follow", 3, "create namespace sale"),
    ],
)
def test_a_wrong_name_ends_with_one_sentence(run: Any, tables: Path, words: str, code: int, text: str) -> None:
    ended, _, err, _ = run(f"table publish {words} --to {tables}")
    assert (ended, text in err, len(err.splitlines())) == (code, True, 1)
    assert not (tables / "orders/_iceberg.json").exists()


def test_show_and_verify_compare_with_the_catalog(run: Any, tables: Path, tmp_path: Path) -> None:
    [queue] = json.loads(run(f"table show orders --to {tables} -o json")[1])
    assert queue["published"] is None
    publish(run, tables)
    code, out, err, _ = run(f"table show orders --to {tables} -o wide")
    assert (code, "in Iceberg" in out) == (0, True)
    assert "Iceberg table lake.sales.orders: snapshot " in err
    assert err.endswith(", 3 files, 250 rows.\n")
    assert run(f"table verify orders --to {tables}")[1] == "clean: 3 files, 250 rows, no gap\n"
    path = next(tables.rglob("*200-*.parquet"))
    path.rename(tmp_path / path.name)
    code, out, _, _ = run(f"table verify orders --to {tables} -o json")
    assert code == 1
    assert "is gone: its readers fail" in json.loads(out)["findings"][0]["what"]
    (tmp_path / path.name).rename(path)
    path.with_name(f"{250:020d}-{260:020d}.parquet").write_bytes(path.read_bytes())
    assert "run `evenq table publish`" in run(f"table verify orders --to {tables}")[1]
    assert "10 rows are not registered" in run(f"table show orders --to {tables}")[2]
    assert "evenq table publish" not in run(f"table verify orders --to {tables} --offline")[1]


def test_without_its_catalog_show_and_offline_still_work(run: Any, tables: Path, tmp_path: Path) -> None:
    publish(run, tables)
    (tmp_path / "catalog.db").unlink()
    shutil.rmtree(tmp_path / "warehouse")
    away = away_catalog(tmp_path)
    try:
        code, out, err, _ = run(f"table show orders --to {tables}")
        assert (code, "250" in out, "Without the state of lake.sales.orders" in err) == (0, True, True)
        code, _, err, _ = run(f"table verify orders --to {tables}")
        assert (code, "catalog lake cannot be reached" in err) == (1, True)
        assert run(f"table verify orders --to {tables} --offline")[0] == 0
    finally:
        away()


def away_catalog(tmp_path: Path) -> Callable[[], None]:
    """Lets no client open the catalog until the result is called."""
    (tmp_path / "catalog.db").unlink(missing_ok=True)
    (tmp_path / "catalog.db").mkdir()
    return (tmp_path / "catalog.db").rmdir


def test_expire_removes_files_from_the_iceberg_table_first(run: Any, tables: Path, tmp_path: Path) -> None:
    publish(run, tables)
    words = f"table expire orders --to {tables} --before {START_MS + 1} --yes"
    (tmp_path / "catalog.db").rename(tmp_path / "kept.db")
    back = away_catalog(tmp_path)
    code, _, err, _ = run(words)
    assert (code, "catalog lake cannot be reached" in err) == (1, True)
    assert len([*tables.rglob("*.parquet")]) == 3, "nothing is deleted that may be registered"
    back()
    (tmp_path / "kept.db").rename(tmp_path / "catalog.db")
    code, _, err, _ = run(words)
    assert (code, err) == (0, "Removed 2 files from lake.sales.orders.\n")
    assert len([*tables.rglob("*.parquet")]) == 1
    assert run(f"table verify orders --to {tables}")[0] == 0
    assert IcebergTable(FolderTables(tables), "orders").state().rows == 50


@pytest.mark.parametrize("moment", ["footers are read", "files are deleted"])
def test_a_first_publish_beside_an_expiry_leaves_no_entry_without_its_file(
    run: Any, tables: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    begun: list[int] = []

    def first_publish() -> None:
        if not begun:
            table = IcebergTable(FolderTables(tables), "orders", IcebergName.of("lake.sales.orders"))
            table.begin()
            begun.append(table.publish(lambda: queues_of(FolderTables(tables), "orders")).files)

    read, remove = checking.read_footer, FolderTables.remove
    if moment == "footers are read":
        monkeypatch.setattr(checking, "read_footer", lambda *words: (first_publish(), read(*words))[1])
    else:
        monkeypatch.setattr(FolderTables, "remove", lambda *words: (first_publish(), remove(*words))[1])
    code, _, err, _ = run(f"table expire orders --to {tables} --before {START_MS + 1} --yes")
    assert (begun, code, err) == ([3], 0, "Removed 2 files from lake.sales.orders.\n")
    assert len([*tables.rglob("*.parquet")]) == 1
    assert run(f"table verify orders --to {tables}")[1] == "clean: 1 files, 50 rows, no gap\n"


def test_without_pyiceberg_a_registered_table_names_the_extra(
    run: Any, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(run, tables)
    from evenq.cli.table import commands

    monkeypatch.setattr(commands, "is_installed", lambda package: package != "pyiceberg")
    for words in (f"expire orders --before {START_MS + 1} --yes", "publish orders", "verify orders", "show orders"):
        code, _, err, _ = run(f"table {words} --to {tables}")
        assert (code, "evenq[iceberg]" in err) == (1, True), words
    assert len([*tables.rglob("*.parquet")]) == 3


def follow(run: Any, tables: Path, turns: list[PublishTurn | Error], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Follows with these outcomes, and ends with SIGTERM."""

    def next_turn(_table: IcebergTable, _content: Any) -> PublishTurn:
        if not turns:
            os.kill(os.getpid(), signal.SIGTERM)
            return PublishTurn()
        turn = turns.pop(0)
        if isinstance(turn, Error):
            raise turn
        return turn

    monkeypatch.setattr(IcebergTable, "publish", next_turn)
    monkeypatch.setattr(IcebergTable, "begin", lambda _: None)
    monkeypatch.setattr(publishing, "PAUSE_MAX_MS", 100)
    return run(f"table publish orders --to {tables} --iceberg lake.sales.orders --follow --every 100ms")


def test_follow_logs_once_when_the_catalog_is_away_and_once_when_it_is_back(
    run: Any, tables: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evenq.cli.table")
    turns: list[PublishTurn | Error] = [
        ConnectionFailed("away"),
        ConnectionFailed("still away"),
        PublishTurn(files=3, rows=250, snapshot_id=7),
        Forbidden("no right any more"),
        PublishTurn(snapshot_id=7),
    ]
    assert follow(run, tables, turns, monkeypatch)[0] == 0
    assert [record.getMessage() for record in caplog.records if record.name.startswith("evenq")] == [
        f"publishing orders of {tables} in lake.sales.orders",
        "orders is not published, retrying: away",
        "registered 3 files, 250 rows: snapshot 7",
        "orders is published again",
        "orders is not published, retrying: no right any more",
        "orders is published again",
        "ended",
    ]


def test_follow_ends_if_it_could_never_begin(run: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err, _ = follow(run, tables, [ConnectionFailed("away"), Forbidden("no right")], monkeypatch)
    assert (code, "no right" in err) == (4, True)


def test_a_catalog_that_never_answers_ends_the_wait(run: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SILENCE_S", 0.2)
    table = IcebergTable(FolderTables(tables), "orders", IcebergName.of("lake.sales.orders"))
    released, calls = threading.Event(), []

    def hang() -> int:
        calls.append(1)
        released.wait(30)
        return 7

    with pytest.raises(RequestTimeout, match=r"has not answered for 0 s; `pyiceberg --catalog lake list`"):
        ask(table, hang)
    released.set()

    def slow() -> int:
        for _ in range(5):
            table.progress += 1
            released.wait(0.1) if not released.is_set() else threading.Event().wait(0.1)
        return 8

    assert ask(table, slow) == 8, "progress is not silence"


async def test_a_call_that_is_still_running_is_not_started_again(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SILENCE_S", 0.1)
    table = IcebergTable(FolderTables(tables), "orders", IcebergName.of("lake.sales.orders"))
    released, started = threading.Event(), []

    def hang() -> int:
        started.append(1)
        released.wait(30)
        return 7

    calls = CatalogCalls(table, hang)
    for _ in range(3):
        with pytest.raises(RequestTimeout):
            await calls.result()
    released.set()
    assert await calls.result() == 7
    assert len(started) == 1
    assert await calls.result() == 7
    assert len(started) == 2
