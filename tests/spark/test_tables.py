"""A table and its tail as one DataFrame: each offset once, with the columns of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evenq_proofs.command_line import evenq_json
from evenq_proofs.waiting import until
from pyspark_evenq import read_table

import evenq

FAST = ("--rows-per-file", "100", "--close-after", "1s", "--settle", "200ms")


def export(topic: Any, folder: Path, *more: object) -> None:
    words = ("table", "export", topic.name, "--to", folder, *FAST, *more)
    until(
        lambda: not evenq_json(*words, endpoint=topic.broker.address)["left"], "all messages in the table", seconds=120
    )


def send(topic: Any, bodies: list[bytes]) -> None:
    with evenq.Producer(endpoint=topic.broker.address) as producer:
        for body in bodies:
            producer.send(evenq.Message(topic=topic.name, body=body))


def test_files_and_tail_are_one_frame_with_each_offset_once(spark: Any, topic: Any, tmp_path: Path) -> None:
    topic.send_each(250)
    export(topic, tmp_path)
    topic.send_each(30, text="tail")
    frame = read_table(spark, topic.name, to=str(tmp_path), endpoint=topic.broker.address)
    export(topic, tmp_path)  # files that appear later are not in the plan
    source = spark.read.format("evenq").option("endpoints", topic.endpoints).option("subscribe", topic.name).load()
    assert frame.schema.names == source.schema.names
    rows = frame.collect()
    places = sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows)
    assert places == topic.every([280] * 4)
    key = ["brokerName", "queueId", "queueOffset"]
    assert frame.orderBy(*key).collect() == source.orderBy(*key).collect(), "the same rows as from the brokers alone"
    assert any("FileScan parquet" in line for line in frame._jdf.queryExecution().toString().splitlines())
    whole = read_table(spark, topic.name, to=str(tmp_path), endpoint=topic.broker.address)
    assert whole.count() == 1_120, "all in files"
    assert read_table(spark, topic.name, to=str(tmp_path / "new"), endpoint=topic.broker.address).count() == 1_120


def test_typed_columns_are_in_files_and_in_the_tail(spark: Any, topic: Any, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    lines = {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}}
    properties = {
        "n": {"type": "integer"}, "total": {"type": "number", "format": "decimal(10,2)"}, "lines": lines,
        "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    }  # fmt: skip
    schema.write_text(json.dumps({"type": "object", "properties": properties}))

    def order(n: int) -> bytes:
        at, day = f"2026-01-31T12:00:{n % 60:02d}Z", "2026-02-28"
        return json.dumps(
            {"n": n, "total": n / 4, "lines": [{"sku": f"s{n}"}], "at": at, "day": day, "tags": {"a": "b"}}
        ).encode()

    send(topic, [order(n) for n in range(150)] + [b"no JSON"])
    export(topic, tmp_path / "t", "--table-schema", schema)
    send(topic, [order(n) for n in range(150, 170)] + [b"{}", b'{"n": "x"}'])
    frame = read_table(spark, topic.name, to=str(tmp_path / "t"), endpoint=topic.broker.address)
    rows = frame.collect()
    assert len(rows) == 173
    typed = {row.n: row for row in rows if row.n is not None}
    assert set(typed) == set(range(170))
    for n in (149, 150):  # of a file, and of the tail
        row = typed[n].asDict(recursive=True)
        assert (float(row["total"]), row["lines"], row["tags"], str(row["day"])) == (
            n / 4,
            [{"sku": f"s{n}"}],
            {"a": "b"},
            "2026-02-28",
        )
    times = {int(row.s) for row in frame.where("n in (149, 150)").selectExpr("unix_seconds(at) % 60 as s").collect()}
    assert times == {149 % 60, 150 % 60}
    assert sorted(row.bodyError for row in rows if row.bodyError) == ["syntax", "type:n"]
    assert frame.where("n < 10").count() == 10
    assert frame.select("queueOffset", "body").count() == 173, "plain columns alone"
