"""Output of the commands: tables for people, JSON, YAML or names for programs. All come from one `Page`, so they cannot
differ.

Standard output holds results only; progress and hints go to standard error. No other module of the command line writes
to either (a test checks it), because this one makes text safe: others write messages, client ids and server errors.
Control characters are printed as escapes, and no text is parsed as markup. JSON holds exact values.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenq.cli.formats import Output
from evenq.cli.yaml_text import yaml_text
from evenq.model import MessageQueue
from evenq.runtime.printable import json_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

Scalar = str | int | float | bool | None
ALWAYS, WIDE, JSON_ONLY = "always", "wide", "never"
GAP = 3
"""Characters between two columns."""
UNBOUNDED = 100_000
"""Width of a pipe or file, in characters: a table is as wide as its cells there."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. No cell is ever cut: users copy names and ids."""

    key: str
    """The name in JSON."""
    title: str
    kind: str = "text"
    """text, number, time (ms since the epoch, 0 = never) or sentence, which is wrapped first."""
    shown: str = ALWAYS
    """In tables: always, with `-o wide`, or never. JSON and YAML have all columns."""


QUEUE = (
    Column("place", "queue"),
    Column("topic", "topic", shown=JSON_ONLY),
    Column("broker", "broker", shown=JSON_ONLY),
    Column("queue", "queue", "number", shown=JSON_ONLY),
)
"""The columns of a queue: one cell for people, its parts for programs."""


def queue_cells(queue: MessageQueue) -> tuple[Scalar, ...]:
    """Returns the cells for `QUEUE`; a queue id below 0 stands for all queues of the broker."""
    number = queue.queue_id if queue.queue_id >= 0 else "all"
    return f"{queue.topic} {queue.broker_name}/{number}", queue.topic, queue.broker_name, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    key: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Scalar]]
    title: str = ""
    empty: str = "none"
    """Printed instead of a table without rows; "": nothing."""

    def as_rows(self) -> list[dict[str, Scalar]]:
        """Returns the rows as objects."""
        return [{column.key: value for column, value in zip(self.columns, row, strict=True)} for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The result of a command: facts and tables."""

    facts: Mapping[str, Scalar | list[str]]
    listings: Sequence[Listing] = ()
    sentence: str | Sequence[str] = ""
    """Printed instead of the facts, for people only: one line or several. A line break inside a line is escaped."""
    tables_first: bool = False
    """The facts are printed below the tables, and without those that are 0 and in `zeros_left_out`: the tables stay
    visible in a terminal of 24 lines. `-o wide` prints all facts."""
    zeros_left_out: Collection[str] = ()
    names: str = ""
    """Result of `-o name`: the key of a fact, or of a listing and its column, `queues.owner` (without: its first
    one). Empty: the first fact, or the first listing of a page without facts."""

    def named(self) -> list[str]:
        """Returns the names or ids of the result, each once."""
        key, _, column = (self.names or next(iter(self.facts), "")).partition(".")
        if key in self.facts:
            value = self.facts[key]
            return list(value) if isinstance(value, list) else [str(value)]
        listing = next((one for one in self.listings if one.key == key), next(iter(self.listings), None))
        if listing is None:
            return []
        wanted = column or listing.columns[0].key
        return list(dict.fromkeys(str(row[wanted]) for row in listing.as_rows() if row[wanted] not in {None, ""}))


def console() -> Console:
    """Returns the console for results: no markup, no emoji codes, control characters escaped."""
    return _console(soft_wrap=True, width=None if sys.stdout.isatty() else UNBOUNDED)


def progress_console() -> Console:
    """Returns the console for progress and hints, with the same escapes."""
    return _console(stderr=True)


def _console(**settings: Any) -> Console:
    from rich.console import Console

    class SafeConsole(Console):
        """A console that escapes every string: rich passes printed strings, titles and cells to `render_str`."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    return SafeConsole(highlight=False, markup=False, emoji=False, **settings)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Returns a bar on standard error: the task's description, then `columns`; it is erased at its end."""
    from rich.progress import Progress, TextColumn

    description = TextColumn("{task.description}", markup=False)
    return Progress(description, *columns, console=progress_console(), transient=True)


def print_lines(*lines: str, keep: str = "") -> None:
    """Prints results as lines; `keep`: control characters that are not escaped."""
    sys.stdout.write("".join(f"{printable(line, keep=keep)}\n" for line in lines))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    print_lines(json_line(value))


class ScreenFrame(io.StringIO):
    """The output of one run that is shown later, whole. It looks like the terminal to which it will be written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def write_frame(text: str) -> None:
    """Writes the text of a `ScreenFrame`, which was made safe when it was printed into it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_errors(text: str) -> None:
    """Writes the text of a `ScreenFrame` to standard error."""
    sys.stderr.write(text)
    sys.stderr.flush()


def redraw(head: str, lines: Sequence[str]) -> None:
    """Draws a heading and lines of a `ScreenFrame` over the terminal. Clearing it first would flicker."""
    end = "\x1b[K\n"  # clears the rest of the line
    write_frame("\x1b[H" + end.join((printable(head), "", *lines, "")) + "\x1b[J")


def terminal_height() -> int:
    """Returns the number of lines of the terminal."""
    return shutil.get_terminal_size().lines


def complain(text: str) -> None:
    """Prints one line on standard error, for an error or a warning."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def print_value(value: Any, output: Output, *, name: str) -> None:
    """Prints a result that has no table: as JSON, as YAML, or only its name."""
    match output:
        case Output.NAME:
            print_lines(name)
        case Output.YAML:
            print_lines(yaml_text(value), keep="\n")
        case _:
            print_json(value)


def print_record(value: Any, output: Output, *, name: str) -> None:
    """Prints one of several results: a line of JSON, a document of YAML, or a line with its name."""
    if output is Output.YAML:  # written in one call: an interrupted command prints whole documents
        print_lines(f"---\n{yaml_text(value)}", keep="\n")
    else:
        print_value(value, output, name=name)


def print_page(page: Page, output: Output = Output.TABLE) -> None:
    """Prints one result. In JSON and YAML, a page of a single listing is an array."""
    if output is Output.NAME:
        print_lines(*page.named())
        return
    if output.structured:
        lists = {listing.key: listing.as_rows() for listing in page.listings}
        bare = not page.facts and len(lists) == 1
        print_value(next(iter(lists.values())) if bare else {**page.facts, **lists}, output, name="")
        return
    out = console()
    if page.sentence:
        for line in [page.sentence] if isinstance(page.sentence, str) else page.sentence:
            out.print(line)
    elif page.facts and not page.tables_first:
        _print_facts(out, page.facts)
    wide = output is Output.WIDE
    for listing in page.listings:
        _print_listing(out, listing, wide=wide)
    if page.tables_first:
        left_out = () if wide else page.zeros_left_out
        _print_facts(out, {key: value for key, value in page.facts.items() if value or key not in left_out})


def _print_facts(out: Console, facts: Mapping[str, Scalar | list[str]]) -> None:
    from rich.text import Text

    width = max(len(key) for key in facts)
    for key, value in facts.items():
        out.print(Text(f"{key.replace('_', ' '):<{width}}  ", "bold"), _cell(value), sep="")


def _print_listing(out: Console, listing: Listing, *, wide: bool) -> None:
    from rich import box
    from rich.table import Table

    if not listing.rows:
        if not listing.empty:
            return
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
    """Returns the kinds of columns whose cells stay on one line; the others are wrapped if the table is too wide."""
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
        case float():
            return f"{value:,.1f}"
        case list():
            return ", ".join(value) or "-"
        case _:
            return value or "-"
