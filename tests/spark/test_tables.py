"""A table and its tail as one DataFrame: each offset once, with the columns of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenq_proofs.command_line import evenq_json
from evenq_proofs.waiting import until
from pyspark_evenq import read_table

FAST = ("--rows-per-file", "100", "--close-after", "1s", "--settle", "200ms")


def export(topic: Any, folder: Path) -> None:
    until(
        lambda: (
            not evenq_json("table", "export", topic.name, "--to", folder, *FAST, endpoint=topic.broker.address)["left"]
        ),
        "all messages in the table",
        seconds=120,
    )


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
