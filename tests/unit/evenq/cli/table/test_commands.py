"""`evenq table` and `evenq query` over a log in memory: results, exit codes, and sentences that name the next step."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from evenq.cli.table import commands, following, querying, reports
from evenq.cli.table.commands import topic_error
from evenq.cli.table.following import FailureLog
from evenq.errors import ConnectionFailed, Error, Forbidden, StoreCorrupted, StoreFull, TopicNotFound
from evenq.runtime.clock import SystemClock
from evenq.tables.folder import FolderTables
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog, FakeReader

EXPORT = "table export orders --rows-per-file 100 --close-after 1m"


class FakeSource(FakeReader):
    """In place of `TopicSource`."""

    log: FakeLog
    failures: list[Error] = []
    """Raised by the next calls."""

    def __init__(self, **_: Any) -> None:
        self.clock = SystemClock()

    async def queues(self, topic: str) -> Any:
        if FakeSource.failures:
            raise FakeSource.failures.pop(0)
        return await super().queues(topic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    log = FakeLog()
    log.add(250)
    monkeypatch.setattr(FakeSource, "log", log, raising=False)
    monkeypatch.setattr(FakeSource, "failures", [])
    monkeypatch.setattr(following, "setup_logs", lambda *_, **__: None)  # of the whole process
    for module in (commands, following, reports, querying):
        monkeypatch.setattr(module, "TopicSource", FakeSource)
    return log


@pytest.mark.usefixtures("log")
def test_an_export_prints_what_it_wrote(run: Any, tmp_path: Path) -> None:
    code, out, err, _ = run(f"{EXPORT} --to {tmp_path} -o json")
    assert (code, err) == (0, "")
    counts = {"files": 3, "rows": 250, "left": 0, "gaps": 0, "misfits": 0}
    assert json.loads(out) == {"topic": "orders", **counts, "reported": True, "failures": []}
    code, out, err, _ = run(f"table export orders --to {tmp_path}")
    assert (code, err) == (0, "")
    assert "files     0" in out


def test_messages_of_an_open_window_are_counted_and_the_way_to_write_them_is_named(
    run: Any, tmp_path: Path, log: FakeLog
) -> None:
    log.add(10, at_ms=SystemClock().now_ms() - 6_000)
    code, out, err, _ = run(f"table export orders --close-after 7d --to {tmp_path}")
    assert (code, "left      10" in out, "--tail" in err) == (0, True, True)
    code, out, err, _ = run(f"table export orders --tail --to {tmp_path}")
    assert (code, "left      0" in out) == (0, True)
    log.add(3, at_ms=SystemClock().now_ms())
    code, out, err, _ = run(f"table export orders --tail --settle 1h --to {tmp_path}")
    assert (code, "left      3" in out, "younger than --settle" in err) == (0, True, True)


def test_an_export_that_may_not_report_its_ends_names_the_grant(run: Any, tmp_path: Path, log: FakeLog) -> None:
    log.refuses = Forbidden("no CONSUME")
    code, out, err, _ = run(f"{EXPORT} --to {tmp_path} -o json")
    assert (code, json.loads(out)["rows"], json.loads(out)["reported"]) == (0, 250, False)
    assert "retention does not wait for this table: no CONSUME; grant CONSUME on group evenq-table-orders" in err
    code, out, err, _ = run(f"{EXPORT} --to {tmp_path} --no-report -o json")
    assert (code, json.loads(out)["reported"], err) == (0, False, "")


def test_a_queue_that_stops_is_named_and_the_exit_code_says_so(run: Any, tmp_path: Path, log: FakeLog) -> None:
    log.fails = {150: StoreCorrupted("record 150 is damaged")}
    code, out, err, _ = run(f"{EXPORT} --to {tmp_path} -o json")
    assert code == 1
    assert [failure["error"] for failure in json.loads(out)["failures"]] == ["record 150 is damaged"]
    assert "record 150 is damaged" in err


def test_a_broker_that_is_away_for_a_moment_is_waited_for(run: Any, tmp_path: Path, log: FakeLog) -> None:
    log.fails = {150: ConnectionFailed("it restarts")}
    original = FakeReader.scan

    def scan(self: Any, *arguments: Any, **named: Any) -> Any:
        made = original(self, *arguments, **named)
        if arguments[1] == 100 and len(log.scans) > 2:
            log.fails = {}
        return made

    FakeSource.scan = scan  # type: ignore[method-assign]
    try:
        code, out, _, _ = run(f"{EXPORT} --to {tmp_path} -o json")
    finally:
        del FakeSource.scan
    assert (code, json.loads(out)["rows"]) == (0, 250)


@pytest.mark.usefixtures("log")
def test_a_wrong_topic_and_missing_rights_name_the_next_command(run: Any, tmp_path: Path) -> None:
    for command in ("table export", "table follow"):
        FakeSource.failures = [TopicNotFound("no topic calls")]
        code, _, err, _ = run(f"{command} calls --to {tmp_path}/new")
        assert (code, "evenq topic list" in err) == (3, True)
        FakeSource.failures = [Forbidden("user shop may not consume orders")]
        code, _, err, _ = run(f"{command} orders --to {tmp_path}/new")
        assert (code, "evenq auth check USER Data/Scan topic:orders" in err) == (4, True)
    assert not (tmp_path / "new").exists()
    other = StoreFull("full")
    assert topic_error(other, "orders") is other


def test_follow_writes_retries_and_ends_on_sigterm(
    run: Any, tmp_path: Path, log: FakeLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "evenq.cli.table.following")
    original, turns = commands.TopicExport.turn, []

    async def turn(self: Any) -> Any:
        turns.append(1)
        if len(turns) == 2:
            raise ConnectionFailed("away")
        if len(turns) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return await original(self)

    monkeypatch.setattr(commands.TopicExport, "turn", turn)
    code, _, err, _ = run(f"table follow orders --rows-per-file 100 --close-after 1m --every 1ms --to {tmp_path}")
    assert (code, err) == (0, "")
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0].startswith("following orders")
    assert sum(text.startswith("wrote ") for text in texts) == 3
    assert [text for text in texts if "export" in text] == [
        "orders is not exported, retrying: away", "orders is exported again"
    ]  # fmt: skip
    assert texts[-1] == "ended"


class FakeAdmin:
    """In place of `Admin`: one declared table, and a list that fails at the second look."""

    looks = 0

    def __init__(self, **_: Any) -> None:
        FakeAdmin.looks = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    async def list_groups(self) -> list[Any]:
        FakeAdmin.looks += 1
        if FakeAdmin.looks == 3:
            raise ConnectionFailed("away")
        if FakeAdmin.looks == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return [SimpleNamespace(group=name) for name in ("evenq-table-orders", "billing")]


@pytest.mark.usefixtures("log")
def test_follow_without_a_topic_uses_its_last_list_while_none_can_be_read(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "evenq.cli.table.following")
    monkeypatch.setattr(following, "Admin", FakeAdmin)
    monkeypatch.setattr(following, "LIST_EVERY_MS", 0)
    words = "--namespace= --rows-per-file 100 --close-after 1m --every 1ms"
    code, _, err, _ = run(f"table follow --to {tmp_path} {words}")
    assert (code, err) == (0, "")
    texts = [record.getMessage() for record in caplog.records]
    assert texts[:2] == [f"following all tables into {tmp_path}", "topics with a table: orders"]
    assert [text for text in texts if "list of groups" in text] == [
        "the list of groups cannot be read, retrying: away", "the list of groups can be read again"
    ]  # fmt: skip
    assert sum(text.startswith("topics with") for text in texts) == 1
    assert {path.name for path in tmp_path.iterdir()} >= {"orders"}


def test_a_topic_that_is_a_table_no_more_is_not_said_to_work_again(
    run: Any, tmp_path: Path, log: FakeLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deleted(FakeAdmin):
        async def list_groups(self) -> list[Any]:
            groups = await super().list_groups()
            return groups if FakeAdmin.looks < 3 else []

    caplog.set_level(logging.INFO, "evenq.cli.table.following")
    monkeypatch.setattr(following, "Admin", Deleted)
    monkeypatch.setattr(following, "LIST_EVERY_MS", 0)
    log.queues[1], log.low[1] = [], 0
    log.add(120, queue=1)
    log.fails, log.refuses = {150: StoreCorrupted("record 150 is damaged")}, Forbidden("no CONSUME")
    code, _, err, _ = run(f"table follow --to {tmp_path} --namespace= --rows-per-file 100 --close-after 1m --every 1ms")
    assert (code, err) == (0, "")
    texts = [record.getMessage() for record in caplog.records]
    assert sum("is not exported, retrying" in text for text in texts) == 1
    assert sum("retention of orders does not wait" in text for text in texts) == 1
    assert not [text for text in texts if "is exported again" in text or "orders waits" in text]


@pytest.mark.usefixtures("log")
def test_a_schema_needs_its_topic(run: Any, tmp_path: Path) -> None:
    code, _, err, _ = run(f"table follow --to {tmp_path} --table-schema orders.json")
    assert (code, "name the topic" in err) == (2, True)


def test_each_kind_of_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq.cli.table.following")
    failure_log = FailureLog()
    for failures in (
        {"q": StoreFull("full")},
        {"q": StoreFull("full, still")},
        {"q": ConnectionFailed("away")},
        {},
        {},
    ):
        failure_log.now(failures)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "q is not exported, retrying", "q is not exported, retrying", "q is exported again"
    ]  # fmt: skip


def test_show_lists_queues_with_lag(run: Any, tmp_path: Path, log: FakeLog) -> None:
    run(f"{EXPORT} --to {tmp_path}")
    log.add(9)
    code, out, err, _ = run(f"table show orders --to {tmp_path} -o json")
    assert (code, err) == (0, "")
    [queue] = json.loads(out)
    assert (queue["broker"], queue["queue"], queue["start"], queue["end"], queue["files"], queue["lag"]) == (
        "broker-a", 0, 0, 250, 3, 9
    )  # fmt: skip
    [queue] = json.loads(run(f"table show orders --offline --to {tmp_path} -o json")[1])
    assert queue["lag"] is None
    assert "uid" in run(f"table show orders --wide --to {tmp_path}")[1]


def test_show_says_what_is_not_live(run: Any, tmp_path: Path, log: FakeLog) -> None:
    run(f"{EXPORT} --to {tmp_path}")
    FakeSource.failures = [ConnectionFailed("nobody")]
    assert "--offline" in run(f"table show orders --to {tmp_path}")[2]
    FakeSource.failures = [TopicNotFound("gone")]
    assert "does not exist any more; its files stay" in run(f"table show orders --to {tmp_path}")[2]
    log.uid = "u2-b1"
    err = run(f"table show orders --to {tmp_path}")[2]
    assert "Not in the table yet" in err
    assert "created again" in err


@pytest.mark.usefixtures("log")
def test_list_and_verify(run: Any, tmp_path: Path) -> None:
    assert "evenq table export" in run(f"table list --to {tmp_path}/none")[1]
    assert run(f"table verify --to {tmp_path}/none")[0] == 3
    run(f"{EXPORT} --to {tmp_path}")
    [table] = json.loads(run(f"table list --to {tmp_path} -o json")[1])
    assert (table["topic"], table["queues"], table["files"], table["rows"], table["gaps"]) == ("orders", 1, 3, 250, 0)
    code, out, _, _ = run(f"table verify --whole --to {tmp_path}")
    assert (code, out) == (0, "clean: 3 files, 250 rows, no gap\n")
    next(tmp_path.rglob("*100-*.parquet")).unlink()
    code, out, _, _ = run(f"table verify --to {tmp_path}")
    assert code == 1
    assert "no file has offsets 100 to 199" in out
    code, out, _, _ = run(f"table verify orders --to {tmp_path} -o json")
    assert (code, json.loads(out)["clean"], len(json.loads(out)["findings"])) == (1, False, 1)


@pytest.mark.usefixtures("log")
def test_verify_of_all_tables_passes_those_without_a_file(run: Any, tmp_path: Path) -> None:
    run(f"{EXPORT} --to {tmp_path}")
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha/_table.json").write_bytes((tmp_path / "orders/_table.json").read_bytes())
    (tmp_path / "lost+found").mkdir()
    code, out, err, _ = run(f"table verify --to {tmp_path}")
    assert (code, out, err) == (0, "clean: 3 files, 250 rows, no gap\n", "")
    next(tmp_path.rglob("*100-*.parquet")).unlink()
    assert run(f"table verify --to {tmp_path}")[0] == 1
    code, _, err, _ = run(f"table verify alpha --to {tmp_path}")
    assert (code, "has no files of topic alpha; it has the tables orders" in err) == (3, True)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    assert run(f"table verify --to {tmp_path}")[0] == 3


@pytest.mark.usefixtures("log")
def test_a_target_that_cannot_be_read_is_not_an_empty_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"{EXPORT} --to {tmp_path}")

    def files(*_: object) -> dict[str, int]:
        raise StoreFull("the disk is away")

    monkeypatch.setattr(FolderTables, "files", files)
    for command in ("list", "verify"):
        code, _, err, _ = run(f"table {command} --to {tmp_path}")
        assert (code, "the disk is away" in err) == (1, True)


@pytest.mark.usefixtures("log")
def test_expire_deletes_with_yes_only(run: Any, tmp_path: Path) -> None:
    run(f"{EXPORT} --to {tmp_path}")
    code, out, err, _ = run(f"table expire orders --before {START_MS + 1} --to {tmp_path} -o json")
    assert (code, json.loads(out)) == (1, {"topic": "orders", "files": 2, "rows": 200, "deleted": False})
    assert "add --yes" in err
    assert len([*tmp_path.rglob("*.parquet")]) == 3
    assert run(f"table expire orders --before {START_MS + 1} --to {tmp_path} --yes")[0] == 0
    assert len([*tmp_path.rglob("*.parquet")]) == 1
    assert run(f"table expire orders --before yesterday --to {tmp_path}")[0] == 2


def test_a_query_prints_a_table_csv_or_json(run: Any, tmp_path: Path, log: FakeLog) -> None:
    pytest.importorskip("duckdb")
    run(f"{EXPORT} --to {tmp_path}")
    log.add(3)
    count = "'select count(*) as n from orders'"
    assert json.loads(run(f"query {count} --tables {tmp_path} -o json")[1]) == [{"n": 253}]
    assert json.loads(run(f"query {count} --tables {tmp_path} -o json --no-tail")[1]) == [{"n": 250}]
    assert "253" in run(f"query {count} --tables {tmp_path}")[1]
    sql = "'select queueOffset as o, body, keys, properties as p, storeTimestamp as s, messageGroup as g from orders where queueOffset = 7'"
    code, out, err, _ = run(f"query {sql} --tables {tmp_path} --csv")
    assert (code, err) == (0, "")
    assert out == "o,body,keys,p,s,g\n7,body 7,['k7'],{'n': '7'},2023-11-14T22:13:20+00:00,\n"
    [row] = json.loads(run(f"query {sql} --tables {tmp_path} -o json")[1])
    assert row == {
        "o": 7, "body": "body 7", "keys": ["k7"], "p": {"n": "7"}, "s": "2023-11-14T22:13:20+00:00", "g": None
    }  # fmt: skip
    code, _, err, _ = run(f"query 'select 1' --tables {tmp_path}")
    assert (code, "names no topic" in err) == (3, True)
    code, _, err, _ = run(f"query 'drop view orders' --tables {tmp_path}")
    assert (code, "write one SELECT" in err) == (2, True)


def test_a_time_that_python_does_not_have_is_a_number(run: Any, tmp_path: Path, log: FakeLog) -> None:
    """A sender may give any time of birth."""
    pytest.importorskip("duckdb")
    run(f"{EXPORT} --to {tmp_path}")
    late_ms = 253_402_300_800_000  # the year 10000
    log.add(1, at_ms=late_ms + 5)
    sql = "'select bornTimestamp as b from orders order by queueOffset desc limit 2'"
    code, out, err, _ = run(f"query {sql} --tables {tmp_path} -o json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [{"b": late_ms * 1_000}, {"b": "2023-11-14T22:13:19.995000+00:00"}]
    code, _, err, _ = run(f"query 'select [bornTimestamp] as b from orders order by all desc' --tables {tmp_path}")
    assert (code, "column b" in err, "VARCHAR" in err, len(err.splitlines())) == (2, True, True, 1)


def test_a_query_says_which_brokers_are_missing(run: Any, tmp_path: Path, log: FakeLog) -> None:
    pytest.importorskip("duckdb")
    run(f"{EXPORT} --to {tmp_path}")
    log.broker = "broker-b"
    code, _, err, _ = run(f"query 'select 1 from orders limit 1' --tables {tmp_path}")
    assert code == 1
    assert "No answer from broker-a" in err
