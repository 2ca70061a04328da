"""`evenq table rebuild`: writes files again, and registers them again in the Iceberg table of the topic."""

from __future__ import annotations

import argparse
import asyncio

from evenq.cli.output import Page, print_page
from evenq.cli.table.commands import must_be_installed, stopped_queues, tell_files, topic_error
from evenq.cli.table.publishing import CatalogCalls, import_pyiceberg, linked
from evenq.client.topic_source import TopicSource
from evenq.errors import Error
from evenq.runtime.allocator import use_one_arena
from evenq.serving.program.logs import errors_only
from evenq.tables.checking import queues_of, table_of
from evenq.tables.exporting import ExportPlan, ExportTurn, TopicExport, table_settings
from evenq.tables.folder import TableTarget, table_target
from evenq.tables.iceberg import IcebergTable
from evenq.tables.iceberg_state import IcebergState


def rebuild(options: argparse.Namespace) -> None:
    use_one_arena()
    must_be_installed("pyarrow", "numpy")
    with errors_only("pyiceberg"):
        asyncio.run(_rebuild(options))


async def _rebuild(options: argparse.Namespace) -> None:
    target, topic = table_target(options.to), options.topic
    table_of(target, topic)  # before settings are written
    table = linked(target, topic)
    state = await _registered(table)  # a catalog that is away ends the command before a file is replaced
    turn = await _written(options, target, state)
    registered = 0
    if table is not None:
        renewed = await CatalogCalls(table, lambda: table.renew(lambda: queues_of(target, topic))).result()
        registered = renewed.files
        for queue, error in renewed.failures.items():
            turn.failures.setdefault(queue.queue, error)
    facts = {"topic": topic, "files": turn.files, "rows": turn.rows, "left": turn.left, "registered": registered}
    print_page(Page(facts=facts, listings=[stopped_queues(turn)]), options.output)
    if turn.failures:
        raise list(turn.failures.values())[-1]


async def _registered(table: IcebergTable | None) -> IcebergState | None:
    if table is None:
        return None
    import_pyiceberg()
    return await CatalogCalls(table, table.state).result()


async def _written(options: argparse.Namespace, target: TableTarget, state: IcebergState | None) -> ExportTurn:
    """Writes files again; those that are registered and gone end where their names say."""
    topic = options.topic
    settings = table_settings(target, topic, rows_per_file=None, close_after_ms=None)
    try:
        async with TopicSource(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as source:
            plan = ExportPlan(topic=topic, settings=settings)
            run = TopicExport(source, target, plan, clock_ms=source.clock.now_ms, wrote=tell_files(options))
            return await run.rebuild(whole=options.whole, registered=state.files if state is not None else {})
    except Error as error:
        raise topic_error(error, topic) from error
