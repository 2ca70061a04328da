"""`evenq table export`: runs `evenq.tables.exporting` with the calls of the SDK."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from typing import Final

from evenq.cli.output import Column, Listing, Page, complain, print_page
from evenq.client.topic_source import TopicSource
from evenq.errors import (
    ConnectionFailed,
    Error,
    Forbidden,
    HaNotAvailable,
    IllegalOffset,
    RequestTimeout,
    SettingsError,
    TooManyRequests,
    TopicNotFound,
)
from evenq.model.names import table_group
from evenq.runtime.allocator import use_one_arena
from evenq.runtime.backoff import Backoff
from evenq.runtime.extras import is_installed
from evenq.tables.exporting import ExportPlan, ExportTurn, TopicExport, table_settings
from evenq.tables.folder import table_target
from evenq.tables.layout import TableChanged
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.stored import keep_schema, read_schema

PATIENCE_MS: Final = 30_000
"""Longest time without a new file during which an export retries."""
PAUSE_MAX_MS: Final = 60_000
PASSING: Final = (ConnectionFailed, RequestTimeout, HaNotAvailable, TooManyRequests, IllegalOffset, TableChanged)
"""Errors that another attempt may not meet: a broker's restart, another exporter, retention."""


def topic_error(error: Error, topic: str) -> Error:
    """Returns the error of a call about a topic, with the command that shows what to do."""
    if isinstance(error, TopicNotFound):
        return TopicNotFound(f"{error}; `evenq topic list` shows what exists")
    if isinstance(error, Forbidden):
        return Forbidden(
            f"{error}: tables need DESCRIBE and CONSUME; `evenq auth check USER Data/Scan topic:{topic} --users FILE` "
            "shows what a users file grants"
        )
    return error


def export(options: argparse.Namespace) -> None:
    use_one_arena()
    asyncio.run(_export(options))


async def _export(options: argparse.Namespace) -> None:
    total = ExportTurn()
    try:
        async with TopicSource(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as source:
            await source.queues(options.topic)  # a wrong name must not leave a folder
            run = topic_export(options, options.topic, source, tell_files(options))
            clock, backoff = source.clock, make_backoff()
            give_up_ms = clock.monotonic_ms() + PATIENCE_MS
            while True:
                turn = await run.turn()
                total.files += turn.files
                total.rows += turn.rows
                total.gaps += turn.gaps
                total.misfits += turn.misfits
                total.left, total.failures, total.unreported = turn.left, turn.failures, turn.unreported
                if turn.files:
                    give_up_ms = clock.monotonic_ms() + PATIENCE_MS
                again = turn.failures and all(isinstance(error, PASSING) for error in turn.failures.values())
                if not again or clock.monotonic_ms() >= give_up_ms:
                    break
                await clock.sleep_ms(backoff.next_ms())
    except Error as error:
        raise topic_error(error, options.topic) from error
    _print(options, total)


def tell_files(options: argparse.Namespace) -> Callable[[str, int, int], None]:
    """Returns a function that prints each new file."""

    def wrote(path: str, rows: int, misfits: int) -> None:
        if not options.output.for_programs:
            complain(f"wrote {path}, {rows:,} rows{untyped(misfits)}")

    return wrote


def stopped_queues(turn: ExportTurn) -> Listing:
    rows = [(str(queue), error.message) for queue, error in turn.failures.items()]
    columns = (Column("queue", "queue"), Column("error", "error", "sentence"))
    return Listing(key="failures", columns=columns, rows=rows, title="Stopped queues", empty="")


def _print(options: argparse.Namespace, turn: ExportTurn) -> None:
    facts = {
        "topic": options.topic,
        "files": turn.files,
        "rows": turn.rows,
        "left": turn.left,
        "gaps": turn.gaps,
        "misfits": turn.misfits,
        "reported": options.report and turn.unreported is None,
    }
    print_page(Page(facts=facts, listings=[stopped_queues(turn)]), options.output)
    if turn.left and not options.output.for_programs:
        why = (
            "they are younger than --settle. Run it again to write them."
            if options.tail
            else "their files are still open. They are written after their window (--close-after); --tail writes them "
            "now."
        )
        complain(f"{turn.left:,} messages are in the log only: {why}")
    if turn.unreported is not None:
        complain(f"retention does not wait for this table: {_unreported(options.topic, turn.unreported)}")
    if turn.failures:
        error = list(turn.failures.values())[-1]
        raise topic_error(error, options.topic)


def untyped(misfits: int) -> str:
    return f", {misfits:,} without typed columns" if misfits else ""


def _unreported(topic: str, error: Error) -> str:
    """Returns why brokers do not know the ends of the files, with a remedy."""
    if isinstance(error, Forbidden):
        return f"{error.message}; grant CONSUME on group {table_group(topic)}, or add --no-report"
    return f"{error.message}; --no-report exports without a report"


def must_be_installed(*packages: str) -> None:
    """Raises ModuleNotFoundError before anything is written or read."""
    for package in packages:
        if not is_installed(package):
            raise ModuleNotFoundError(name=package)


def topic_export(
    options: argparse.Namespace, topic: str, source: TopicSource, wrote: Callable[[str, int, int], None]
) -> TopicExport:
    """Returns the export of a topic with the options of the command line. Raises SettingsError, TableChanged."""
    must_be_installed("pyarrow", "numpy")
    schema = _given_schema(options)  # before a folder is made
    target = table_target(options.to)
    settings = table_settings(target, topic, rows_per_file=options.rows_per_file, close_after_ms=options.close_after)
    if schema is not None:
        keep_schema(target, topic, schema)
    plan = ExportPlan(
        topic=topic,
        settings=settings,
        settle_ms=options.settle,
        allow_gaps=options.allow_gaps,
        tail=getattr(options, "tail", False),
        reports=options.report,
    )
    return TopicExport(source, target, plan, clock_ms=source.clock.now_ms, wrote=wrote)


def _given_schema(options: argparse.Namespace) -> TypedSchema | None:
    if options.table_schema is not None:
        return read_schema(options.table_schema, options.table_message)
    if options.table_message:
        raise SettingsError("--table-message names a message of --table-schema FILE: add that option")
    return None


def make_backoff() -> Backoff:
    return Backoff(random.Random(), first_ms=500, max_ms=PAUSE_MAX_MS)  # noqa: S311  jitter
