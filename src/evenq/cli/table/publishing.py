"""`evenq table publish`, and calls of an Iceberg catalog by the other commands of tables.

A catalog may never answer, and some of its clients wait without a limit. So each call runs in a thread of its own that
does not keep the process alive. The command ends its wait when the call has made no progress for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import random
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from evenq.cli.output import Column, Listing, Page, print_page
from evenq.cli.table.commands import PAUSE_MAX_MS, must_be_installed
from evenq.cli.table.following import EVERY_MS_MIN, FailureLog
from evenq.errors import ConnectionFailed, Error, RequestTimeout, StoreError
from evenq.runtime.backoff import Backoff
from evenq.serving.program.logs import errors_only, setup_logs
from evenq.tables.checking import QueueFiles, queues_of, table_of
from evenq.tables.folder import TableTarget, table_target
from evenq.tables.iceberg import IcebergTable, PublishTurn
from evenq.tables.iceberg_state import IcebergName, link_of

log = logging.getLogger(__name__)
SILENCE_S: Final = 60.0
"""Longest time without progress of a call."""
END_S: Final = 5.0
"""Longest wait for the current call at the end of `publish --follow`; a call may be cut at any moment."""
PASSING: Final = (ConnectionFailed, RequestTimeout, StoreError)
"""Errors that another attempt may not meet, also before the first success."""

T = TypeVar("T")


class CatalogCalls(Generic[T]):
    """Calls of one Iceberg table, one at a time."""

    def __init__(self, table: IcebergTable, call: Callable[[], T]) -> None:
        self._table, self._call = table, call
        self._running: asyncio.Future[T] | None = None

    async def result(self) -> T:
        """Runs the call, or waits for the one that is still running. Raises RequestTimeout if it makes no progress."""
        if self._running is None:
            self._running = self._start()
        while True:
            seen = self._table.progress
            done, _ = await asyncio.wait({self._running}, timeout=SILENCE_S)
            if done:
                ended, self._running = self._running, None
                return ended.result()
            if self._table.progress == seen:
                raise RequestTimeout(
                    f"catalog {self._table.name.catalog}, or the storage of its tables, has not answered for "
                    f"{SILENCE_S:.0f} s; `pyiceberg --catalog {self._table.name.catalog} list` shows if it is there"
                )

    def leave(self) -> None:
        """Ends the wait for a call that is still running."""
        if self._running is not None:
            self._running.cancel()

    def _start(self) -> asyncio.Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # the call cannot be stopped

        def work() -> None:
            try:
                future.set_result(self._call())
            except BaseException as error:  # noqa: BLE001  for the thread that waits
                future.set_exception(error)

        threading.Thread(target=work, name="catalog", daemon=True).start()
        return asyncio.wrap_future(future)


def import_pyiceberg() -> None:
    """Imports what calls need: on a busy machine, that can take longer than the longest silence of a catalog."""
    must_be_installed("pyiceberg", "pyarrow", "numpy")
    importlib.import_module("pyiceberg.catalog")
    importlib.import_module("pyiceberg.io.pyarrow")


def ask(table: IcebergTable, call: Callable[[], T]) -> T:
    """Runs one call of a catalog and returns its result."""
    import_pyiceberg()
    with errors_only("pyiceberg"):
        return asyncio.run(CatalogCalls(table, call).result())


def linked(target: TableTarget, topic: str) -> IcebergTable | None:
    """Returns the Iceberg table that the files of a topic are registered in. Raises ModuleNotFoundError without
    pyiceberg.
    """
    if link_of(target, topic) is None:
        return None
    must_be_installed("pyiceberg")
    return IcebergTable(target, topic)


def publish(options: argparse.Namespace) -> None:
    import_pyiceberg()
    target, topic = table_target(options.to), options.topic
    name = IcebergName.of(options.iceberg) if options.iceberg else None
    if not target.files(topic):
        table_of(target, topic)  # raises NotFound, with the tables that exist
    table = IcebergTable(target, topic, name)

    def content() -> list[QueueFiles]:
        return queues_of(target, topic)

    def call() -> PublishTurn:
        table.begin()
        return table.publish(content)

    run: Coroutine[Any, Any, None] = _follow(options, table, call) if options.follow else _publish(options, table, call)
    if options.follow:
        setup_logs("INFO", program="table")
    with errors_only("pyiceberg"):
        asyncio.run(run)


async def _publish(options: argparse.Namespace, table: IcebergTable, call: Callable[[], PublishTurn]) -> None:
    turn = await CatalogCalls(table, call).result()
    facts = {
        "topic": options.topic,
        "iceberg": str(table.name),
        "files": turn.files,
        "rows": turn.rows,
        "left": turn.left,
        "snapshot": str(turn.snapshot_id or ""),  # longer than the numbers of JavaScript
    }
    failures = [(str(queue.queue), error.message) for queue, error in turn.failures.items()]
    columns = (Column("queue", "queue"), Column("error", "error", "sentence"))
    listing = Listing(key="failures", columns=columns, rows=failures, title="Stopped queues", empty="")
    print_page(Page(facts=facts, listings=[listing]), options.output)
    if turn.failures:
        raise next(reversed(turn.failures.values()))


async def _follow(options: argparse.Namespace, table: IcebergTable, call: Callable[[], PublishTurn]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.ensure_future(stop.wait())
    failure_log = FailureLog("%s is not published, retrying: %s", "%s is published again")
    calls, every_ms, begun = CatalogCalls(table, call), max(EVERY_MS_MIN, options.every), False
    backoff = Backoff(random.Random(), first_ms=500, max_ms=PAUSE_MAX_MS)  # noqa: S311  jitter
    log.info("publishing %s of %s in %s", options.topic, options.to, table.name)
    while not stop.is_set():
        work = asyncio.ensure_future(calls.result())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await asyncio.wait({work}, timeout=END_S)
        if not work.done():
            calls.leave()
            break
        failures: dict[str, Error] = {}
        try:
            turn = work.result()
            begun = True
            failures = {str(queue.queue): error for queue, error in turn.failures.items()}
            if turn.files:
                log.info("registered %d files, %d rows: snapshot %s", turn.files, turn.rows, turn.snapshot_id)
        except Error as error:
            if not begun and not isinstance(error, PASSING):
                raise
            failures = {options.topic: error}
        failure_log.now(failures)
        pause_ms = max(every_ms, backoff.next_ms()) if failures else every_ms
        if not failures:
            backoff.reset()
        await asyncio.wait({stopped}, timeout=pause_ms / 1000)
    log.info("ended")
