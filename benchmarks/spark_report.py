"""Results of `spark.py`: lines, goals, and both tables on the terminal and in `results/`."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from run import RESULTS, machine

RATE_MARGIN_MS = 80.0
SINK_GOAL = 100_000


@dataclass
class Line:
    what: str
    values: dict[str, list[float]] = field(default_factory=dict)
    """Figures by source, one value per round."""
    unit: str = "rows/s"

    def add(self, source: str, value: float) -> None:
        self.values.setdefault(source, []).append(value)

    def ratio(self, of: str, to: str) -> list[float]:
        """Round by round."""
        return [a / b for a, b in zip(self.values.get(of, []), self.values.get(to, []), strict=False)]


# ------------------------------------------------------------------------------------------------------------- goals


def verdicts(lines: list[Line]) -> list[tuple[str, str, str, bool | None]]:
    """Returns name, figure, goal and result (None: not measured) of each goal."""
    found: list[tuple[str, str, str, bool | None]] = []
    by_start = {line.what.split(",")[0] + line.unit: line for line in lines}
    batch, stream = by_start.get("batchrows/s"), by_start.get("streamrows/s")
    one, latency = (
        next((line for line in lines if text in line.what), None) for text in ("triggerExecution", "from send")
    )
    if batch is not None:
        found.append(_ratio("batch, evenq to Kafka", batch.ratio("evenq", "kafka"), 2.0))
        found.append(_ratio("batch, evenq to the ceiling", batch.ratio("evenq", "ceiling"), 0.5))
    for line in lines:
        if line.what.startswith("broker CPU in batch") and line.values.get("evenq"):
            used = statistics.median(line.values["evenq"])
            found.append(("broker CPU, us/row", f"{used:.2f}", "<= 1", used <= 1.0))
        if line.what.startswith("idle query: CPU of its runner"):
            share = statistics.median(line.values["evenq"])
            found.append(("idle query, % of a core", f"{share:.1f}", "<= 2", share <= 2.0))
        if line.what.startswith("idle query: calls"):
            rate = statistics.median(line.values["evenq"])
            found.append(("idle query, calls/s", f"{rate:.1f}", "<= 5", rate <= 5.0))
    if stream is not None:
        found.append(_ratio("stream, evenq to Kafka", stream.ratio("evenq", "kafka"), 1.0))
    sink = next((line for line in lines if line.what.startswith("sink")), None)
    if sink is not None:
        rate = statistics.median(sink.values["transactional"])
        found.append(("transactional sink, rows/s", f"{rate:,.0f}", f">= {SINK_GOAL:,}", rate >= SINK_GOAL))
        found.append(_ratio("transactional sink, evenq to Kafka", sink.ratio("transactional", "kafka"), 1.0))
    for line in (one, latency):
        if line is None or "evenq" not in line.values:
            continue
        ours = statistics.median(line.values["evenq"])
        for peer, margin in (("kafka", 0.0), ("rate-micro-batch", RATE_MARGIN_MS)):
            if peer in line.values:
                limit = statistics.median(line.values[peer]) + margin
                found.append((f"{line.what}, ms, beside {peer}", f"{ours:.0f}", f"<= {limit:.0f}", ours <= limit))
    return found


def _ratio(what: str, ratios: list[float], goal: float) -> tuple[str, str, str, bool | None]:
    if not ratios:
        return what, "-", f">= {goal}", None
    middle = statistics.median(ratios)
    return what, f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f">= {goal}", middle >= goal


def figures(lines: list[Line]) -> list[tuple[str, str, str]]:
    """Returns name, source, median, minimum and maximum of each line."""
    return [
        (
            line.what,
            source,
            f"{_number(statistics.median(values))} ({_number(min(values))} to {_number(max(values))}) {line.unit}",
        )
        for line in lines
        for source, values in line.values.items()
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def save(lines: list[Line], options: argparse.Namespace, load: list[float]) -> Path:
    """Returns the tables as text: date, machine and load, figures, goals, and each round."""
    now = dt.datetime.now(dt.UTC)
    path = RESULTS / f"{now:%Y-%m-%d}-spark.md"
    facts = machine()
    facts.pop("packages")
    machine_facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    text = [f"# The benchmarks of the Spark source, {now:%Y-%m-%d %H:%M} UTC", ""]
    text += [f"Machine: {machine_facts}; load over the run {min(load):.1f} to {max(load):.1f}."]
    text += [f"{options.rows:,} rows of 1 KiB, {options.rounds} rounds, local[2], median (least to most).", ""]
    text += ["| what | source | seen |", "|---|---|---|"]
    text += [f"| {what} | {source} | {seen} |" for what, source, seen in figures(lines)]
    text += ["", "| goal | seen | wanted | ok |", "|---|---|---|---|"]
    words = {True: "yes", False: "no", None: "-"}
    text += [f"| {what} | {seen} | {goal} | {words[ok]} |" for what, seen, goal, ok in verdicts(lines)]
    text += ["", "Round by round:", ""]
    for line in lines:
        for source, values in line.values.items():
            text.append(f"- {line.what}, {source}: {', '.join(map(_number, values))} {line.unit}")
    path.write_text("\n".join(text) + "\n")
    return path


def show(lines: list[Line], load: list[float]) -> None:
    console = Console()
    table = Table("what", "source", "median (least to most)")
    for row in figures(lines):
        table.add_row(*row)
    console.print(table)
    goals = Table("goal", "seen", "wanted", "ok")
    for what, seen, goal, ok in verdicts(lines):
        goals.add_row(what, seen, goal, {True: "[green]yes", False: "[red]no", None: "-"}[ok])
    console.print(goals)
    console.print(f"load {min(load):.1f} to {max(load):.1f} on {os.cpu_count()} cores")
