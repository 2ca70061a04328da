"""A table and its tail as one DataFrame of Spark: files by Spark's own reader, newer messages by the source `evenq`.

The plan is made once, on the driver: the names of the files, and for each queue the range from the end of its files to
the end of the queue. So each offset is there once, also if an exporter writes files while the query runs.

Typed columns of the table are in both: workers convert the bodies of the tail as the exporter does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from evenq.errors import ConnectionFailed, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from evenq.tables.query import PlannedTopic
    from evenq.tables.typed.columns import TypedSchema

PLANNED: Final = frozenset(
    {"endpoints", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "schemaStyle"}
)
"""Options of the source that follow from the table."""


def read_table(spark: Any, topic: str, *, to: str, endpoint: str, **options: str) -> Any:
    """Returns a DataFrame of all messages of a topic, with the columns of the source and the typed ones of the table.

    `spark`: a SparkSession. `to`: folder or URL of the tables, which Spark's workers can read too. `endpoint`: as in
    the SDK; keys and TLS are in the environment. `options`: more options of the source. Raises errors of calls, among
    them TopicNotFound, and ConnectionFailed if a broker with files is away; TableGap for messages that are neither in
    the table nor in the log; SettingsError.
    """
    # The import of this package is light: Spark does it in each session.
    from evenq.client.topic_source import TopicSource
    from evenq.tables.folder import table_target
    from evenq.tables.query import planned
    from evenq.tables.typed.stored import newest_schema

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
    stored = newest_schema(target, topic)  # after the files: it has the columns of all of them
    if stored is not None:
        tail = _typed(tail, stored.schema)
    if not found.paths:
        return tail
    history = spark.read.schema(tail.schema).parquet(*map(target.path, found.paths))
    return history.select(tail.columns).unionByName(tail)


def _typed(tail: Any, schema: TypedSchema) -> Any:
    """Returns the messages of the source with the typed columns of a table."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from evenq.tables.typed.bodies import TypedBodies

        bodies: TypedBodies | None = None
        for batch in batches:
            bodies = bodies or TypedBodies(schema, plain=batch.schema)
            yield from bodies.batches(batch)

    columns = [*tail.schema.fields, *from_arrow_schema(pa.schema(schema.fields())).fields]
    return tail.mapInArrow(convert, StructType(columns))
