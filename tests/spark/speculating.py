"""A driver whose tasks Spark runs twice: jobs with one slow task each, on a cluster of two hosts, write to topics.

Run by `test_17_speculation.py`, as users start a program. Every attempt of the first task gives the sink all its rows and
then waits, until the test lets it go on: so two attempts of one task are under way at the same time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

TASKS, ROWS = 4, 400
"""Rows of a job, over all tasks."""
WIDE = 2_000
"""Bytes of a body: what is between two processes of Spark holds some 64 KiB back."""
HELD_S = 240.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "3",
    "spark.locality.wait": "0",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.python.authenticate.socketTimeout": "120s",  # until a Python process that was started calls back
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(settings["master"]).appName("speculating")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    for job in settings["jobs"]:
        folder = Path(job["folder"])
        options = {"endpoints": settings["endpoints"], "topic": job["topic"], "blockRows": "10", **job["options"]}
        if job["stream"]:
            (folder / "in").mkdir()
            (folder / "in" / "rows").write_text("\n".join(f"row {number}" for number in range(ROWS)))
            frame = spark.readStream.schema("value string").text(str(folder / "in")).repartition(TASKS)
            writer = held(frame.selectExpr("value as body"), folder).writeStream.format("evenq").options(**options)
            writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
            writer.start().awaitTermination()
        else:
            frame = spark.range(0, ROWS, 1, TASKS).selectExpr("concat('row ', id) as body")
            held(frame, folder).write.format("evenq").mode("append").options(**options).save()
        print("\n" + json.dumps({"written": job["topic"]}), flush=True)
    spark.stop()
    print("\n" + json.dumps({"done": True}), flush=True)


def held(frame: Any, folder: Path) -> Any:
    """The same rows, wide. Attempts of the first task leave a file with their number and wait for one that is `go`."""

    def give(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            batch["body"] = batch["body"].str.ljust(WIDE)
            yield batch
        if context.partitionId() == 0:
            (folder / f"attempt-{context.attemptNumber()}").touch()
            give_up = time.monotonic() + HELD_S
            while not (folder / "go").exists() and time.monotonic() < give_up:
                time.sleep(0.02)

    return frame.mapInPandas(give, "body string")


if __name__ == "__main__":
    main()
