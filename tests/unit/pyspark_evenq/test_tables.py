"""Planning a DataFrame of files and tail: the ranges that the source gets. `tests/spark` reads with a real Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark_evenq import tables as module
from pyspark_evenq.options.source import ALIASES, NAMES

from evenq.errors import ConnectionFailed, SettingsError
from evenq.tables.folder import FolderTables
from tests.unit.evenq.tables.fake_log import FakeLog, FakeReader
from tests.unit.evenq.tables.test_exporting import export


class Session:
    """Records the calls of a SparkSession's reader, and is its own reader and frame."""

    columns: tuple[str, ...] = ("body",)

    def __init__(self) -> None:
        self.read = self
        self.given: dict[str, str] = {}
        self.files: list[str] = []
        self.united = 0

    def options(self, **values: str) -> Session:
        self.given |= values
        return self

    def option(self, name: str, value: str) -> Session:
        self.given[name] = value
        return self

    def parquet(self, *paths: str) -> Session:
        self.files += paths
        return self

    def unionByName(self, _other: Session) -> Session:  # noqa: N802  Spark's name
        self.united += 1
        return self

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: self


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    made = FakeLog()

    class Source(FakeReader):
        def __init__(self, **_: Any) -> None:
            super().__init__(made)

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("evenq.client.topic_source.TopicSource", Source)
    return made


def test_the_source_gets_what_is_behind_the_files(log: FakeLog, tmp_path: Path) -> None:
    log.add(150)
    export(log, FolderTables(tmp_path))
    log.add(30)
    session = Session()
    module.read_table(session, "orders", to=str(tmp_path), endpoint="h:1", readFrom="any")
    assert json.loads(session.given["startingOffsets"]) == {"orders": {"broker-a": {"0": 150}}}
    assert json.loads(session.given["endingOffsets"]) == {"orders": {"broker-a": {"0": 180}}}
    assert json.loads(session.given["assign"]) == {"orders": {"broker-a": [0]}}
    assert (session.given["endpoints"], session.given["readFrom"]) == ("h:1", "any")
    assert "subscribe" not in session.given, "a queue that is not in the plan would be read from its first message"
    assert [Path(path).name for path in session.files] == [
        "00000000000000000000-00000000000000000100.parquet",
        "00000000000000000100-00000000000000000150.parquet",
    ]


def test_files_of_this_machine_keep_their_scheme_for_spark(log: FakeLog, tmp_path: Path) -> None:
    log.add(100)
    export(log, FolderTables(tmp_path))
    session = Session()
    module.read_table(session, "orders", to=f"file://{tmp_path}", endpoint="h:1")
    [path] = session.files
    assert path.startswith(f"file://{tmp_path}/orders/")


def test_a_broker_with_files_that_is_away_is_an_error_unless_that_is_accepted(log: FakeLog, tmp_path: Path) -> None:
    log.add(150)
    export(log, FolderTables(tmp_path))
    log.broker = "broker-b"
    with pytest.raises(ConnectionFailed, match="files of broker-a, which does not serve the topic now"):
        module.read_table(Session(), "orders", to=str(tmp_path), endpoint="h:1")
    session = Session()
    module.read_table(session, "orders", to=str(tmp_path), endpoint="h:1", failOnUnavailable="false")
    assert len(session.files) == 2


def test_a_broker_that_returns_after_the_plan_is_not_read_beside_its_files(log: FakeLog, tmp_path: Path) -> None:
    log.add(150)
    export(log, FolderTables(tmp_path))
    log.broker = "broker-b"
    session = Session()
    module.read_table(session, "orders", to=str(tmp_path), endpoint="h:1", failOnUnavailable="false")
    assert json.loads(session.given["assign"]) == {"orders": {"broker-b": [0]}}
    assert len(session.files) == 2


def test_without_a_live_queue_the_files_are_the_whole_frame(log: FakeLog, tmp_path: Path) -> None:
    log.add(150)
    export(log, FolderTables(tmp_path))
    log.queues = {}
    session = Session()
    module.read_table(session, "orders", to=str(tmp_path), endpoint="h:1", failOnUnavailable="false")
    assert (len(session.files), session.united) == (2, 0)


ACCEPTED = {
    "readFrom", "format", "blockBytes", "readTimeoutMs", "gcFreeze", "failOnDataLoss", "failOnUnavailable",
    "filterPushdown", "minPartitions", "maxPartitions", "minRecordsPerPartition", "maxRecordsPerPartition",
    "accessKey", "secretKey", "credentialsFile",
    "tls", "tlsCa", "tlsCertificate", "tlsKey", "tlsServerName", "tlsInsecure",
}  # fmt: skip
"""Options that change how the tail is read, never which rows and columns it has."""


@pytest.mark.parametrize("name", sorted(({*NAMES, *ALIASES} - {"topic"}) - ACCEPTED))
def test_options_that_would_change_the_rows_of_the_tail_alone_are_refused(
    log: FakeLog, tmp_path: Path, name: str
) -> None:
    for written in (name, name.lower(), name.upper()):
        with pytest.raises(SettingsError, match=f"read_table does not accept option {re.escape(written)}: "):
            module.read_table(Session(), "orders", to=str(tmp_path), endpoint="h:1", **{written: "1"})


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_options_for_how_the_tail_is_read_reach_the_source(log: FakeLog, tmp_path: Path, name: str) -> None:
    assert name in NAMES
    session = Session()
    module.read_table(session, "orders", to=str(tmp_path), endpoint="h:1", **{name.lower(): "true"})
    assert session.given[name] == "true"


def test_a_misspelt_option_is_refused(log: FakeLog, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown option 'readFrm' of read_table; did you mean readFrom"):
        module.read_table(Session(), "orders", to=str(tmp_path), endpoint="h:1", readFrm="any")
