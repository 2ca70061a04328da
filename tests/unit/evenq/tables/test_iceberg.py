"""Files of a folder are in the Iceberg table exactly once, whatever happens to publishers, commits and old files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenq.errors import ConnectionFailed, NotFound, SettingsError, StoreError
from evenq.tables import iceberg
from evenq.tables.checking import queues_of
from evenq.tables.folder import FolderTables
from evenq.tables.iceberg import IcebergTable, PublishTurn
from evenq.tables.iceberg_state import IcebergName, link_of
from evenq.tables.layout import TableChanged, TableRange
from tests.unit.evenq.tables.fake_log import FakeLog
from tests.unit.evenq.tables.test_exporting import FOLDER, LATER_MS, export

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

NAME = IcebergName.of("lake.sales.orders")


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A catalog in SQLite with the namespace `sales`."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    catalog = pyiceberg.catalog.load_catalog("lake")
    catalog.create_namespace("sales")
    return catalog


@pytest.fixture
def log() -> FakeLog:
    """Two queues with 250 and 120 messages: files of 100 offsets."""
    log = FakeLog(queues=2)
    log.add(200)
    log.add(50, at_ms=LATER_MS)
    log.add(120, queue=1)
    return log


@pytest.fixture
def target(log: FakeLog, tmp_path: Path) -> FolderTables:
    target = FolderTables(tmp_path / "tables")
    export(log, target, now_ms=LATER_MS + 3_600_000)
    return target


def publish(target: FolderTables, table: IcebergTable | None = None) -> PublishTurn:
    table = table or IcebergTable(target, "orders", NAME)
    table.begin()
    return table.publish(lambda: queues_of(target, "orders"))


def rows(catalog: Any, name: str = "sales.orders") -> list[tuple[int, int]]:
    """Queue and offset of each row, read by pyiceberg."""
    found = catalog.load_table(name).scan(selected_fields=("queueId", "queueOffset")).to_arrow()
    return sorted(zip(found.column("queueId").to_pylist(), found.column("queueOffset").to_pylist(), strict=True))


def whole(*counts: int) -> list[tuple[int, int]]:
    return [(queue, offset) for queue, count in enumerate(counts) for offset in range(count)]


def findings(target: FolderTables) -> list[str]:
    return [one.what for one in IcebergTable(target, "orders").findings(queues_of(target, "orders"))]


def before_commits(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Runs each step once, before the next commits."""
    from pyiceberg.catalog.sql import SqlCatalog

    original, left = SqlCatalog.commit_table, [*steps]

    def commit(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop(0)()
        return original(*arguments, **named)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)


def test_each_file_is_registered_once_with_the_id_of_its_step(catalog: Any, target: FolderTables, log: FakeLog) -> None:
    turn = publish(target)
    assert (turn.files, turn.rows, turn.left, turn.failures) == (5, 370, 0, {})
    assert rows(catalog) == whole(250, 120)
    table = catalog.load_table("sales.orders")
    assert table.current_snapshot().snapshot_id == turn.snapshot_id
    summary = table.current_snapshot().summary
    assert len(summary["evenq.step"]) == 16
    assert list(json.loads(summary["evenq.ends"]).values()) == [250, 120]
    again = publish(target)
    assert (again.files, again.snapshot_id) == (0, turn.snapshot_id)
    log.add(100, at_ms=LATER_MS + 10, queue=1)
    export(log, target, now_ms=LATER_MS + 7_200_000)
    assert publish(target).files == 2
    assert rows(catalog) == whole(250, 220)
    assert len(catalog.load_table("sales.orders").snapshots()) == 2
    assert findings(target) == []


def test_columns_have_the_values_of_the_files(catalog: Any, target: FolderTables) -> None:
    publish(target)
    [row] = catalog.load_table("sales.orders").scan("queueId = 1 and queueOffset = 7").to_arrow().to_pylist()
    assert (row["topic"], row["brokerName"], row["body"], row["keys"]) == ("orders", "broker-a", b"body 7", ["k7"])
    assert (row["properties"], row["messageGroup"], row["tag"]) == ([("n", "7")], None, "t")
    assert row["storeTimestamp"].isoformat() == "2023-11-14T22:13:20+00:00"


def test_names_with_other_characters_are_paths_that_readers_find(catalog: Any, tmp_path: Path) -> None:
    log, target = FakeLog(topic="shop%orders", broker="broker a/b"), FolderTables(tmp_path / "tables")
    log.add(100)
    export(log, target, now_ms=LATER_MS)
    table = IcebergTable(target, "shop%orders", NAME)
    table.begin()
    for files in (1, 0):
        assert table.publish(lambda: queues_of(target, "shop%orders")).files == files
    assert rows(catalog) == whole(100)
    assert (
        IcebergTable(target, "shop%orders").withdraw({one.queue: 100 for one in queues_of(target, "shop%orders")}) == 1
    )
    assert rows(catalog) == []


