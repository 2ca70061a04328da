"""Damaged and missing files of a table are written again, as far as the log has their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from evenq.errors import Error, NotFound, StoreFull
from evenq.tables.checking import findings, table_of
from evenq.tables.exporting import ExportPlan, ExportTurn, TopicExport
from evenq.tables.folder import FolderTables, TableTarget, place_bytes, table_target
from evenq.tables.layout import TableChanged, TableGap
from tests.unit.evenq.tables.fake_log import FakeLog, FakeReader
from tests.unit.evenq.tables.test_exporting import LATER_MS, SETTINGS, export


@pytest.fixture
def log() -> FakeLog:
    log = FakeLog()
    log.add(250)
    log.add(70, at_ms=LATER_MS - 600_000)
    return log


@pytest.fixture(params=["folder", "url"])
def target(request: Any, tmp_path: Any) -> Iterator[TableTarget]:
    """A folder, and a store behind a URL."""
    return FolderTables(tmp_path) if request.param == "folder" else table_target(f"memory://{tmp_path.name}")


def rebuild(log: FakeLog, target: TableTarget, *, whole: bool = False) -> ExportTurn:
    plan = ExportPlan(topic="orders", settings=SETTINGS)
    return asyncio.run(TopicExport(FakeReader(log), target, plan, clock_ms=lambda: LATER_MS).rebuild(whole=whole))


def failure(log: FakeLog, target: TableTarget) -> Error:
    (error,) = rebuild(log, target).failures.values()
    return error


def names(target: TableTarget) -> list[str]:
    return [part.name for part in table_of(target, "orders")[0].parts]


def path_of(target: TableTarget, number: int) -> str:
    return table_of(target, "orders")[0].paths[number]


def content(target: TableTarget, path: str) -> bytes:
    with target.open(path) as file:
        return file.read()


def damage(target: TableTarget, number: int, at: int = -3) -> str:
    """Changes one byte of a file; returns its path."""
    path = path_of(target, number)
    data = bytearray(content(target, path))
    data[at] ^= 0xFF
    target.remove(path)
    place_bytes(target, path, bytes(data), lambda _: None)
    return path


def wrong(target: TableTarget) -> list[str]:
    return [found.what for one in table_of(target, "orders") for found in findings(target, one, whole=True)]


def test_a_sound_table_is_left_alone(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    assert rebuild(log, target, whole=True) == ExportTurn()


def test_a_damaged_file_is_replaced_by_the_same_one(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    sound = content(target, path_of(target, 1))
    path = damage(target, 1)
    turn = rebuild(log, target)
    assert (turn.files, turn.rows, turn.left, turn.failures) == (1, 100, 0, {})
    assert content(target, path) == sound
    assert not wrong(target)


def test_damage_within_the_rows_is_found_with_whole(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    damage(target, 1, at=200)
    assert wrong(target)
    assert rebuild(log, target).files == 0, "the footer is sound"
    assert rebuild(log, target, whole=True).files == 1
    assert not wrong(target)


def test_a_hole_gets_the_files_that_were_there(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    before = names(target)
    assert len(before) == 5
    for path in [path_of(target, 1), path_of(target, 2), path_of(target, 3)]:
        target.remove(path)
    turn = rebuild(log, target)
    assert (turn.files, turn.left) == (3, 0)
    assert names(target) == before
    assert not wrong(target)


def test_the_end_of_a_hole_is_that_of_the_file_behind_it(log: FakeLog, target: TableTarget) -> None:
    """A file that --tail ended within a window."""
    export(log, target, tail=True)
    log.add(10, at_ms=LATER_MS - 600_000)
    export(log, target, tail=True)
    before = names(target)
    target.remove(path_of(target, -2))
    assert rebuild(log, target).files == 1
    assert names(target) == before


def test_files_that_are_registered_in_iceberg_get_their_names_again(log: FakeLog, target: TableTarget) -> None:
    """Two that --tail ended within a window: without their names, one file would have the rows of both."""
    export(log, target, tail=True)
    for _ in range(2):
        log.add(10, at_ms=LATER_MS - 600_000)
        export(log, target, tail=True)
    (files,) = table_of(target, "orders")
    for path in files.paths[-3:-1]:
        target.remove(path)
    run = TopicExport(FakeReader(log), target, ExportPlan(topic="orders", settings=SETTINGS), clock_ms=lambda: LATER_MS)
    turn = asyncio.run(run.rebuild(whole=False, registered={files.queue: files.files}))
    assert (turn.files, turn.left) == (2, 0)
    assert names(target) == [part.name for part in files.parts]


def test_what_retention_deleted_is_named_and_the_rest_is_written(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    first, second = damage(target, 0), damage(target, 2)
    log.low[0] = 150
    turn = rebuild(log, target)
    assert (turn.files, turn.left) == (1, 100)
    (error,) = turn.failures.values()
    assert isinstance(error, TableGap)
    assert "offsets 0 to 99" in error.message
    assert "deleted them up to 99" in error.message
    assert content(target, first), "the damaged file stays"
    assert len(wrong(target)) == 1
    assert second


@pytest.mark.parametrize(("lost", "at"), [(190, 200), (190, -3), (205, 200), (205, -3)])
def test_a_file_is_never_replaced_by_other_messages(log: FakeLog, target: TableTarget, lost: int, at: int) -> None:
    """The broker lost the end of its log, and has other messages at these offsets. The marks of the files beside it differ."""
    export(log, target)
    path = damage(target, 2, at=at)
    log.queues[0][lost:] = [(LATER_MS - 700_000, b"another") for _ in range(320 - lost)]
    damaged = content(target, path)
    turn = rebuild(log, target, whole=True)
    (error,) = turn.failures.values()
    assert isinstance(error, TableChanged)
    assert content(target, path) == damaged
    assert turn.files == 0


def test_a_queue_whose_broker_is_away_is_named(log: FakeLog, target: TableTarget) -> None:
    export(log, target)
    damage(target, 0)
    again = FakeLog(uid="u2-b1")
    again.add(10)
    error = failure(again, target)
    assert isinstance(error, NotFound)
    assert "the broker is away, or the topic was deleted" in error.message


def test_the_damaged_file_stays_until_the_new_one_is_whole(
    log: FakeLog, target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(log, target)
    path = damage(target, 1)
    damaged = content(target, path)

    def full(*_: Any, **__: Any) -> Any:
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr("evenq.tables.files.TableWriter.close", full)
        assert isinstance(failure(log, target), StoreFull)
    assert content(target, path) == damaged
    assert rebuild(log, target).files == 1
    assert not wrong(target)
