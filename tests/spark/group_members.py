"""Members of one group in processes of their own: a Spark job, and a consumer of our SDK. Each reads commands from its
stdin and answers in JSON lines; what it read is in a file or, for Spark, in a file per batch.

python group_members.py spark OPTIONS FOLDER        start, stop, stop between; more than one run with one checkpoint
python group_members.py consumer ENDPOINT TOPIC GROUP FILE     stop
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

STOP_S = 20.0
STARTS_MAX = 10


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def now_ms() -> int:
    """Monotonic, one clock for all processes of the machine."""
    return time.monotonic_ns() // 1_000_000


def begun(writer: Any) -> Any:
    """The query, once it has its runner. Spark gives that ten seconds to begin, which a busy machine may not have."""
    for _ in range(STARTS_MAX):
        query = writer.start()
        while query.isActive and "Initializing" in query.status["message"]:
            time.sleep(0.01)
        if "worker failed to connect back" not in str(query.exception()):
            break
    return query


def spark(options: str, folder: str) -> None:
    """A job that writes each batch to a file of its own, over and over the same for the same batch."""
    from pyspark.sql import SparkSession

    out = Path(folder)
    (out / "rows").mkdir(parents=True, exist_ok=True)
    session = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m").config("spark.sql.streaming.numRecentProgressUpdates", "2000")
        .config("spark.python.authenticate.socketTimeout", "120s").getOrCreate()
    )  # fmt: skip
    session.sparkContext.setLogLevel("ERROR")

    def write(frame: Any, number: int) -> None:
        bodies = frame.selectExpr("CAST(body AS STRING) AS body")  # no collect: it opens a socket, with a timeout
        bodies.write.mode("overwrite").text(str(out / "rows" / str(number)))
        draft = out / "rows" / f"{number}.draft"
        draft.write_text(str(now_ms()))
        os.replace(draft, out / "rows" / f"{number}.done")

    say(ready=True)
    query: Any = None
    for line in sys.stdin:
        if line.strip() == "start":
            frame = session.readStream.format("evenq").schema("body binary").options(**json.loads(options)).load()
            writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(out / "checkpoint"))
            query = begun(writer.trigger(processingTime="200 milliseconds"))
            say(started=True)
        elif line.startswith("stop"):
            give_up = time.monotonic() + (STOP_S if "between" in line else 0)
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < give_up:
                time.sleep(0.001)
            failed = str(query.exception() or "")
            query.stop()
            say(
                stopped=True,
                failed=failed,
                batch_ms=max((one.batchDuration for one in query.recentProgress), default=0),
            )


def consumer(endpoint: str, topic: str, group: str, file: str) -> None:
    """Each poll is one line of the file, written before it is committed."""
    import evenq
    from evenq.client.options import PullOptions

    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    with (
        Path(file).open("a", encoding="ascii") as out,
        evenq.PullConsumer(
            group=group, subscriptions={topic: "*"}, endpoint=endpoint, start_from="FIRST",
            options=PullOptions(auto_commit=False, drain_ms=30_000),
        ) as reader,
    ):  # fmt: skip
        say(ready=True)
        while not stop.is_set():
            polled = reader.poll(100, wait_ms=200)
            if polled:
                out.write(json.dumps([[int(message.body), now_ms()] for message in polled]) + "\n")
                out.flush()
                reader.commit()
    say(stopped=True)


if __name__ == "__main__":
    {"spark": spark, "consumer": consumer}[sys.argv[1]](*sys.argv[2:])
