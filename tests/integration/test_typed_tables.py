"""Typed columns of a real broker's topic: two exporters and a kill write them once, and engines read and skip by them."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from evenq_proofs.command_line import evenq_json, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster
from tests.integration.test_tables import FAST, export, spans, start

pytestmark = [pytest.mark.timeout(300), pytest.mark.cluster(rebalancer=False)]

SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "total": {"type": "number", "format": "decimal(10,2)"},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}}},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
}


def body(number: int) -> bytes:
    values = {"number": number, "total": number / 4, "customer": {"id": f"c{number % 7}"}, "at": "2026-01-31T12:00:00Z"}
    return json.dumps(values | {"lines": [{"sku": "s"}] * (number % 3)}).encode()


BAD = [b"", b"\xff\x00", b"[1]", b'{"total": "x"}', b'{"number": 1e400}', b'{"z":' + b"[" * 50_000, b'{"total": NaN}']


def send(endpoint: str, topic: str, numbers: range, *, bad: bool = True, queues: int = 2) -> int:
    """Sends orders, and between them bodies that do not fit; returns the number of messages."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(topic, queues=queues)
    bodies = [body(number) for number in numbers] + (BAD if bad else [])
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send_batch([evenq.Message(topic=topic, body=one or b" ") for one in bodies])
    return len(bodies)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "order.schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def test_bodies_become_columns_and_what_does_not_fit_stays(cluster: LocalCluster, tmp_path: Path, schema: Path) -> None:
    count = send(cluster.endpoint, "typed", range(230))
    words = ("--table-schema", schema, *map(str, FAST))
    done = evenq_json(
        "table", "export", "typed", "--to", tmp_path, *words, "--tail", "--settle", "1ms", endpoint=cluster.endpoint
    )
    assert (done["rows"], done["misfits"]) == (count, len(BAD))
    rows: list[dict[str, Any]] = ds.dataset(tmp_path / "typed", format="parquet").to_table().to_pylist()
    typed = [row for row in rows if row["bodyError"] is None]
    assert sorted(row["number"] for row in typed) == list(range(230))
    for row in typed:
        parsed = json.loads(row["body"])
        assert (float(row["total"]), row["customer"], row["lines"]) == (
            parsed["total"],
            parsed["customer"],
            parsed["lines"],
        )
        assert row["at"].isoformat() == "2026-01-31T12:00:00+00:00"
    wrong = {row["body"]: row["bodyError"] for row in rows if row["bodyError"]}
    assert wrong == dict(
        zip([b" ", *BAD[1:]], ["syntax", "utf8", "type", "type:total", "range:number", "depth", "syntax"], strict=True)
    )
    assert evenq_json("table", "verify", "typed", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)["clean"]
    shown = evenq_json("table", "show", "typed", "--to", tmp_path, "--columns", endpoint=cluster.endpoint)
    assert {one["column"]: one["type"] for one in shown} == {
        "number": "int64", "total": "decimal(10,2)", "customer": "struct<id: string>", "at": "timestamp",
        "lines": "list<struct<sku: string>>",
    }  # fmt: skip


def test_two_exporters_and_a_kill_write_each_row_once_with_its_values(
    cluster: LocalCluster, tmp_path: Path, schema: Path
) -> None:
    pytest.importorskip("duckdb")
    count = send(cluster.endpoint, "killed", range(300))
    words = ("table", "follow", "killed", "--to", tmp_path, "--table-schema", schema, *FAST, "--every", "100ms")
    sender = threading.Thread(target=send, args=(cluster.endpoint, "killed", range(300, 400)), kwargs={"bad": False})
    sender.start()
    for _ in range(2):
        both = [start(*words, endpoint=cluster.endpoint) for _ in range(2)]
        until(lambda: list(tmp_path.glob("killed/**/*.parquet")), "a file", seconds=120)
        time.sleep(0.3)
        both[0].kill()
        both[1].send_signal(signal.SIGTERM)
        for one in both:
            one.communicate(timeout=60)
    sender.join()
    export(cluster.endpoint, "killed", tmp_path)
    sql = "select count(*) n, count(distinct number) d, sum(number) s, count(bodyError) e from killed"
    [found] = evenq_json("query", sql, "--tables", tmp_path, endpoint=cluster.endpoint)
    assert (found["n"], found["d"], found["e"]) == (count + 100, 400, len(BAD))
    assert float(found["s"]) == sum(range(400))
    assert evenq_json("table", "verify", "killed", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)["clean"]
    assert spans(tmp_path, "killed")
    assert [path.name for path in (tmp_path / "killed" / "_schema").glob("*.json")] == ["000001.json"]


