"""What commands print: tables for people, JSON for programs. Both come from one `Page`, so they cannot differ.

Standard output holds results only; progress and hints go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Column", "Listing", "Page", "console", "print_page", "progress_console"]

Scalar = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names the value in JSON; `kind` is text, number, time (ms since the epoch, 0 = never) or sentence,
    which takes several lines where the table is too wide: what it says is never cut off.
    """

    key: str
    title: str
    kind: str = "text"


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
    """Results."""
    from rich.console import Console

    # In a pipe rich assumes 80 columns and cuts the cells to fit.
    width = None if sys.stdout.isatty() else 160
    return Console(highlight=False, soft_wrap=True, width=width)


def progress_console() -> Console:
    """Progress and hints."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_page(page: Page, *, as_json: bool) -> None:
    """Print one answer. A page of one listing and nothing else is a JSON array."""
    if as_json:
        lists = {listing.key: listing.as_json() for listing in page.listings}
        bare = not page.facts and len(lists) == 1
        sys.stdout.write(
            json.dumps(next(iter(lists.values())) if bare else {**page.facts, **lists}, ensure_ascii=False) + "\n"
        )
        return
    out = console()
    if page.sentence:
        out.print(page.sentence, markup=False)
    elif page.facts:
        width = max(len(key) for key in page.facts)
        for key, value in page.facts.items():
            out.print(f"[bold]{key.replace('_', ' '):<{width}}[/bold]  {_escape(_cell(value))}")
    for listing in page.listings:
        _print_listing(out, listing)


def _print_listing(out: Console, listing: Listing) -> None:
    from rich import box
    from rich.table import Table

    if not listing.rows:
        out.print(f"{listing.title + ': ' if listing.title else ''}{listing.empty}", markup=False)
        return
    table = Table(
        box=box.SIMPLE_HEAD, title=listing.title or None, title_justify="left", title_style="bold", pad_edge=False
    )
    for column in listing.columns:
        table.add_column(
            column.title,
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind != "sentence",
            overflow="fold" if column.kind == "sentence" else "ellipsis",
        )
    for row in listing.rows:
        table.add_row(*[_escape(_cell(value, column.kind)) for value, column in zip(row, listing.columns, strict=True)])
    out.print(table)


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


def _escape(text: str) -> str:
    # rich reads what is in brackets as markup.
    return text.replace("[", r"\[")
