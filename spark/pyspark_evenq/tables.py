"""A table and its tail as one DataFrame of Spark: files by Spark's own reader, newer messages by the source `evenq`.

The plan is made once, on the driver: the names of the files, and for each queue the range from the end of its files to
the end of the queue. So each offset is there once, also if an exporter writes files while the query runs.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from evenq.errors import ConnectionFailed, SettingsError

if TYPE_CHECKING:
    from evenq.tables.query import PlannedTopic

PLANNED: Final = frozenset(
    {"endpoints", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "schemaStyle"}
)
"""Options of the source that follow from the table."""


def read_table(spark: Any, topic: str, *, to: str, endpoint: str, **options: str) -> Any:
    """Returns a DataFrame of all messages of a topic, with the columns of the source.

    `spark`: a SparkSession. `to`: folder or URL of the tables, which Spark's workers can read too. `endpoint`: as in
    the SDK; keys and TLS are in the environment. `options`: more options of the source. Raises errors of calls, among
    them TopicNotFound, and ConnectionFailed if a broker with files is away; TableGap for messages that are neither in
    the table nor in the log; SettingsError.
    """
    # The import of this package is light: Spark does it in each session.
    from evenq.client.topic_source import TopicSource
    from evenq.tables.folder import table_target
    from evenq.tables.query import planned

    if wrong := sorted(PLANNED & options.keys()):
        raise SettingsError(f"read_table sets {', '.join(wrong)} itself: leave it out, and filter the frame")
    target = table_target(to)

    async def plan() -> PlannedTopic:
        async with TopicSource(endpoint=endpoint) as source:
            return await planned(target, topic, source)

    with ThreadPoolExecutor(1) as pool:  # a notebook runs a loop in this thread
        found = pool.submit(lambda: asyncio.run(plan())).result()
    if found.silent and options.get("failOnUnavailable", "true").lower() != "false":
        raise ConnectionFailed(
            f"the table of {topic} has files of {', '.join(found.silent)}, which does not serve the topic now, so its "
            "newest messages may be missing; with failOnUnavailable=false the frame has those of its files"
        )
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for extent, start in found.tails:
        broker, queue = extent.queue.broker_name, str(extent.queue.queue_id)
        starts.setdefault(broker, {})[queue] = start
        ends.setdefault(broker, {})[queue] = extent.high
    reader = spark.read.format("evenq").options(**options).option("endpoints", endpoint).option("subscribe", topic)
    reader = reader.option("startingOffsets", json.dumps({topic: starts}))
    tail = reader.option("endingOffsets", json.dumps({topic: ends})).load()
    if not found.paths:
        return tail
    scheme = "file://" if to.startswith("file://") else ""  # a path alone could be one of another file system
    history = spark.read.schema(tail.schema).parquet(*(f"{scheme}{target.path(path)}" for path in found.paths))
    return history.select(tail.columns).unionByName(tail)
