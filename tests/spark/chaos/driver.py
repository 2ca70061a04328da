"""A driver of the kill loop, in a process of its own: two queries read one topic, one into a table of files and one into a
second topic.

It says JSON objects and hears lines (`evenq_proofs.peer`): `rest` stops the queries, `now` starts them again from their
checkpoints with `availableNow`, `stop` ends it all. A query that fails is started again from its checkpoint, as a
supervisor would, until the driver should stop or, with `now`, both queries have read what there was.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

HOOKS = Path(__file__).resolve().parent / "hooks"
PAUSE_S = 0.05
STARTS_MAX = 500
ROW = "brokerName string, queueId int, queueOffset long, messageGroup string, body binary"


def say(**said: Any) -> None:
    print("\n" + json.dumps(said), flush=True)


def session(settings: dict[str, Any]) -> Any:
    classes = Path(settings["hooks"], "classes")
    builder = SparkSession.builder.master(settings["master"]).appName("chaos")
    for name, value in {
        "spark.driver.memory": "700m",
        "spark.executor.memory": "600m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
        "spark.sql.streaming.checkpointFileManagerClass": "LogHooks",
        # Else Spark refuses a query that was killed as it wrote its first entry: half of that is in the way.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        **settings.get("spark", {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    if not (classes / "LogHooks.class").exists():
        jvm: Any = spark._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(8)
        compiler.cook((HOOKS / "LogHooks.java").read_text())
        beside = classes / f"{os.getpid()}.new"
        beside.write_bytes(bytes(compiler.getBytecodes()["LogHooks"]))
        beside.rename(classes / "LogHooks.class")
    return spark


class Job:
    """One of the queries."""

    def __init__(self, spark: Any, settings: dict[str, Any], name: str) -> None:
        self.name = name
        self._spark = spark
        self._settings = settings
        self._query: Any = None
        self._starts = 0
        self.ended = False

    def start(self) -> None:
        settings, folder = self._settings, Path(self._settings["folder"])
        self._starts += 1
        assert self._starts < STARTS_MAX, f"query {self.name} fails again and again"
        frame = (
            self._spark.readStream.format("evenq")
            .schema(ROW)
            .options(endpoints=settings["endpoints"], subscribe=settings["source"], group=settings["groups"][self.name])
            .options(queryName=self.name, **settings["options"])
            .load()
        )
        if self.name == "rows":
            writer = frame.writeStream.format("parquet").option("path", str(folder / "table"))
        else:
            origin = "map('origin', concat_ws('/', brokerName, queueId, queueOffset)) as properties"
            writer = frame.selectExpr("body", "messageGroup", origin).writeStream.format("evenq")
            writer = writer.options(endpoints=settings["endpoints"], topic=settings["target"], **settings["sink"])
        writer = writer.option("checkpointLocation", str(folder / self.name)).queryName(f"{self.name}-{self._starts}")
        trigger = {"availableNow": True} if settings["now"] else {"processingTime": settings["trigger"]}
        self._query = writer.trigger(**trigger).start()

    def look(self) -> None:
        """Start the query, or start it again if it failed."""
        if self.ended or (self._query is not None and self._query.isActive):
            return
        try:
            if self._query is not None:
                error = self._query.exception()
                if error is None and self._settings["now"]:
                    self.ended = True
                    return
                say(failed=self.name, at=time.time(), error=str(error)[:2_000])
            self.start()
            say(started=self.name, at=time.time())
        except Exception as error:  # noqa: BLE001  the next look tries again
            self._query = None
            say(failed=self.name, at=time.time(), error=str(error)[:2_000])

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._query = None


def dump(spark: Any, folder: Path) -> int:
    """What Spark itself reads from the table, a line a row."""
    found = spark.read.schema(ROW).parquet(str(folder / "table")).drop("body").collect()
    with (folder / "table.jsonl").open("w") as file:
        for row in found:
            print(json.dumps([row.brokerName, row.queueId, row.queueOffset]), file=file)
    return len(found)


def heard() -> queue.Queue[str]:
    """Lines of the standard input, as they come; `stop` at its end."""
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line.strip())
        lines.put("stop")

    threading.Thread(target=listen, daemon=True).start()
    return lines


def run(jobs: list[Job], settings: dict[str, Any]) -> bool:
    """Keep the queries running; True if they have read what there was, False if the driver should stop."""
    lines, resting = heard(), False
    while not all(job.ended for job in jobs):
        for job in jobs if not resting else ():
            job.look()
        try:
            line = lines.get(timeout=PAUSE_S)
        except queue.Empty:
            continue
        if line == "now":
            settings["now"], resting = True, False
            continue
        for job in jobs:
            job.stop()
        if line != "rest":
            return False
        resting = True
        say(resting=True)
    return True


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = session(settings)
    jobs = [Job(spark, settings, name) for name in settings["jobs"]]
    say(ready=os.getpid(), at=time.time())
    rows = dump(spark, Path(settings["folder"])) if run(jobs, settings) else 0
    say(done=True, rows=rows, at=time.time())
    spark.stop()


main()
