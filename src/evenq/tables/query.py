"""Queries over tables and the messages that are not in them yet: DuckDB, one view per topic, each offset once.

Called by `evenq query`. The files of a queue end at an offset, and its tail is read from the broker from there on, up
to the end at the time of the query. DuckDB gets the paths of these files and nothing else: it cannot read other files,
write, load extensions or change its settings, and only a single SELECT is accepted.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from evenq.client.core.reading.extents import QueueExtent
from evenq.columns.arrow_schema import arrow_schema
from evenq.columns.verifying import can_verify
from evenq.errors import BadRequest, NotFound
from evenq.tables.checking import QueueFiles, newest_content, queues_of, table_of
from evenq.tables.exporting import HistoryReader, copy_rows
from evenq.tables.files import COLUMNS
from evenq.tables.folder import RemoteTables, TableTarget
from evenq.tables.layout import TableChanged, TableGap, TableRange
from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.stored import newest_schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

WORD: Final = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
"""Names that SQL reads without double quotes."""
TAIL_BYTES_MAX: Final = 1 << 30
"""Largest size of all tails of a query, which are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriedTopic:
    """The content of one topic for a query."""

    topic: str
    paths: Sequence[str]
    """Files, relative to the target."""
    tail: pa.Table
    """With all columns of the table."""
    silent: Sequence[str] = ()
    """Brokers that have files and no live queue: their newest messages may be missing."""

    @property
    def typed(self) -> bool:
        return len(self.tail.schema) > len(COLUMNS)


def named_topics(target: TableTarget, sql: str) -> list[str]:
    """Returns the topics with a table whose names occur in a query. Raises NotFound if none does."""
    topics = target.topics()
    named = [one for one in topics if re.search(_mention(one), sql, re.IGNORECASE)]
    if not named:
        there = f"it has {', '.join(topics)}" if topics else "it has none; write one: evenq table export TOPIC --to DIR"
        raise NotFound(f"the query names no topic that has a table in {target.url}; {there}")
    return named


def _mention(topic: str) -> str:
    """Returns the pattern of a name in SQL: others than words need double quotes, so n-orders is a subtraction."""
    quoted = f'"{re.escape(topic)}"'
    return rf"{quoted}|(?<![\w%-]){topic}(?![\w%]|-(?!-))" if WORD.fullmatch(topic) else quoted


def view_of_files(target: TableTarget, topic: str) -> QueriedTopic:
    """Returns the view of a topic without its tail."""
    queues = newest_content(target, table_of(target, topic))
    schema, _ = _columns(target, topic)
    return QueriedTopic(topic=topic, paths=_paths(queues), tail=schema.empty_table())


def _columns(target: TableTarget, topic: str) -> tuple[pa.Schema, TypedBodies | None]:
    """Returns all columns of a table, and the converter of bodies if it has typed ones."""
    stored = newest_schema(target, topic)
    if stored is None:
        return arrow_schema(COLUMNS), None
    bodies = stored.bodies()
    return bodies.schema, bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """Files and tails of one topic at one moment: each committed offset is in exactly one of them."""

    paths: Sequence[str]
    """Files, relative to the target."""
    tails: Sequence[tuple[QueueExtent, int]]
    """Live queues, and the offset from which on only the broker has their messages."""
    silent: Sequence[str]
    """As in QueriedTopic."""


async def planned(target: TableTarget, topic: str, reader: HistoryReader) -> PlannedTopic:
    """Returns what has to be read for all messages of a topic. Raises TableGap if retention deleted some that are in no
    file.
    """
    files = queues_of(target, topic)  # before the ends of the queues: later messages are in the tail
    extents = await reader.queues(topic)
    uids = {extent.uid.partition("-")[0] for extent in extents}
    current = newest_content(target, files, next(iter(uids), ""))
    ends = {(one.queue.uid, one.queue.queue): one.end for one in current}
    tails: list[tuple[QueueExtent, int]] = []
    for extent in extents:
        start = ends.get((extent.uid, extent.queue), extent.low)
        if start < extent.low:
            raise TableGap(
                f"offsets {start} to {extent.low - 1} of {extent.queue} are neither in the table nor in the log: "
                f"retention deleted them. `evenq table verify {topic} --to {target.url}` shows what is missing; "
                "--no-tail reads the table alone"
            )
        tails.append((extent, start))
    live = {extent.queue.broker_name for extent in extents}
    silent = sorted({one.queue.broker_name for one in current} - live)
    return PlannedTopic(paths=_paths(current), tails=tails, silent=silent)