def test_columns_are_added_and_another_type_is_refused(cluster: LocalCluster, tmp_path: Path, schema: Path) -> None:
    pytest.importorskip("duckdb")
    send(cluster.endpoint, "grown", range(100), bad=False, queues=1)
    export(cluster.endpoint, "grown", tmp_path, *FAST)
    send(cluster.endpoint, "grown", range(100, 200), bad=False, queues=1)
    export(cluster.endpoint, "grown", tmp_path, "--table-schema", str(schema))
    more = json.loads(json.dumps(SCHEMA))
    more["properties"]["customer"]["properties"]["name"] = {"type": "string"}
    more["properties"]["again"] = {"type": "integer"}
    schema.write_text(json.dumps(more))
    send(cluster.endpoint, "grown", range(200, 300), bad=False, queues=1)
    export(cluster.endpoint, "grown", tmp_path, "--table-schema", str(schema))
    send(cluster.endpoint, "grown", range(300, 303), bad=False, queues=1)  # in the log only
    sql = "select count(*) n, count(number) k, count(customer.id) c, count(customer.name) m, count(again) a from grown"
    [found] = evenq_json("query", sql, "--tables", tmp_path, endpoint=cluster.endpoint)
    assert found == {"n": 303, "k": 203, "c": 203, "m": 0, "a": 0}
    more["properties"]["number"] = {"type": "string"}
    schema.write_text(json.dumps(more))
    words = ("table", "export", "grown", "--to", tmp_path, "--table-schema", schema)
    text = run_evenq(*words, endpoint=cluster.endpoint, code=4)
    assert "has the typed column number as int64 from number, not as string from number" in text
    assert "export to another folder" in text
    assert evenq_json("table", "verify", "grown", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)["clean"]


def test_engines_read_the_columns_and_skip_files_by_their_statistics(
    cluster: LocalCluster, tmp_path: Path, schema: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    send(cluster.endpoint, "read", range(400), bad=False, queues=1)
    export(cluster.endpoint, "read", tmp_path, "--table-schema", str(schema), *FAST)
    files = f"'{tmp_path}/read/**/*.parquet'"
    sql = f"select customer.id c, sum(total) s from read_parquet({files}) where number < 7 group by all order by c"
    assert [(c, float(s)) for c, s in duckdb.sql(sql).fetchall()] == [(f"c{n}", n / 4) for n in range(7)]
    # A reader that opened the pages of the other files would fail: they are damaged, and only the footers are whole.
    for path in sorted(tmp_path.glob("read/**/*.parquet"))[1:]:
        data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
        first = footer.row_group(0).column(0).dictionary_page_offset or 4
        last = footer.row_group(footer.num_row_groups - 1).column(footer.num_columns - 1)
        end = last.data_page_offset if last.dictionary_page_offset is None else last.dictionary_page_offset
        data[first:end] = bytes(end - first)
        path.write_bytes(data)
    assert duckdb.sql(f"select count(*) from read_parquet({files}) where number < 7").fetchall() == [(7,)]
    dataset = ds.dataset(tmp_path / "read", format="parquet")
    assert dataset.to_table(columns=["number", "total"], filter=ds.field("number") < 7).num_rows == 7
    with pytest.raises(duckdb.Error):
        duckdb.sql(f"select sum(number) from read_parquet({files})").fetchall()


def test_polars_reads_the_columns(cluster: LocalCluster, tmp_path: Path, schema: Path) -> None:
    import polars as pl

    send(cluster.endpoint, "polars", range(120), queues=1)
    export(cluster.endpoint, "polars", tmp_path, "--table-schema", str(schema), *FAST)
    frame = pl.scan_parquet(f"{tmp_path}/polars/**/*.parquet").filter(pl.col("bodyError").is_null())
    made = frame.select(pl.col("number").sum(), pl.col("customer").struct.field("id").n_unique()).collect()
    assert made.row(0) == (sum(range(120)), 7)
