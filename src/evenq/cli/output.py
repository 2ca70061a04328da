"""Output of the commands: tables for people, JSON for programs. Both come from one `Page`, so they cannot differ.

Standard output holds results only; progress and hints go to standard error. No other module of the command line writes
to either (a test says so), because this one makes text safe: messages, client ids and the errors of servers are written
by others. Control characters are shown as escapes, and nothing is read as markup; JSON gives exact values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenq.model import MessageQueue
from evenq.runtime.printable import json_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

__all__ = [
    "JSON_ONLY", "QUEUE", "WIDE", "Column", "Listing", "Page", "complain", "console", "print_json", "print_lines",
    "print_page", "progress_bar", "progress_console", "queue_cells",
]  # fmt: skip

Scalar = str | int | bool | None
ALWAYS, WIDE, JSON_ONLY = "always", "wide", "never"
GAP = 3
"""Between two columns."""
UNBOUNDED = 100_000
"""Columns of a pipe or file: a table is as wide there as its cells are."""


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names the value in JSON; `kind` is text, number, time (ms since the epoch, 0 = never) or sentence, which is
    the first to take several lines. No cell is ever cut: a name or an id must be there to be copied.
    """

    key: str
    title: str
    kind: str = "text"
    shown: str = ALWAYS
    """In tables: always, with `--wide`, or never. JSON has all."""


QUEUE = (
    Column("place", "queue"),
    Column("topic", "topic", shown=JSON_ONLY),
    Column("broker", "broker", shown=JSON_ONLY),
    Column("queue", "queue", "number", shown=JSON_ONLY),
)
"""A queue: one cell for people, its parts for programs."""


def queue_cells(queue: MessageQueue) -> tuple[Scalar, ...]:
    """For `QUEUE`; a queue id below 0 is all queues of the broker."""
    number = queue.queue_id if queue.queue_id >= 0 else "all"
    return f"{queue.topic} {queue.broker_name}/{number}", queue.topic, queue.broker_name, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One table."""

    key: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Scalar]]
    title: str = ""
    empty: str = "none"
    """What is said instead of a table without rows."""

    def as_json(self) -> list[dict[str, Scalar]]:
        """Rows as objects."""
        return [{column.key: value for column, value in zip(self.columns, row, strict=True)} for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer: some facts and some tables."""

    facts: dict[str, Scalar | list[str]]
    listings: Sequence[Listing] = ()
    sentence: str = ""
    """Printed above, for people only."""


def console() -> Console:
    """Results. Strings are shown as they are: no markup, no emoji codes, control characters escaped."""
    return _console(soft_wrap=True, width=None if sys.stdout.isatty() else UNBOUNDED)


def progress_console() -> Console:
    """Progress and hints, as safe as results."""
    return _console(stderr=True)


def _console(**settings: Any) -> Console:
    from rich.console import Console

    class SafeConsole(Console):
        """rich makes a text of every string here: of those that are printed, and of titles and cells of tables."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    return SafeConsole(highlight=False, markup=False, emoji=False, **settings)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error that shows each task's description in front of `columns` and leaves no trace."""
    from rich.progress import Progress, TextColumn

    description = TextColumn("{task.description}", markup=False)
    return Progress(description, *columns, console=progress_console(), transient=True)


def print_lines(*lines: str, keep: str = "") -> None:
    """Results that are no table, one line each; `keep`: control characters that may be shown as they are."""
    sys.stdout.write("".join(f"{printable(line, keep=keep)}\n" for line in lines))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """One result for programs, on one line."""
    print_lines(json_line(value))


def complain(text: str) -> None:
    """One line on standard error: why a command does not do what was asked."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def print_page(page: Page, *, as_json: bool, wide: bool = False) -> None:
    """Print one answer. A page of one listing and nothing else is a JSON array. `wide`: tables with all columns."""
    if as_json:
        lists = {listing.key: listing.as_json() for listing in page.listings}
        bare = not page.facts and len(lists) == 1
        print_json(next(iter(lists.values())) if bare else {**page.facts, **lists})
        return
    out = console()
    if page.sentence:
        out.print(page.sentence)
    elif page.facts:
        from rich.text import Text

        width = max(len(key) for key in page.facts)
        for key, value in page.facts.items():
            out.print(Text(f"{key.replace('_', ' '):<{width}}  ", "bold"), _cell(value), sep="")
    for listing in page.listings:
        _print_listing(out, listing, wide=wide)


def _print_listing(out: Console, listing: Listing, *, wide: bool) -> None:
    from rich import box
    from rich.table import Table

    if not listing.rows:
        out.print(f"{listing.title + ': ' if listing.title else ''}{listing.empty}")
        return
    table = Table(
        box=box.SIMPLE_HEAD, title=listing.title or None, title_justify="left", title_style="bold", pad_edge=False
    )
    wanted = {ALWAYS, WIDE} if wide else {ALWAYS}
    places = [place for place, column in enumerate(listing.columns) if column.shown in wanted]
    columns = [listing.columns[place] for place in places]
    rows = [[_cell(row[place], listing.columns[place].kind) for place in places] for row in listing.rows]
    whole = _kept_whole(columns, rows, out.width)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind in whole,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _kept_whole(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> set[str]:
    """The kinds of columns whose cells stay on one line; the others take several lines where the table is too wide."""
    for whole in ({"text", "number", "time"}, {"number", "time"}):
        needed = sum(
            GAP
            + (
                max(map(len, (column.title, *(printable(row[place]) for row in rows))))
                if column.kind in whole
                else len(column.title)
            )
            for place, column in enumerate(columns)
        )
        if needed <= width:
            return whole
    return set()


def _cell(value: Scalar | list[str], kind: str = "text") -> str:
    if kind == "time":
        return (
            datetime.fromtimestamp(int(value) / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
            if isinstance(value, int) and value
            else "-"
        )
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(value) or "-"
        case _:
            return value or "-"
