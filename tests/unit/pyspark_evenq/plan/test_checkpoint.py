"""What a checkpoint of Spark says of the last batch."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark_evenq.plan.checkpoint import LastBatch, QueryCheckpoint
from pyspark_evenq.plan.offsets import StreamOffset

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue
from tests.unit.pyspark_evenq.spark_logs import SparkLogs

LONG = 20_000


def offset(end: int) -> StreamOffset:
    return StreamOffset(ends={MessageQueue("flights", "broker-a", 0): end})


@pytest.fixture
def logs(tmp_path: Path) -> SparkLogs:
    return SparkLogs(tmp_path / "checkpoint")


def is_done(logs: SparkLogs, start: int, end: int) -> bool:
    return QueryCheckpoint(str(logs.folder)).is_done(offset(start), offset(end), timeout_ms=LONG)


def test_a_batch_is_done_when_the_commit_log_has_it(logs: SparkLogs) -> None:
    assert not is_done(logs, 0, 5)
    logs.plan(0, offset(5))
    assert not is_done(logs, 0, 5)
    logs.commit(0)
    assert is_done(logs, 0, 5)
    logs.plan(1, offset(7))
    assert is_done(logs, 0, 5)
    assert not is_done(logs, 5, 7)
    logs.commit(1)
    assert is_done(logs, 5, 7)
    assert not is_done(logs, 0, 5), "it is not the last one"


def test_batches_are_numbers_and_not_words(logs: SparkLogs) -> None:
    for batch in (9, 10):
        logs.plan(batch, offset(batch))
        logs.commit(batch)
    (logs.folder / "commits" / ".11.crc").write_text("")
    (logs.folder / "commits" / ".11.0815.tmp").write_text("")
    assert is_done(logs, 9, 10)


def test_the_end_of_another_source_of_the_query_is_not_taken_for_ones_own(logs: SparkLogs) -> None:
    logs.plan(3, offset(7), offset(5))  # this one is at 5 and planned to 7; the other one was there before
    logs.commit(3)
    assert not is_done(logs, 5, 7)
    logs.plan(4, offset(7), offset(7))
    logs.commit(4)
    assert is_done(logs, 5, 7)


@pytest.mark.parametrize("broken", ["offsets", "commits"])
def test_what_cannot_be_read_is_not_done(logs: SparkLogs, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    logs.plan(0, offset(5))
    logs.commit(0)
    assert is_done(logs, 0, 5)
    for file in (logs.folder / broken).iterdir():
        file.unlink()
    assert not is_done(logs, 0, 5)
    assert ("cannot read from the checkpoint" in caplog.text) is (broken == "offsets")


def test_a_place_that_does_not_answer_holds_nobody_up(logs: SparkLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.plan(0, offset(5))
    logs.commit(0)
    answer = threading.Event()
    names = QueryCheckpoint._names

    def late(self: QueryCheckpoint, folder: str) -> set[str]:
        assert answer.wait(60)
        return names(self, folder)

    monkeypatch.setattr(QueryCheckpoint, "_names", late)
    assert not QueryCheckpoint(str(logs.folder)).is_done(offset(0), offset(5), timeout_ms=1)
    answer.set()


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_place_is_a_path_or_a_uri(logs: SparkLogs, form: str) -> None:
    QueryCheckpoint(form.format(logs.folder)).must_exist()
    LastBatch(form.format(logs.folder))


def test_a_path_with_a_space_is_taken_as_it_is(tmp_path: Path) -> None:
    QueryCheckpoint(str(SparkLogs(tmp_path / "of delays").folder)).must_exist()


def test_a_place_without_a_checkpoint_or_that_python_cannot_open_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no checkpoint is; give the checkpointLocation"):
        QueryCheckpoint(str(tmp_path)).must_exist()
    with pytest.raises(SettingsError, match="cannot read: "):
        LastBatch("nonsense://host/checkpoint")


def test_a_batch_that_spark_has_spoken_of_is_not_asked_for(logs: SparkLogs) -> None:
    last = LastBatch(str(logs.folder))
    assert last.done() is None
    last.planned(offset(0), offset(5))
    assert last.done() is None
    logs.plan(0, offset(5))
    logs.commit(0)
    assert last.done() == offset(5)
    last.over()
    assert last.done() is None


def test_without_a_place_nothing_is_known() -> None:
    last = LastBatch("")
    last.planned(offset(0), offset(5))
    assert last.done() is None


def test_lines_that_are_no_offsets_of_ours_are_passed_over(logs: SparkLogs) -> None:
    others: list[Any] = ["-", 7, {"topic": 1}]
    (logs.folder / "offsets" / "0").write_text(
        "\n".join(["v1", *map(json.dumps, others), json.dumps(offset(5).to_json())])
    )
    logs.commit(0)
    assert is_done(logs, 0, 5)
