"""The report at the end of the demo: a table with bars, a timeline of owners, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from flight_demo.flights import Delay

BAR_WIDTH = 16
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
TIMELINE_WIDTH = 48


@dataclass(frozen=True, slots=True)
class OwnershipSpan:
    """The time for which a member owned a queue, monotonic ms."""

    queue: str
    member: str
    begin_ms: int
    end_ms: int


def show_delays(
    console: Console,
    truth: Mapping[str, Delay],
    consumed: Mapping[str, Delay],
    jobs: Mapping[str, Mapping[str, tuple[int, float]]],
) -> None:
    """Prints the mean departure delay per carrier from file, group and each Spark job; red where they differ."""
    table = Table(title="Departure delay per carrier, minutes", title_justify="left")
    for heading in ("carrier", "flights", "file", "group", *jobs):
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    table.add_column("", no_wrap=True)
    longest = max((delay.mean for delay in truth.values()), default=1.0) or 1.0
    for carrier, delay in truth.items():
        group = consumed.get(carrier, Delay())
        figures = [f"{delay.mean:.3f}", f"{group.mean:.3f}"]
        figures += [f"{job[carrier][1]:.3f}" if carrier in job else "-" for job in jobs.values()]
        same = len(set(figures)) == 1
        table.add_row(
            carrier,
            f"{delay.flights:,}",
            *figures,
            "━" * max(1, round(delay.mean / longest * BAR_WIDTH)),
            style="" if same else "bold red",
        )
    console.print(table)


def show_owners(console: Console, ownerships: Sequence[OwnershipSpan], members: Sequence[str]) -> None:
    """Prints a timeline per queue with a colour and a digit per member; a dot: no owner."""
    if not ownerships:
        return
    begin = min(o.begin_ms for o in ownerships)
    end = max(o.end_ms for o in ownerships)
    scale = max(1, end - begin) / TIMELINE_WIDTH
    names = " ".join(f"[{COLOURS[i % len(COLOURS)]}]{i + 1}={name}[/]" for i, name in enumerate(members))
    console.print(f"Owners of each queue over time {names}  ({(end - begin) / 1000:.1f} s)")
    for queue in sorted({o.queue for o in ownerships}):
        cells = ["[dim]·[/]"] * TIMELINE_WIDTH
        for ownership in ownerships:
            if ownership.queue == queue:
                index = members.index(ownership.member)
                first = int((ownership.begin_ms - begin) / scale)
                last = max(first + 1, round((ownership.end_ms - begin) / scale))
                for cell in range(first, min(last, TIMELINE_WIDTH)):
                    cells[cell] = f"[{COLOURS[index % len(COLOURS)]}]{index + 1}[/]"
        console.print(f"  {queue.split('/', 1)[1]:<14} " + "".join(cells), soft_wrap=True)


def show_verdict(console: Console, rows: Sequence[tuple[str, str, bool]]) -> bool:
    """Prints a tick or a cross per comparison and returns whether all are right."""
    table = Table(title="Verdict", title_justify="left", show_header=False)
    for what, figure, right in rows:
        table.add_row("[green]✓[/]" if right else "[bold red]✗[/]", what, figure)
    console.print(table)
    return all(right for _, _, right in rows)
