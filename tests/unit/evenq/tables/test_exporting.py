"""Each committed message is in exactly one file, whatever happens to log, exporter and target."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from evenq.columns.arrow_schema import TYPES
from evenq.errors import BadRequest, Forbidden, IllegalOffset, StoreCorrupted, StoreFull, Unsupported
from evenq.tables.checking import findings, table_of
from evenq.tables.exporting import ExportPlan, ExportTurn, TopicExport, table_settings
from evenq.tables.files import bloom_filters
from evenq.tables.folder import FolderTables, TableTarget, table_target
from evenq.tables.layout import TableChanged, TableGap, TableRange, TableSettings
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog, FakeReader

SETTINGS = TableSettings(rows_per_file=100, close_after_ms=60_000)
LATER_MS = START_MS + 3_600_000
FOLDER = "orders/uid=u1-b1/broker=broker-a/queue=0"


def export(log: FakeLog, target: TableTarget, *, now_ms: int = LATER_MS, **plan: Any) -> ExportTurn:
    """One turn of a new exporter. Raises the first failure."""
    turn = try_export(log, target, now_ms=now_ms, **plan)
    for failure in turn.failures.values():
        raise failure
    return turn


def try_export(log: FakeLog, target: TableTarget, *, now_ms: int = LATER_MS, **plan: Any) -> ExportTurn:
    made = ExportPlan(topic=log.topic, settings=SETTINGS, **plan)
    return asyncio.run(TopicExport(FakeReader(log), target, made, clock_ms=lambda: now_ms).turn())


def offsets(folder: Path, queue: int = 0) -> list[int]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["queueOffset", "queueId"])
    return sorted(row["queueOffset"] for row in table.to_pylist() if row["queueId"] == queue)


def spans(folder: Path) -> list[tuple[int, int]]:
    return sorted(tuple(map(int, path.stem.split("-"))) for path in (folder / FOLDER).glob("*.parquet"))  # type: ignore[misc]


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def target(tmp_path: Path) -> FolderTables:
    return FolderTables(tmp_path)


def test_files_end_at_multiples_and_at_the_end_of_a_window(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(250)
    turn = export(log, target)
    assert (turn.files, turn.rows, turn.left) == (3, 250, 0)
    assert spans(tmp_path) == [(0, 100), (100, 200), (200, 250)]
    assert offsets(tmp_path) == list(range(250))
    log.add(20, at_ms=LATER_MS)
    assert export(log, target, now_ms=LATER_MS + 3_600_000).rows == 20
    assert spans(tmp_path)[-1] == (250, 270)
    assert not [*findings(target, table_of(target, "orders")[0], whole=True)]


def test_rows_have_all_columns_of_the_spark_source(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(30)
    export(log, target)
    table = ds.dataset(tmp_path, format="parquet").to_table()
    assert table.schema.names == list(TYPES)
    row = table.to_pylist()[7]
    assert row["body"] == b"body 7"
    assert (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) == ("orders", "broker-a", 0, 7)
    assert (row["tag"], row["keys"], row["messageGroup"]) == ("t", ["k7"], None)
    assert row["properties"] == [("n", "7")]
    assert row["storeTimestamp"].timestamp() * 1000 == START_MS
    assert row["bornTimestamp"].timestamp() * 1000 == START_MS - 5


def test_a_file_has_statistics_a_page_index_and_a_bloom_filter(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    log.add(100)
    export(log, target)
    [path] = (tmp_path / FOLDER).glob("*.parquet")
    metadata = pq.read_metadata(path)
    column = metadata.row_group(0).column(metadata.schema.names.index("queueOffset"))
    assert (column.statistics.min, column.statistics.max, column.compression) == (0, 99, "ZSTD")
    assert column.has_offset_index
    assert column.has_column_index
    assert metadata.metadata[b"evenq.last_store_ms"] == str(START_MS).encode()
    assert bloom_filters(100), "the installed pyarrow can write one"
    keys = [metadata.row_group(0).column(n) for n in range(metadata.num_columns)]
    [keys_column] = [one for one in keys if one.path_in_schema == "keys.list.element"]
    assert keys_column.statistics.max == "k99"


def test_an_open_window_stays_in_the_log(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(150)
    turn = export(log, target, now_ms=START_MS + 6_000)
    assert (turn.files, turn.left) == (1, 50)
    end_ms = SETTINGS.window_end_ms(START_MS)
    assert export(log, target, now_ms=end_ms + 4_999).files == 0, "5 s for clocks that differ, and for the sync"
    assert export(log, target, now_ms=end_ms + 5_000).files == 1
    assert spans(tmp_path) == [(0, 100), (100, 150)]


def test_a_full_file_of_new_messages_waits_until_they_are_synced(log: FakeLog, target: FolderTables) -> None:
    log.add(100)
    assert export(log, target, now_ms=START_MS + 4_999).files == 0
    assert export(log, target, now_ms=START_MS + 5_000).files == 1


def test_the_tail_is_written_when_it_is_asked_for_and_continued_after(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    log.add(30)
    assert export(log, target, now_ms=START_MS + 6_000, tail=True).left == 0
    log.add(30)
    export(log, target)
    assert spans(tmp_path) == [(0, 30), (30, 60)]


def test_exporters_that_begin_at_any_time_cut_at_the_same_offsets(tmp_path: Path) -> None:
    """One follows the log, one comes at the end: same names."""
    log = FakeLog()
    follower, late = FolderTables(tmp_path / "a"), FolderTables(tmp_path / "b")
    for minute in range(6):
        log.add(37 + minute, at_ms=START_MS + minute * 45_000, step_ms=100)
        export(log, follower, now_ms=START_MS + minute * 45_000 + 20_000)
    export(log, follower)
    export(log, late)
    assert spans(tmp_path / "a") == spans(tmp_path / "b")
    assert offsets(tmp_path / "b") == list(range(len(log.queues[0])))


def test_a_queue_that_grows_in_its_window_while_others_are_written_is_cut_at_the_end_of_the_window(
    tmp_path: Path,
) -> None:
    """The turn of the first exporter lasts longer than the window of the second queue."""
    log, follower, late = FakeLog(queues=2), FolderTables(tmp_path / "a"), FolderTables(tmp_path / "b")
    log.add(100)
    log.add(30, queue=1)
    moment, reader = [START_MS + 6_000], FakeReader(log)
    original = reader.scan

    def scan(extent: Any, start: int, end: int, *, verifies: bool) -> Any:
        if moment[0] < LATER_MS:
            log.add(20, at_ms=START_MS + 10_000, queue=1)
            moment[0] = LATER_MS
        return original(extent, start, end, verifies=verifies)

    reader.scan = scan  # type: ignore[method-assign]
    plan = ExportPlan(topic="orders", settings=SETTINGS)
    run = TopicExport(reader, follower, plan, clock_ms=lambda: moment[0])
    assert asyncio.run(run.turn()).left == 30
    assert asyncio.run(run.turn()).left == 0
    export(log, late)
    names = [sorted(path.name for path in folder.root.rglob("queue=1/*.parquet")) for folder in (follower, late)]
    assert names == [[TableRange(start=0, end=50).name]] * 2


def test_a_repeat_writes_nothing(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(250)
    export(log, target)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    log.scans.clear()
    assert export(log, target).files == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before
    assert log.scans == []


def test_a_name_that_another_exporter_wrote_meanwhile_is_kept(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    log.add(200)
    first, second = (
        TopicExport(FakeReader(log), target, ExportPlan(topic="orders", settings=SETTINGS), clock_ms=lambda: LATER_MS)
        for _ in range(2)
    )

    async def both() -> list[ExportTurn]:
        return await asyncio.gather(first.turn(), second.turn())

    turns = asyncio.run(both())
    assert not turns[0].failures
    assert not turns[1].failures
    assert spans(tmp_path) == [(0, 100), (100, 200)]
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_exporter_that_comes_late_adopts_the_files_of_another_one(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    """The other one ended a file early: its rows are not written again."""
    log.add(60)
    mine = TopicExport(
        FakeReader(log), target, ExportPlan(topic="orders", settings=SETTINGS), clock_ms=lambda: LATER_MS
    )
    asyncio.run(mine.turn())
    log.add(20, at_ms=LATER_MS)
    export(log, target, now_ms=LATER_MS + 6_000, tail=True)
    log.add(40, at_ms=LATER_MS + 1)
    mine._clock_ms = lambda: LATER_MS + 3_600_000
    turn = asyncio.run(mine.turn())
    assert [type(error) for error in turn.failures.values()] == [TableChanged]
    assert not asyncio.run(mine.turn()).failures, "the names were read again"
    assert spans(tmp_path) == [(0, 60), (60, 80), (80, 100), (100, 120)]
    assert offsets(tmp_path) == list(range(120))


def test_a_damaged_record_ends_the_export_of_its_queue_only(target: FolderTables, tmp_path: Path) -> None:
    log = FakeLog(queues=2)
    log.add(250)
    log.add(250, queue=1)
    log.fails = {}
    log.flips = set()
    reader = FakeReader(log)
    original = reader.scan

    def scan(extent: Any, start: int, end: int, *, verifies: bool) -> Any:
        log.fails = {120: StoreCorrupted("record 120 is damaged")} if extent.queue.queue_id == 0 else {}
        return original(extent, start, end, verifies=verifies)

    reader.scan = scan  # type: ignore[method-assign]
    plan = ExportPlan(topic="orders", settings=SETTINGS)
    turn = asyncio.run(TopicExport(reader, target, plan, clock_ms=lambda: LATER_MS).turn())
    assert [(str(queue), error.message) for queue, error in turn.failures.items()] == [
        (str(next(iter(turn.failures))), "record 120 is damaged")
    ]
    assert offsets(tmp_path) == list(range(100))
    assert offsets(tmp_path, queue=1) == list(range(250))
    assert not [*tmp_path.rglob("*.tmp")]


def test_a_record_that_was_damaged_on_its_way_is_read_again(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(100)
    log.flips = {42}
    export(log, target)
    assert log.scans == [(0, 100), (0, 100)]
    assert offsets(tmp_path) == list(range(100))


def test_a_gap_of_retention_is_an_error_until_it_is_accepted_and_then_on_record(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    log.add(250)
    export(log, target)
    log.add(300, at_ms=LATER_MS)
    log.low[0] = 330
    with pytest.raises(TableGap, match=r"offsets 250 to 329 .* 80 messages"):
        export(log, target, now_ms=LATER_MS + 3_600_000)
    live = asyncio.run(log.queues_())[0]
    [finding] = findings(target, table_of(target, "orders")[0], live)
    assert "retention deleted offsets 250 to 329" in finding.what
    turn = export(log, target, now_ms=LATER_MS + 3_600_000, allow_gaps=True)
    assert (turn.gaps, turn.rows) == (80, 220)
    assert offsets(tmp_path) == [*range(250), *range(330, 550)]
    [finding] = findings(target, table_of(target, "orders")[0], live)
    assert "80 messages are missing" in finding.what
    assert export(log, target, now_ms=LATER_MS + 3_600_000).files == 0


def test_a_new_table_begins_at_the_first_message_that_is_left(
    log: FakeLog, target: FolderTables, tmp_path: Path
) -> None:
    log.add(250)
    log.low[0] = 130
    export(log, target)
    assert spans(tmp_path) == [(130, 200), (200, 250)]


def test_a_topic_that_is_created_again_gets_its_own_folder(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(120)
    export(log, target)
    again = FakeLog(uid="u2-b1")
    again.add(30)
    export(again, target)
    assert spans(tmp_path) == [(0, 100), (100, 120)]
    assert [one.queue.uid for one in table_of(target, "orders")] == ["u1-b1", "u2-b1"]


def test_a_queue_that_lost_its_end_and_grew_again_stops(log: FakeLog, target: FolderTables) -> None:
    log.add(100)
    export(log, target)
    log.queues[0][90:] = []
    with pytest.raises(TableChanged, match="ends at 90"):
        export(log, target)
    log.queues[0] += [(LATER_MS, b"another") for _ in range(60)]
    with pytest.raises(TableChanged, match=r"offset 99 .* is another message"):
        export(log, target, now_ms=LATER_MS + 3_600_000)


def test_a_scan_that_ends_early_writes_nothing(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(100)
    log.fails = {60: IllegalOffset("gone")}
    with pytest.raises(BadRequest, match="gone"):
        export(log, target)
    assert spans(tmp_path) == []
    assert not [*tmp_path.rglob("*.tmp")]


def test_a_full_target_shows_nothing_and_the_next_turn_continues(
    log: FakeLog, target: FolderTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from evenq.tables import folder

    log.add(250)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder.os, "fdatasync", full)
        with pytest.raises(StoreFull, match="free space"):
            export(log, target)
    assert spans(tmp_path) == []
    export(log, target)
    assert offsets(tmp_path) == list(range(250))


def test_a_broker_without_uids_is_refused(target: FolderTables) -> None:
    log = FakeLog(uid="")
    log.add(100)
    with pytest.raises(Unsupported, match="newer broker"):
        export(log, target)


def test_an_export_ends_after_its_current_file(log: FakeLog, target: FolderTables, tmp_path: Path) -> None:
    log.add(1_000)
    plan = ExportPlan(topic="orders", settings=SETTINGS)
    export: TopicExport

    def wrote(_path: str, _rows: int, _misfits: int) -> None:
        export.stopping = True

    export = TopicExport(FakeReader(log), target, plan, clock_ms=lambda: LATER_MS, wrote=wrote)
    assert asyncio.run(export.turn()).files == 1
    assert spans(tmp_path) == [(0, 100)]


def test_the_settings_of_a_table_never_change(target: FolderTables) -> None:
    first = table_settings(target, "orders", rows_per_file=1_000, close_after_ms=None)
    assert first == TableSettings(rows_per_file=1_000)
    assert table_settings(target, "orders", rows_per_file=None, close_after_ms=None) == first
    assert table_settings(target, "orders", rows_per_file=1_000, close_after_ms=first.close_after_ms) == first
    for rows, close_ms in ((2_000, None), (None, 1_000)):
        with pytest.raises(TableChanged, match=r"was begun with --(rows-per-file 1000|close-after 600000 ms)"):
            table_settings(target, "orders", rows_per_file=rows, close_after_ms=close_ms)
    assert table_settings(target, "calls", rows_per_file=2_000, close_after_ms=None).rows_per_file == 2_000


def test_a_table_behind_a_url_is_the_same(log: FakeLog, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    target = table_target(f"memory://{tmp_path.name}")
    log.add(250)
    assert export(log, target).files == 3
    assert export(log, target).files == 0
    files = table_of(target, "orders")[0]
    assert (files.rows, files.end) == (250, 250)
    assert not [*findings(target, files, whole=True)]
    assert fsspec.filesystem("memory").exists(f"/{tmp_path.name}/{files.paths[0]}")


def test_the_ends_of_the_files_are_reported_and_never_more(log: FakeLog, target: FolderTables) -> None:
    log.queues[1], log.low[1] = [], 0
    log.add(150)
    log.add(120, queue=1)
    log.fails[100] = StoreCorrupted("damaged")
    reader = FakeReader(log)
    plan = ExportPlan(topic=log.topic, settings=SETTINGS)
    run = TopicExport(reader, target, plan, clock_ms=lambda: LATER_MS)
    turn = asyncio.run(run.turn())
    assert len(turn.failures) == 2
    assert log.reported == {}, "the names are read again before the next report"
    log.fails.clear()
    log.fails[120] = StoreCorrupted("damaged")
    asyncio.run(run.turn())
    assert log.reported == {1: 120}
    log.fails.clear()
    assert asyncio.run(run.turn()).unreported is None
    assert log.reported == {0: 150, 1: 120}
    log.reported.clear()
    asyncio.run(run.turn())
    assert log.reported == {}, "nothing moved"


def test_a_refused_report_stops_no_export_and_is_repeated(log: FakeLog, target: FolderTables) -> None:
    log.add(150)
    reader = FakeReader(log)
    log.refuses = Forbidden("no right")
    run = TopicExport(reader, target, ExportPlan(topic=log.topic, settings=SETTINGS), clock_ms=lambda: LATER_MS)
    turn = asyncio.run(run.turn())
    assert (turn.files, turn.failures, turn.unreported) == (2, {}, log.refuses)
    log.refuses = None
    assert asyncio.run(run.turn()).unreported is None
    assert log.reported == {0: 150}


def test_an_export_that_does_not_report_leaves_retention_alone(log: FakeLog, target: FolderTables) -> None:
    log.add(150)
    reader = FakeReader(log)
    plan = ExportPlan(topic=log.topic, settings=SETTINGS, reports=False)
    assert asyncio.run(TopicExport(reader, target, plan, clock_ms=lambda: LATER_MS).turn()).rows == 150
    assert log.reported == {}