async def view_with_tail(target: TableTarget, topic: str, reader: HistoryReader) -> QueriedTopic:
    """Returns the view of a topic with the messages that only brokers have. Raises TableGap as `planned`, BadRequest
    for a tail of more than TAIL_BYTES_MAX.
    """
    import pyarrow as pa

    plan = await planned(target, topic, reader)
    schema, bodies = _columns(target, topic)  # after the files: it has the columns of all of them
    batches: list[pa.RecordBatch] = []
    size = 0
    for extent, start in plan.tails:
        async for batch in _tail(reader, extent, start, bodies):
            size += batch.nbytes
            if size > TAIL_BYTES_MAX:
                raise BadRequest(
                    f"more than {TAIL_BYTES_MAX >> 20} MiB of {topic} are not in the table yet: run `evenq table "
                    f"export {topic} --to {target.url}` first, or read the table alone with --no-tail"
                )
            batches.append(batch)
    tail = pa.Table.from_batches(batches, schema=schema)
    return QueriedTopic(topic=topic, paths=plan.paths, tail=tail, silent=plan.silent)


async def _tail(
    reader: HistoryReader, extent: QueueExtent, start: int, bodies: TypedBodies | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yields the rows from `start` to the end of a queue, in pieces whose sizes the caller adds up."""
    while start < extent.high:
        part = TableRange(start=start, end=min(extent.high, start + 10_000))
        batches: list[pa.RecordBatch] = []
        await copy_rows(reader, extent, part, batches.append, verifies=can_verify())
        for batch in batches:
            for piece in [batch] if bodies is None else bodies.batches(batch):
                yield piece
        start = part.end


def _paths(queues: Iterable[QueueFiles]) -> list[str]:
    found: list[str] = []
    for one in queues:
        for before, after in zip(one.parts, one.parts[1:], strict=False):
            if after.start < before.end:
                raise TableChanged(
                    f"{one.path(after)} begins before {before.end}, so rows are in two files; see `evenq table verify`"
                )
        found += one.paths
    return found


def run_query(target: TableTarget, views: Sequence[QueriedTopic], sql: str) -> pa.Table:
    """Returns the result. Raises BadRequest for a query that DuckDB refuses."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    try:
        _prepare(connection, target, views)
        _must_only_read(connection, sql)
        return connection.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        raise BadRequest(f"the query failed: {error}") from error
    finally:
        connection.close()


def _prepare(connection: duckdb.DuckDBPyConnection, target: TableTarget, views: Sequence[QueriedTopic]) -> None:
    """Makes one view for each topic, then takes away everything that a query does not need."""
    if isinstance(target, RemoteTables):
        connection.register_filesystem(target.system)
    paths = [_path(target, path) for view in views for path in view.paths]
    for setting, value in (
        ("autoinstall_known_extensions", "false"),
        ("autoload_known_extensions", "false"),
        ("temp_directory", "''"),
        ("TimeZone", "'UTC'"),
        ("allowed_paths", _listed(paths)),
        ("enable_external_access", "false"),
    ):
        connection.execute(f"SET {setting} = {value}")
    for number, view in enumerate(views):
        connection.register(f"evenq_tail_{number}", view.tail)
        parts = [f"FROM evenq_tail_{number}"]
        if view.paths:
            files = _listed([_path(target, path) for path in view.paths])
            # Older files lack typed columns that were added later, and fields of structs.
            parts.insert(0, f"FROM read_parquet({files}, hive_partitioning = false, union_by_name = {view.typed})")
        quoted = view.topic.replace('"', '""')
        connection.execute(f'CREATE VIEW "{quoted}" AS {" UNION ALL BY NAME ".join(parts)}')
    connection.execute("SET lock_configuration = true")


def _path(target: TableTarget, path: str) -> str:
    return target.system.unstrip_protocol(target.place(path)) if isinstance(target, RemoteTables) else target.path(path)


def _listed(texts: Iterable[str]) -> str:
    """Returns a list of SQL texts."""
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _must_only_read(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises BadRequest unless the text is one SELECT: a COPY would write to the files that may be read."""
    import duckdb

    statements: list[Any] = connection.extract_statements(sql)
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        names = ", ".join(kind.name for kind in kinds) or "nothing"
        raise BadRequest(f"the query is {names}; write one SELECT")
