"""`evenq query`: runs `evenq.tables.query` and prints its rows as a table, CSV, JSON or YAML."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from evenq.cli.output import Column, Listing, Page, complain, print_page, print_value, write_frame
from evenq.cli.table.commands import must_be_installed, topic_error
from evenq.client.topic_source import TopicSource
from evenq.errors import BadRequest, Error
from evenq.tables.folder import TableTarget, table_target
from evenq.tables.query import QueriedTopic, named_topics, run_query, view_of_files, view_with_tail

if TYPE_CHECKING:
    import pyarrow as pa


def run(options: argparse.Namespace) -> int:
    must_be_installed("duckdb", "pyarrow", "numpy")
    target = table_target(options.tables)
    topics = named_topics(target, options.sql)
    views = (
        [view_of_files(target, topic) for topic in topics] if options.no_tail else _with_tails(options, target, topics)
    )
    for view in views:
        if view.silent:
            options.incomplete = True
            complain(
                f"No answer from {', '.join(view.silent)}: the result lacks the newest messages of {view.topic} there."
            )
    _print(options, run_query(target, views, options.sql))
    return 0


def _with_tails(options: argparse.Namespace, target: TableTarget, topics: list[str]) -> list[QueriedTopic]:
    async def read() -> list[QueriedTopic]:
        async with TopicSource(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as source:
            return [await view_with_tail(target, topic, source) for topic in topics]

    try:
        return asyncio.run(read())
    except Error as error:
        raise topic_error(error, topics[0]) from error


def _print(options: argparse.Namespace, result: pa.Table) -> None:
    import pyarrow as pa

    names = result.column_names
    rows = [
        [_plain(_value(name, column[row])) for name, column in zip(names, result.columns, strict=True)]
        for row in range(result.num_rows)
    ]
    if options.csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else value for value in row] for row in rows])
        write_frame(text.getvalue())
    elif options.output.structured:
        print_value([dict(zip(names, row, strict=True)) for row in rows], options.output, name="")
    else:
        columns = [
            Column(name, name, "number" if pa.types.is_integer(field.type) else "text")
            for name, field in zip(names, result.schema, strict=True)
        ]
        cells = [
            [value if isinstance(value, int | float | str | None) else str(value) for value in row] for row in rows
        ]
        print_page(Page(facts={}, listings=[Listing(key="rows", columns=columns, rows=cells)]), options.output)


def _value(name: str, cell: pa.Scalar) -> Any:
    """Returns a value of a column; for a time that Python does not have, its number."""
    try:
        return cell.as_py()
    except OverflowError as error:  # a sender may give any time of birth
        if hasattr(cell, "value"):
            return cell.value
        raise BadRequest(
            f"column {name} has a time outside of the years 1 to 9999 in a list, struct or map, which cannot be "
            "printed: cast it to VARCHAR in the query"
        ) from error


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it; bytes as text, with escapes for what is not UTF-8."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime() | date():
            return value.isoformat()
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # a map
            return {str(key): _plain(one) for key, one in value}
        case list():
            return [_plain(one) for one in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
