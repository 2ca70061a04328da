"""A driver of the kill loop, in a process of its own: two queries read one topic, one into a table of files and one into a
second topic.

It says JSON objects and hears lines (`evenq.testing.peer`). A query that fails is started again from its checkpoint, as
a supervisor would, until the driver should stop or, with `now`, both queries have read what there was.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

HOOKS = Path(__file__).resolve().parent / "hooks"
PAUSE_S = 0.05
STARTS_MAX = 500
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live for half a minute."""
ROW = "brokerName string, queueId int, queueOffset long, messageGroup string, body binary"


def say(**said: Any) -> None:
    print("\n" + json.dumps(said), flush=True)


def session(settings: dict[str, Any]) -> Any:
    classes = Path(settings["hooks"], "classes")
    builder = SparkSession.builder.master(settings["master"]).appName("chaos")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "600m",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.driver.extraClassPath": str(classes),
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
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


def dump(spark: Any, folder: Path) -> int:
    """What Spark itself reads from the table, a line a row."""
    found = spark.read.schema(ROW).parquet(str(folder / "table")).drop("body").collect()
    with (folder / "table.jsonl").open("w") as file:
        for row in found:
            print(json.dumps([row.brokerName, row.queueId, row.queueOffset]), file=file)
    return len(found)


def main() -> None:
    settings = json.loads(sys.argv[1])
    stopping = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            break
        stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    spark = session(settings)
    jobs = [Job(spark, settings, name) for name in settings["jobs"]]
    say(ready=os.getpid(), at=time.time())
    while not stopping.is_set() and not all(job.ended for job in jobs):
        for job in jobs:
            job.look()
        stopping.wait(PAUSE_S)
    for job in jobs:
        job.stop()
    rows = dump(spark, Path(settings["folder"])) if settings["now"] and not stopping.is_set() else 0
    say(done=True, rows=rows, at=time.time())
    spark.stop()


main()
