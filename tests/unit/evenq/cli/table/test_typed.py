"""`evenq table export --table-schema` over a log in memory: results, and sentences that name the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evenq.cli.table.test_commands import EXPORT, FakeSource, log  # noqa: F401  a fixture
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog
from tests.unit.evenq.tables.typed.conversion import descriptor_set


@pytest.fixture
def orders(log: FakeLog, tmp_path: Path) -> Path:  # noqa: F811  the fixture
    """A schema; the log has 250 messages that are not JSON, and three that are."""
    log.queues[0] += [(START_MS, b'{"total": %d, "customer": {"id": "c%d"}}' % (number, number)) for number in range(3)]
    path = tmp_path / "order.schema.json"
    customer = {"type": "object", "properties": {"id": {"type": "string"}}}
    path.write_text(json.dumps({"type": "object", "properties": {"total": {"type": "number"}, "customer": customer}}))
    return path


def test_an_export_counts_what_does_not_fit_and_show_prints_the_columns(run: Any, tmp_path: Path, orders: Path) -> None:
    to = tmp_path / "t"
    code, out, err, _ = run(f"{EXPORT} --to {to} --table-schema {orders} -o json")
    assert (code, err, json.loads(out)["rows"], json.loads(out)["misfits"]) == (0, "", 253, 250)
    columns = [
        {"column": "total", "type": "float64", "path": "total", "reads": ""},
        {"column": "customer", "type": "struct<id: string>", "path": "customer", "reads": ""},
    ]
    assert json.loads(run(f"table show orders --to {to} --columns -o json")[1]) == columns
    shown = run(f"table show orders --to {to}")[1]
    assert "Typed columns of JSON bodies" in shown
    assert "struct<id: string>" in shown
    assert [queue["rows"] for queue in json.loads(run(f"table show orders --to {to} -o json")[1])] == [253]
    assert run(f"table verify orders --to {to} --whole")[1] == "clean: 3 files, 253 rows, no gap\n"
    code, out, err, _ = run(f"table export orders --to {tmp_path}/u --table-schema {orders} --tail")
    assert (code, "misfits   250" in out) == (0, True)
    assert "253 rows, 250 without typed columns" in err


@pytest.mark.usefixtures("log")
def test_a_table_without_typed_columns_says_how_to_add_some(run: Any, tmp_path: Path) -> None:
    run(f"{EXPORT} --to {tmp_path}")
    assert (
        f"evenq table export orders --to {tmp_path} --table-schema FILE" in run(f"table show orders --to {tmp_path}")[1]
    )
    assert json.loads(run(f"table show orders --to {tmp_path} --columns -o json")[1]) == []


def test_a_repeat_needs_no_schema_and_another_one_is_refused(
    run: Any,
    tmp_path: Path,
    orders: Path,
    log: FakeLog,  # noqa: F811
) -> None:
    to = tmp_path / "t"
    run(f"{EXPORT} --to {to} --table-schema {orders}")
    log.add(200)
    code, out, _, _ = run(f"table export orders --to {to} -o json")
    assert (code, json.loads(out)["misfits"]) == (0, json.loads(out)["rows"])
    orders.write_text('{"properties": {"total": {"type": "string"}, "customer": {"type": "string"}}}')
    for command in ("export", "follow"):
        code, _, err, _ = run(f"table {command} orders --to {to} --table-schema {orders}")
        assert (code, "typed column total as float64 from total, not as string" in err, "x-column" in err) == (
            4,
            True,
            True,
        )
        assert len(err.splitlines()) == 1


def test_a_schema_that_cannot_be_used_leaves_no_folder(run: Any, tmp_path: Path, orders: Path) -> None:
    to = tmp_path / "new"
    orders.write_text('{"properties": {"total": {}}}')
    protos = tmp_path / "shop.pb"
    protos.write_bytes(descriptor_set(Order=[("a", "TYPE_STRING", {})]))
    for words, text in (
        (f"--table-schema {orders}", "total has no type"),
        (f"--table-schema {tmp_path}/none", "cannot be read: No such file"),
        ("--table-schema ''", "cannot be read: Is a directory"),
        (f"--table-schema {protos}", "add --table-message NAME, one of shop.Order"),
        ("--table-message shop.Order", "add that option"),
    ):
        code, _, err, _ = run(f"table export orders --to {to} {words}")
        assert (code != 0, text in err) == (True, True), err
        assert not to.exists()


def test_protobuf_bodies(run: Any, tmp_path: Path, log: FakeLog) -> None:  # noqa: F811
    protos = tmp_path / "shop.pb"
    protos.write_bytes(descriptor_set(Order=[("id", "TYPE_STRING", {})]))
    log.queues[0] = [(START_MS, b"\x0a\x02c%d" % (number % 10)) for number in range(120)]
    code, out, err, _ = run(f"{EXPORT} --to {tmp_path} --table-schema {protos} --table-message shop.Order -o json")
    assert (code, err, json.loads(out)["misfits"]) == (0, "", 0)
    assert "Typed columns of shop.Order" in run(f"table show orders --to {tmp_path}")[1]


@pytest.mark.usefixtures("orders")
def test_a_query_prints_typed_values(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    to = tmp_path / "t"
    run(f"{EXPORT} --to {to} --table-schema {tmp_path}/order.schema.json")
    FakeSource.log.queues[0] += [(START_MS, b'{"total": 40, "customer": {"id": "c1"}}')]
    sql = "'select customer.id c, sum(total) s from orders where bodyError is null group by c order by c'"
    assert json.loads(run(f"query {sql} --tables {to} -o json")[1]) == [
        {"c": "c0", "s": 0.0}, {"c": "c1", "s": 41.0}, {"c": "c2", "s": 2.0}
    ]  # fmt: skip
    code, out, _, _ = run(f"query 'select customer from orders where total = 40' --tables {to}")
    assert (code, "'id': 'c1'" in out) == (0, True)
