"""Results of `peers.py` as a table, as Markdown and as a picture (SVG: bars with their spread)."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.table import Table
from rocketmq_peer import VERSION
from run import machine

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "pictures" / "peers.svg"


@dataclass
class Row:
    """One line: the figures of both sides in all rounds, in order."""

    what: str
    unit: str
    ours: list[float]
    theirs: list[float]
    goal: float | None
    """Goal of the ratio ours to theirs, or of our own figure if `absolute`; None: no goal."""
    more_is_better: bool
    absolute: bool = False
    cpu_us: tuple[list[float], list[float]] = ((), ())  # type: ignore[assignment]
    """CPU of the server per message, microseconds, ours and theirs."""

    @property
    def ratios(self) -> list[float]:
        """Returns ours to theirs, round by round; a peer that was measured once is used for all rounds."""
        theirs = self.theirs * len(self.ours) if len(self.theirs) == 1 else self.theirs
        return [mine / other for mine, other in zip(self.ours, theirs, strict=True)]

    @property
    def ok(self) -> bool:
        """True if the median meets the goal, or there is no goal."""
        if self.goal is None:
            return True
        seen = statistics.median(self.ours if self.absolute else self.ratios)
        return seen >= self.goal if self.more_is_better else seen <= self.goal

    @property
    def goal_text(self) -> str:
        if self.goal is None:
            return "-"
        sign = ">=" if self.more_is_better else "<="
        return f"{sign} {self.goal:g} {self.unit if self.absolute else 'x'}"


def number(value: float) -> str:
    """Three digits are enough to compare."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def cells(row: Row) -> tuple[str, ...]:
    mine, others = row.cpu_us
    cpu = f"{statistics.median(mine):.0f} / {statistics.median(others):.0f} us" if mine else "-"
    return (
        f"{row.what}, {row.unit}",
        spread(row.ours),
        spread(row.theirs),
        spread(row.ratios),
        cpu,
        row.goal_text,
        said(row),
    )


def said(row: Row) -> str:
    """Returns in words whether the goal is met."""
    return "-" if row.goal is None else "yes" if row.ok else "no"


TITLES = ("what", "evenq", "RocketMQ", "ratio", "server CPU a message, both", "goal", "ok")


def table(rows: list[Row]) -> Table:
    title = f"evenq beside RocketMQ {VERSION}: medians, 1 KiB bodies, {os.cpu_count()} cores"
    return drawn(title, TITLES, map(cells, rows))


def save(rows: list[Row], *, front: str, rounds: int, load_before: float) -> list[Path]:
    """Table and picture; a later run of the day replaces the table, any later run the picture."""
    about = f"{rounds} rounds in turn, bodies of 1 KiB, {WHERE}; median (least to most)."
    title = f"evenq beside Apache RocketMQ {VERSION}"
    results = written("peers", title, about, TITLES, map(cells, rows), front=front, load_before=load_before)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(rows, f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"))
    return [results, PICTURE]


def written(
    name: str,
    title: str,
    about: str,
    titles: Sequence[str],
    lines: Iterable[Sequence[str]],
    *,
    front: str,
    load_before: float,
) -> Path:
    """Writes a table as results/<date>-<name>.md, with facts of the machine; a later run of the day replaces it."""
    now = dt.datetime.now(dt.UTC)
    facts = machine()
    packages = facts.pop("packages")
    machine_facts = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in facts.items())
    text = [
        f"# {title}, {now:%Y-%m-%d %H:%M} UTC",
        "",
        f"Machine: {machine_facts}; load 1min before {load_before:.2f}. evenq {packages['evenq']}, front={front}.",
        about,
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
    ]
    results = HERE / "results" / f"{now:%Y-%m-%d}-{name}.md"
    results.write_text("\n".join(text))
    return results


def drawn(title: str, titles: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    """A table for the terminal; its first column is text."""
    made = Table(title=title)
    for at, one in enumerate(titles):
        made.add_column(one, justify="right" if at else "left")
    for line in lines:
        made.add_row(*line)
    return made


WHERE = "data on disk, asynchronous flush, eight queues"
WIDTH, LEFT, BAR, GAP = 760, 240, 18, 22
SCALE = 3.0
"""Bars of larger ratios are cut at the edge; the number is beside the bar."""


def picture(rows: list[Row], date: str) -> str:
    """Returns a bar for each ratio, RocketMQ being 1, with a line from the minimum to the maximum of the rounds.

    Bars of latency and memory show RocketMQ to ours, so that longer is better everywhere.
    """
    height = 70 + len(rows) * (BAR + GAP)
    unit = (WIDTH - LEFT - 120) / SCALE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<text x="12" y="24" font-size="15" font-weight="bold">',
        f"evenq beside Apache RocketMQ {VERSION} (= 1), {date}; longer is better</text>",
    ]
    for index, row in enumerate(rows):
        top = 48 + index * (BAR + GAP)
        ratios = row.ratios if row.more_is_better else [1 / ratio for ratio in row.ratios]
        middle, least, most = statistics.median(ratios), min(ratios), max(ratios)
        width = min(middle, SCALE) * unit
        parts += [
            f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(row.what)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{width:.0f}" height="{BAR}" fill="#2b6cb0"/>',
            line(
                LEFT + min(least, SCALE) * unit,
                LEFT + min(most, SCALE) * unit,
                top + BAR / 2,
                top + BAR / 2,
                'stroke="#1a202c" stroke-width="2"',
            ),
            f'<text x="{LEFT + max(width, min(most, SCALE) * unit) + 8:.0f}" y="{top + 14}">{middle:.2f} x</text>',
        ]
    one = LEFT + unit
    parts.append(line(one, one, 36, height - 18, 'stroke="#c53030" stroke-dasharray="4 3"'))
    return "\n".join([*parts, "</svg>", ""])


def line(left: float, right: float, top: float, bottom: float, style: str) -> str:
    """A stroke of the picture."""
    return f'<line x1="{left:.0f}" x2="{right:.0f}" y1="{top:.0f}" y2="{bottom:.0f}" {style}/>'
