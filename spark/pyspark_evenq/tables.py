"""A table and its tail as one DataFrame of Spark: files by Spark's own reader, newer messages by the source `evenq`.

The plan is made once, on the driver: the names of the files, and for each queue the range from the end of its files to
the end of the queue. The source gets exactly these queues, not the topic: it would read any other queue from its first
message, also one of a broker that was away when the plan was made and has files. So each offset is there once, also if
an exporter writes files while the query runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from evenq.errors import ConnectionFailed, SettingsError

if TYPE_CHECKING:
    from evenq.tables.query import PlannedTopic

ACCEPTED: Final = (
    *("readFrom", "format", "blockBytes", "readTimeoutMs", "gcFreeze", "filterPushdown"),
    *("failOnDataLoss", "failOnUnavailable"),
    *("minPartitions", "maxPartitions", "minRecordsPerPartition", "maxRecordsPerPartition"),
    *("accessKey", "secretKey", "credentialsFile"),
    *("tls", "tlsCa", "tlsCertificate", "tlsKey", "tlsServerName", "tlsInsecure"),
)
"""Options of the source for how the tail is read. Any other would change rows or columns of the tail and not those of
the files."""


def read_table(spark: Any, topic: str, *, to: str, endpoint: str, **options: str) -> Any:
    """Returns a DataFrame of all messages of a topic, with the columns of the source.

    `spark`: a SparkSession. `to`: folder or URL of the tables, which Spark's workers can read too. `endpoint`: as in
    the SDK; keys and TLS are in the environment. `options`: those of the source in ACCEPTED, for the tail. Raises
    errors of calls, among them TopicNotFound, and ConnectionFailed if a broker with files is away; TableGap for
    messages that are neither in the table nor in the log; SettingsError for any other option.
    """
    # The import of this package is light: Spark does it in each session.
    from evenq.client.topic_source import TopicSource
    from evenq.tables.folder import table_target
    from evenq.tables.query import planned
    from pyspark_evenq.options.values import flag, named

    _must_be_accepted(options)
    values = named(options, {name.lower(): name for name in ACCEPTED}, of="read_table")
    target = table_target(to)

    async def plan() -> PlannedTopic:
        async with TopicSource(endpoint=endpoint) as source:
            return await planned(target, topic, source)

    with ThreadPoolExecutor(1) as pool:  # a notebook runs a loop in this thread
        found = pool.submit(lambda: asyncio.run(plan())).result()
    if found.silent and flag(values, "failOnUnavailable", default=True):
        raise ConnectionFailed(
            f"the table of {topic} has files of {', '.join(found.silent)}, which does not serve the topic now, so its "
            "newest messages may be missing; with failOnUnavailable=false the frame has those of its files"
        )
    reader = spark.read.format("evenq").options(**values).option("endpoints", endpoint)
    if not found.tails:  # only the columns of such a frame are used if there are files
        tail = reader.option("subscribe", topic).load()
    else:
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for extent, start in found.tails:
            broker, queue_id = extent.queue.broker_name, extent.queue.queue_id
            assigned.setdefault(broker, []).append(queue_id)
            starts.setdefault(broker, {})[str(queue_id)] = start
            ends.setdefault(broker, {})[str(queue_id)] = extent.high
        reader = reader.option("assign", json.dumps({topic: assigned}))
        reader = reader.option("startingOffsets", json.dumps({topic: starts}))
        tail = reader.option("endingOffsets", json.dumps({topic: ends})).load()
    if not found.paths:
        return tail
    scheme = "file://" if to.startswith("file://") else ""  # a path alone could be one of another file system
    files = [f"{scheme}{target.path(path)}" for path in found.paths]
    history = spark.read.schema(tail.schema).parquet(*files).select(tail.columns)
    return history.unionByName(tail) if found.tails else history


def _must_be_accepted(options: Iterable[str]) -> None:
    """Raises SettingsError for an option of the source that would change rows or columns."""
    from pyspark_evenq.options.source import ALIASES, NAMES

    refused = {name.lower() for name in (*NAMES, *ALIASES)} - {name.lower() for name in ACCEPTED}
    for name in options:
        if name.lower() in refused:
            raise SettingsError(
                f"read_table does not accept option {name}: the table decides which messages and columns the frame "
                f"has; leave it out and filter the frame. Accepted: {', '.join(ACCEPTED)}"
            )