def test_duckdb_reads_the_registered_files(catalog: Any, target: FolderTables) -> None:
    duckdb = pytest.importorskip("duckdb")
    publish(target)
    paths = [
        task.file.file_path.removeprefix("file://") for task in catalog.load_table("sales.orders").scan().plan_files()
    ]
    [(count, total)] = duckdb.sql(f"select count(*), sum(queueOffset) from read_parquet({paths})").fetchall()
    assert (count, total) == (370, sum(offset for _, offset in rows(catalog)))


def test_a_lost_answer_of_a_commit_registers_nothing_twice(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitStateUnknownException

    original = SqlCatalog.commit_table

    def lose(*arguments: Any) -> Any:
        original(*arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    with pytest.raises(ConnectionFailed, match="catalog lake cannot be reached: no answer"):
        publish(target)
    monkeypatch.setattr(SqlCatalog, "commit_table", original)
    assert publish(target).files == 0
    assert rows(catalog) == whole(250, 120)


def test_a_commit_that_never_arrived_is_repeated(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise TimeoutError("no answer")

    before_commits(monkeypatch, fail)
    with pytest.raises(ConnectionFailed):
        publish(target)
    assert publish(target).files == 5
    assert rows(catalog) == whole(250, 120)


def test_two_publishers_at_once_register_each_file_once(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_commits(monkeypatch, lambda: publish(target))
    assert publish(target).files == 0, "the other one was faster"
    assert rows(catalog) == whole(250, 120)
    assert findings(target) == []


def test_commits_of_others_are_waited_for_to_a_bound(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    publish(target)
    file_of(target, 250, 300)(lambda schema: schema)
    monkeypatch.setattr(iceberg, "CONFLICTS_MAX", 3)

    def touch() -> None:
        change = catalog.load_table("sales.orders").transaction()
        with change.update_snapshot().fast_append():
            pass
        change.commit_transaction()

    original, busy = SqlCatalog.commit_table, [False]

    def commit(*arguments: Any) -> Any:
        if not busy[0]:
            busy[0] = True
            touch()
            busy[0] = False
        return original(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    with pytest.raises(ConnectionFailed, match="3 commits"):
        publish(target)
    monkeypatch.setattr(SqlCatalog, "commit_table", original)
    assert publish(target).files == 1
    assert rows(catalog) == whole(300, 120)


def test_many_files_are_registered_in_steps_of_bounded_size(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "FILES_PER_STEP", 2)
    monkeypatch.setattr(iceberg, "PROPERTIES", {**iceberg.PROPERTIES, "commit.manifest.min-count-to-merge": "2"})
    assert publish(target).files == 5
    snapshots = catalog.load_table("sales.orders").snapshots()
    assert len(snapshots) == 3
    assert len({one.summary["evenq.step"] for one in snapshots}) == 3
    assert rows(catalog) == whole(250, 120), "manifests were joined"


def test_old_snapshots_are_removed_from_the_list(
    catalog: Any, target: FolderTables, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 4)
    monkeypatch.setattr(iceberg, "SNAPSHOTS_KEPT", 2)
    monkeypatch.setattr(iceberg, "FILES_PER_STEP", 1)
    publish(target)
    for hour in range(2, 8):
        log.add(100, at_ms=LATER_MS + hour * 3_600_000)
        export(log, target, now_ms=LATER_MS + hour * 3_600_000 + 7_000_000)
        publish(target)
        assert len(catalog.load_table("sales.orders").snapshots()) <= 5
    assert rows(catalog) == whole(850, 120)


def test_a_table_that_was_rolled_back_gets_its_files_again(catalog: Any, target: FolderTables, log: FakeLog) -> None:
    first = publish(target).snapshot_id
    log.add(100, at_ms=LATER_MS + 10, queue=1)
    export(log, target, now_ms=LATER_MS + 7_200_000)
    publish(target)
    catalog.load_table("sales.orders").manage_snapshots().rollback_to_snapshot(first).commit()
    assert any("is not registered" in what for what in findings(target))
    assert publish(target).files == 2
    assert rows(catalog) == whole(250, 220)


def starts(target: FolderTables, offset: int) -> dict[Any, int]:
    return {one.queue: offset for one in queues_of(target, "orders") if one.queue.queue_id == 0}


def test_withdrawn_files_do_not_return_although_they_are_there(catalog: Any, target: FolderTables) -> None:
    publish(target)
    assert IcebergTable(target, "orders").withdraw(starts(target, 200)) == 2
    expected = [(0, offset) for offset in range(200, 250)] + [(1, offset) for offset in range(120)]
    assert rows(catalog) == expected
    assert publish(target).files == 0, "the files are deleted a moment later, or by the next run"
    before = IcebergTable(target, "orders").state().snapshot_id
    assert IcebergTable(target, "orders").withdraw(starts(target, 200)) == 0
    assert IcebergTable(target, "orders").withdraw(starts(target, 100)) == 0, "starts never fall"
    assert IcebergTable(target, "orders").state().snapshot_id == before
    assert rows(catalog) == expected


@pytest.mark.parametrize("published", [False, True])
def test_a_publisher_that_has_not_seen_an_expiry_conflicts_with_it(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """Otherwise it would register files that are deleted now."""
    table = IcebergTable(target, "orders", NAME)
    table.begin()
    if published:
        monkeypatch.setattr(iceberg, "FILES_PER_STEP", 4)
        table.publish(lambda: [one for one in queues_of(target, "orders") if one.queue.queue_id == 1])

    def expire() -> None:
        IcebergTable(target, "orders").withdraw(starts(target, 200))
        for part in (TableRange(start=0, end=100), TableRange(start=100, end=200)):
            (target.root / FOLDER / part.name).unlink()

    before_commits(monkeypatch, expire)
    assert publish(target, table).left == 0
    assert rows(catalog) == [(0, offset) for offset in range(200, 250)] + [(1, offset) for offset in range(120)]
    assert findings(target) == []


def file_of(target: FolderTables, start: int, end: int) -> Callable[[Callable[[pa.Schema], pa.Schema]], Path]:
    """Writes the next file of queue 0 with another schema."""

    def write(change: Callable[[pa.Schema], pa.Schema], **columns: Any) -> Path:
        folder = target.root / FOLDER
        rows = pq.read_table(folder / TableRange(start=200, end=250).name)
        index = rows.schema.get_field_index("queueOffset")
        rows = rows.slice(0, end - start).set_column(
            index, rows.schema.field("queueOffset"), pa.array(range(start, end), pa.int64())
        )
        for name, value in columns.items():
            rows = rows.append_column(name, value)
        path = folder / TableRange(start=start, end=end).name
        pq.write_table(rows.cast(change(rows.schema)), path)
        return path

    return write


def test_columns_that_are_added_later_are_added_to_the_table(catalog: Any, target: FolderTables) -> None:
    publish(target)
    extra = {
        "amount": pa.array([2.5] * 50),
        "at": pa.array([1_700_000_000_000_000] * 50, pa.timestamp("us", tz="UTC")),
        "items": pa.array([[{"sku": "a", "count": 1}]] * 50),
    }
    file_of(target, 250, 300)(lambda schema: schema, **extra)  # type: ignore[call-arg]
    turn = publish(target)
    assert (turn.files, turn.failures) == (1, {})
    table = catalog.load_table("sales.orders").scan().to_arrow()
    values = {(row["queueId"], row["queueOffset"]): (row["amount"], row["items"]) for row in table.to_pylist()}
    assert values[0, 270] == (2.5, [{"sku": "a", "count": 1}])
    assert values[0, 7] == (None, None)
    assert rows(catalog) == whole(300, 120)
    file_of(target, 300, 350)(lambda schema: schema)  # a file without them
    assert publish(target).files == 1
    assert rows(catalog) == whole(350, 120)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("queueId", pa.float64(), "column queueId is double, not int32"),
        ("storeTimestamp", pa.timestamp("ns", tz="UTC"), "timestamp[ns"),
    ],
)
def test_columns_that_do_not_fit_stop_their_queue(
    catalog: Any, target: FolderTables, log: FakeLog, name: str, kind: pa.DataType, text: str
) -> None:
    publish(target)

    def change(schema: pa.Schema) -> pa.Schema:
        return schema.set(schema.get_field_index(name), pa.field(name, kind))

    path = file_of(target, 250, 300)(change)
    log.add(100, at_ms=LATER_MS + 10, queue=1)
    log.add(50, at_ms=LATER_MS)  # of the file that is there
    export(log, target, now_ms=LATER_MS + 7_200_000)
    turn = publish(target)
    assert (turn.files, turn.left) == (2, 1)
    [error] = turn.failures.values()
    assert isinstance(error, TableChanged)
    assert str(path) in error.message
    assert text in error.message
    assert "\n" not in error.message
    assert rows(catalog) == whole(250, 220)


def test_a_damaged_file_stops_its_queue(catalog: Any, target: FolderTables) -> None:
    path = target.root / FOLDER / TableRange(start=100, end=200).name
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    turn = publish(target)
    [error] = turn.failures.values()
    assert isinstance(error, StoreError)
    assert str(path) in error.message
    assert rows(catalog) == [(0, offset) for offset in range(100)] + [(1, offset) for offset in range(120)]
    path.write_bytes(data)
    assert publish(target).failures == {}
    assert rows(catalog) == whole(250, 120)
    wrong = TableRange(start=250, end=260)
    (target.root / FOLDER / wrong.name).write_bytes(data)
    [error] = publish(target).failures.values()
    assert "has 100 rows, its name says 10" in error.message
    assert rows(catalog) == whole(250, 120)


def again(target: FolderTables, start: int) -> Path:
    """Writes a file of queue 0 again: the same rows, with another size, as another version of pyarrow may do."""
    path = target.root / FOLDER / TableRange(start=start, end=start + 100).name
    before = path.stat().st_size
    rows = pq.read_table(path)
    pq.write_table(rows, path, compression="none")
    assert path.stat().st_size != before
    return path


def renew(target: FolderTables) -> PublishTurn:
    return IcebergTable(target, "orders").renew(lambda: queues_of(target, "orders"))


def test_files_that_were_written_again_get_new_entries_in_one_commit(catalog: Any, target: FolderTables) -> None:
    before = publish(target).snapshot_id
    assert renew(target) == PublishTurn(snapshot_id=before), "nothing changed"
    paths = {again(target, 0), again(target, 100)}
    assert len([what for what in findings(target) if "run `evenq table rebuild`" in what]) == 2
    assert publish(target).files == 0, "a publisher compares names"
    turn = renew(target)
    assert (turn.files, turn.rows, turn.left, turn.failures) == (2, 200, 0, {})
    table = catalog.load_table("sales.orders")
    assert len(table.snapshots()) == 2
    summary = table.current_snapshot().summary
    assert (summary["deleted-data-files"], summary["added-data-files"], summary["total-records"]) == ("2", "2", "370")
    assert len(summary["evenq.step"]) == 16
    sizes = {task.file.file_path: task.file.file_size_in_bytes for task in table.scan().plan_files()}
    assert len(sizes) == 5
    assert {path: sizes[f"file://{path}"] for path in paths} == {path: path.stat().st_size for path in paths}
    assert rows(catalog) == whole(250, 120)
    assert findings(target) == []
    assert renew(target).files == 0


def test_a_rebuild_that_is_killed_or_loses_its_answer_is_repeated(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the file and its commit, before the commit arrives, and after it was made."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitStateUnknownException

    publish(target)
    again(target, 100)
    original = SqlCatalog.commit_table

    def never(*_: Any) -> Any:
        raise TimeoutError("no answer")

    def lost(*arguments: Any) -> Any:
        original(*arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", never)
    with pytest.raises(ConnectionFailed):
        renew(target)
    assert len(findings(target)) == 1, "the old entry is there"
    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with pytest.raises(ConnectionFailed):
        renew(target)
    monkeypatch.setattr(SqlCatalog, "commit_table", original)
    assert renew(target).files == 0
    assert findings(target) == []
    assert len(catalog.load_table("sales.orders").snapshots()) == 2
    assert rows(catalog) == whole(250, 120)


def test_a_rebuild_that_has_not_seen_an_expiry_conflicts_with_it(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target)
    again(target, 0)
    before_commits(monkeypatch, lambda: IcebergTable(target, "orders").withdraw(starts(target, 100)))
    assert renew(target).files == 0
    assert rows(catalog) == [one for one in whole(250, 120) if one not in whole(100)]


def test_two_rebuilds_at_once_make_one_commit(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target)
    again(target, 0)
    before_commits(monkeypatch, lambda: renew(target))
    assert renew(target).files == 0
    assert len(catalog.load_table("sales.orders").snapshots()) == 2
    assert findings(target) == []


def test_a_file_that_is_still_damaged_keeps_its_entry_and_holds_no_other_up(catalog: Any, target: FolderTables) -> None:
    publish(target)
    path = target.root / FOLDER / TableRange(start=0, end=100).name
    path.write_bytes(path.read_bytes()[:-9])
    again(target, 100)
    turn = renew(target)
    assert (turn.files, turn.left) == (1, 1)
    [error] = turn.failures.values()
    assert str(path) in error.message
    assert len(findings(target)) == 1
    assert len([*catalog.load_table("sales.orders").scan().plan_files()]) == 5


def test_rows_that_are_registered_under_another_name_are_not_registered_again(
    catalog: Any, target: FolderTables
) -> None:
    publish(target)
    folder = target.root / FOLDER
    (folder / TableRange(start=0, end=100).name).rename(folder / TableRange(start=0, end=110).name)
    [error] = publish(target).failures.values()
    assert "overlaps" in error.message
    assert rows_in_state(target) == 370
    assert any("but is gone" in what for what in findings(target))
    assert any("overlaps" in what for what in findings(target))


def rows_in_state(target: FolderTables) -> int:
    return IcebergTable(target, "orders").state().rows


def test_files_of_other_programs_stop_a_publisher(catalog: Any, target: FolderTables, log: FakeLog) -> None:
    publish(target)
    table = catalog.load_table("sales.orders")
    table.append(table.scan(limit=10).to_arrow())
    with pytest.raises(TableChanged, match="1 data files that evenq did not write"):
        publish(target)
    assert any("evenq did not write" in what for what in findings(target))


def test_a_table_of_something_else_is_refused(catalog: Any, target: FolderTables, tmp_path: Path) -> None:
    catalog.create_table("sales.orders", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(TableChanged, match="is not the table of topic orders"):
        publish(target)
    assert link_of(target, "orders") is None
    publish(target, IcebergTable(target, "orders", IcebergName.of("lake.sales.second")))
    other = FolderTables(tmp_path / "moved")
    target.root.rename(other.root)
    with pytest.raises(TableChanged, match="has the files of"):
        publish(other, IcebergTable(other, "orders"))


def test_one_folder_has_one_iceberg_table(catalog: Any, target: FolderTables) -> None:
    with pytest.raises(SettingsError, match="add --iceberg"):
        IcebergTable(target, "orders")
    publish(target)
    assert publish(target, IcebergTable(target, "orders")).files == 0
    with pytest.raises(TableChanged, match=r"registered in lake\.sales\.orders, not in lake\.sales\.other"):
        IcebergTable(target, "orders", IcebergName.of("lake.sales.other"))
    catalog.drop_table("sales.orders")
    with pytest.raises(NotFound, match="does not exist any more"):
        publish(target)
    (target.root / "orders/_iceberg.json").write_text("{")
    with pytest.raises(SettingsError, match=r"_iceberg\.json does not name an Iceberg table"):
        IcebergTable(target, "orders")
    (target.root / "orders/_iceberg.json").write_text('{"version": 2}')
    with pytest.raises(SettingsError, match="use a newer evenq"):
        IcebergTable(target, "orders")


def test_a_table_that_was_created_again_is_not_taken_for_the_old_one(catalog: Any, target: FolderTables) -> None:
    publish(target)
    link = (target.root / "orders/_iceberg.json").read_text()
    catalog.drop_table("sales.orders")
    (target.root / "orders/_iceberg.json").unlink()
    publish(target)
    (target.root / "orders/_iceberg.json").write_text(link)
    with pytest.raises(TableChanged, match="was dropped and created again"):
        publish(target)


def test_a_publisher_that_was_killed_before_it_wrote_the_link_continues(catalog: Any, target: FolderTables) -> None:
    publish(target)
    (target.root / "orders/_iceberg.json").unlink()
    assert publish(target).files == 0
    assert link_of(target, "orders") is not None


def test_a_folder_inside_the_tables_location_is_refused(catalog: Any, log: FakeLog, tmp_path: Path) -> None:
    target = FolderTables(tmp_path / "warehouse/sales")
    export(log, target, now_ms=LATER_MS + 3_600_000)
    with pytest.raises(TableChanged, match="inside the location"):
        publish(target)


@pytest.mark.usefixtures("catalog")
def test_a_wrong_catalog_or_namespace_names_the_remedy(target: FolderTables) -> None:
    with pytest.raises(SettingsError, match=r"\(known catalogs: lake\)"):
        publish(target, IcebergTable(target, "orders", IcebergName.of("lak.sales.orders")))
    with pytest.raises(NotFound, match="pyiceberg --catalog lake create namespace sale"):
        publish(target, IcebergTable(target, "orders", IcebergName.of("lake.sale.orders")))
    assert link_of(target, "orders") is None


def test_a_catalog_that_is_away_is_a_failed_connection(
    catalog: Any, target: FolderTables, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    publish(target)
    for uri in ("http://127.0.0.1:1", f"sqlite:///{tmp_path}/none/catalog.db"):
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        with pytest.raises(ConnectionFailed, match="catalog lake cannot be reached"):
            publish(target)
