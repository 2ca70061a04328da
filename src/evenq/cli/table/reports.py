"""`evenq table list | show | verify | expire`: what is in a folder of tables, beside the live queues."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.output import WIDE, Column, Listing, Page, complain, console, print_page
from evenq.cli.table.commands import topic_error
from evenq.cli.table.publishing import ask, linked
from evenq.cli.values import moment_ms
from evenq.client.core.reading.extents import QueueExtent
from evenq.client.topic_source import TopicSource
from evenq.errors import ConnectionFailed, Error, NotFound, RequestTimeout, TopicNotFound
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock
from evenq.tables.checking import QueueFiles, TableFinding, expired, findings, queues_of, table_of
from evenq.tables.folder import TableTarget, table_target
from evenq.tables.iceberg import IcebergTable
from evenq.tables.iceberg_state import IcebergState
from evenq.tables.layout import TableQueue, TableRange
from evenq.tables.typed.stored import newest_schema

EXIT_CLEAN, EXIT_FINDINGS = 0, 1
_TOPICS = (
    Column("topic", "topic"),
    Column("queues", "queues", "number"),
    Column("files", "files", "number"),
    Column("rows", "rows", "number"),
    Column("bytes", "bytes", "number"),
    Column("gaps", "missing", "number"),
)
_QUEUES = (
    Column("broker", "broker"),
    Column("queue", "queue", "number"),
    Column("uid", "uid", shown=WIDE),
    Column("start", "from", "number"),
    Column("end", "to", "number"),
    Column("files", "files", "number"),
    Column("rows", "rows", "number"),
    Column("bytes", "bytes", "number", shown=WIDE),
    Column("gaps", "missing", "number"),
    Column("lag", "lag", "number"),
    Column("published", "in Iceberg", "number", shown=WIDE),
)
_TYPED = (
    Column("column", "column"),
    Column("type", "type", "sentence"),
    Column("path", "field of the body"),
    Column("reads", "read as"),
)
_FINDINGS = (Column("place", "file or folder"), Column("what", "what", "sentence"))

Live = Mapping[tuple[str, MessageQueue], QueueExtent]
"""(uid, queue) -> the live queue."""


def list_tables(options: argparse.Namespace) -> None:
    target = table_target(options.to)
    rows: list[tuple[str | int, ...]] = []
    for topic in target.topics():
        try:
            queues = table_of(target, topic)
        except NotFound:
            continue  # a folder of something else, or a table without a file
        sums = (sum(len(one.files) for one in queues), sum(one.rows for one in queues))
        rows.append((topic, len(queues), *sums, sum(one.bytes for one in queues), sum(one.gaps for one in queues)))
    empty = f"no table in {options.to}; write one: evenq table export TOPIC --to {options.to}"
    listing = Listing(key="tables", columns=_TOPICS, rows=rows, empty=empty)
    print_page(Page(facts={}, listings=[listing]), options.output)


def show(options: argparse.Namespace) -> None:
    target = table_target(options.to)
    typed = _typed(target, options.topic)
    if options.columns:
        print_page(Page(facts={}, listings=[typed]), options.output)
        return
    queues = table_of(target, options.topic)
    live = _live(options, options.topic)
    published = _published(options, target, queues)
    rows = [(*_row(one, live), _published_rows(one, published)) for one in queues]
    # For programs, a page of one listing is an array: the columns have an option of their own.
    listings = [Listing(key="queues", columns=_QUEUES, rows=rows)]
    print_page(Page(facts={}, listings=listings if options.output.for_programs else [*listings, typed]), options.output)
    if live and not options.output.for_programs:
        known = {(one.queue.uid, one.queue.queue) for one in queues}
        missing = [str(queue) for uid, queue in live if (uid, queue) not in known]
        if missing:
            complain(f"Not in the table yet: {', '.join(missing)}.")
        if any((one.queue.uid, one.queue.queue) not in live for one in queues):
            complain(
                "Queues without a lag are of a broker that is away, or of a topic that was deleted or created again; "
                "their files stay until you delete them."
            )


def _typed(target: TableTarget, topic: str) -> Listing:
    """Returns the typed columns of a table."""
    stored = newest_schema(target, topic)
    rows = [
        (column.name, column.text, ".".join(column.path), column.reads)
        for column in (stored.schema.columns if stored is not None else ())
    ]
    title = f"Typed columns of {stored.schema.message or 'JSON bodies'}" if stored is not None else ""
    empty = f"no typed columns; add some: evenq table export {topic} --to {target.url} --table-schema FILE"
    return Listing(key="columns", columns=_TYPED, rows=rows, title=title, empty=empty)


def _row(one: QueueFiles, live: Live) -> tuple[str | int | None, ...]:
    extent = live.get((one.queue.uid, one.queue.queue))
    lag = max(0, extent.high - one.end) if extent is not None else None
    queue = one.queue
    return (
        queue.broker_name,
        queue.queue_id,
        queue.uid,
        one.start,
        one.end,
        len(one.files),
        one.rows,
        one.bytes,
        one.gaps,
        lag,
    )


def _published(options: argparse.Namespace, target: TableTarget, queues: Sequence[QueueFiles]) -> IcebergState | None:
    """Returns the files in the Iceberg table, and prints a line about it; None without one or while it is away."""
    table = None if options.offline else linked(target, options.topic)
    if table is None:
        return None
    try:
        state = ask(table, table.state)
    except (ConnectionFailed, RequestTimeout) as error:
        complain(f"Without the state of {table.name}: {error.message}; --offline does not call the catalog.")
        return None
    if not options.output.for_programs:
        left = sum(one.rows for one in queues) - state.rows
        also = f"; {left:,} rows are not registered" if left else ""
        complain(
            f"Iceberg table {table.name}: snapshot {state.snapshot_id}, {state.file_count:,} files, {state.rows:,} rows"
            f"{also}."
        )
    return state


def _published_rows(one: QueueFiles, published: IcebergState | None) -> int | None:
    """Returns the rows of a queue in the Iceberg table; None without one."""
    return None if published is None else sum(file.rows for file in published.files.get(one.queue, {}).values())


def verify(options: argparse.Namespace) -> int:
    target = table_target(options.to)
    found: list[TableFinding] = []
    rows = files = verified = 0
    for topic in [options.topic] if options.topic else target.topics():
        queues = table_of(target, topic) if options.topic else queues_of(target, topic)
        table = None if options.offline else linked(target, topic)
        if not queues and table is None:
            continue  # a folder of something else, or a table without a file
        verified += 1
        live = _live(options, topic)
        for one in queues:
            found += findings(target, one, live.get((one.queue.uid, one.queue.queue)), whole=options.whole)
        if table is not None:
            found += ask(table, partial(_compared, table, queues))
        rows += sum(one.rows for one in queues)
        files += sum(len(one.files) for one in queues)
    if not verified:
        raise NotFound(f"{options.to} has no table; write one: evenq table export TOPIC --to {options.to}")
    if options.output.for_programs:
        facts = {"target": options.to, "clean": not found, "files": files, "rows": rows}
        listing = Listing(key="findings", columns=_FINDINGS, rows=found)
        print_page(Page(facts=facts, listings=[listing]), options.output)
    else:
        for place, what in found:
            console().print(f"WRONG  {place}  {what}")
        end = f"NOT clean: {len(found)} findings" if found else f"clean: {files:,} files, {rows:,} rows, no gap"
        console().print(end)
    return EXIT_FINDINGS if found else EXIT_CLEAN


def _compared(table: IcebergTable, queues: Sequence[QueueFiles]) -> list[TableFinding]:
    return list(table.findings(queues))


def expire(options: argparse.Namespace) -> None:
    target = table_target(options.to)
    before_ms = moment_ms(options.before, now_ms=SystemClock().now_ms())
    queues = table_of(target, options.topic)
    old = [(one, part) for one in queues for part in expired(target, one, before_ms)]
    count = sum(part.count for _, part in old if not part.gap)
    facts = {
        "topic": options.topic,
        "files": len(old),
        "rows": count,
        "deleted": options.yes,
    }
    if options.yes:
        starts = {one.queue: _start_after(one, old) for one in queues}
        known = _withdraw(target, options.topic, starts)  # first, so that no reader of it meets a file that is gone
        _delete(target, [one.path(part) for one, part in old])
        if not known:  # the first publish may have begun meanwhile; a later one does not find the files
            _withdraw(target, options.topic, starts)
    print_page(Page(facts=facts), options.output)
    if old and not options.yes:
        raise NotConfirmed(
            f"this deletes {len(old)} files with {count:,} rows of {options.topic}; add --yes to confirm"
        )


def _withdraw(target: TableTarget, topic: str, starts: Mapping[TableQueue, int]) -> bool:
    """Removes the files before these offsets from the Iceberg table of a topic; False: it has none."""
    table = linked(target, topic)
    if table is None:
        return False
    removed = ask(table, partial(table.withdraw, starts))
    complain(f"Removed {removed:,} files from {table.name}.")
    return True


def _start_after(one: QueueFiles, old: Sequence[tuple[QueueFiles, TableRange]]) -> int:
    """Returns the offset at which the files of a queue begin after an expiry."""
    return max((part.end for other, part in old if other is one), default=one.start)


def _delete(target: TableTarget, paths: Sequence[str]) -> None:
    """Deletes files of each queue by offset, so that an interruption leaves no hole."""
    for path in paths:
        target.remove(path)


def _live(options: argparse.Namespace, topic: str) -> Live:
    """Returns the live queues; empty, with a line on standard error, if no broker answers."""
    if options.offline:
        return {}
    try:
        extents = asyncio.run(_extents(options, topic))
    except (ConnectionFailed, RequestTimeout) as error:
        complain(f"Without lag, because no broker answers ({error.message}); --offline calls none.")
        return {}
    except TopicNotFound:
        complain(f"Without lag, because topic {topic} does not exist any more; its files stay.")
        return {}
    except Error as error:
        raise topic_error(error, topic) from error
    return {(extent.uid, extent.queue): extent for extent in extents}


async def _extents(options: argparse.Namespace, topic: str) -> list[QueueExtent]:
    async with TopicSource(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as source:
        return await source.queues(topic)
