"""Common parts of the small benchmarks: temporary folders, rounds with their spread, a table, a line in a JSON file.

Each round measures a figure and its floor, so that other work on the machine affects both; shown are median, minimum
and maximum. The garbage collector is set as in our servers (`evenq.serving.program.run`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Line:
    """One line of the table: a speed, its ratio to the floor in the same round, and the goal of that ratio."""

    name: str
    unit: str
    goal: float | None = None
    speeds: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [speed / floor for speed, floor in zip(self.speeds, self.floors, strict=True)]

    def shown(self) -> str:
        low, middle, high = _span(self.ratios)
        kept = "" if self.goal is None else f"{self.goal:>6.2f} {'yes' if middle >= self.goal else 'no':<4}"
        return (
            f"{self.name:<36}{statistics.median(self.speeds):>12,.0f} {self.unit:<11}"
            f"{statistics.median(self.floors):>12,.0f}{middle:>7.2f} ({low:.2f}..{high:.2f}){kept:<12}"
            f"{self.notes[len(self.notes) // 2] if self.notes else ''}"
        )


def _span(values: list[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def arguments(document: str | None, *, seconds: float) -> argparse.ArgumentParser:
    """Returns a parser with the common options."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="of one figure in one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the data folders; default: the system's")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="append the results as one line")
    parser.add_argument("--uvloop", action="store_true")
    return parser


@contextmanager
def folder_in(root: Path | None) -> Iterator[Path]:
    """Makes a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="evenq-bench-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def settle_collector() -> None:
    """Sets the garbage collector as in our servers."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def measure(line: Line, rounds: int, work: Callable[[], float], floor: Callable[[], float]) -> Line:
    """Runs both in turn in changing order, so that neither always follows the other's dirty pages."""
    for number in range(rounds):
        if number % 2:
            line.speeds.append(work())
            line.floors.append(floor())
        else:
            line.floors.append(floor())
            line.speeds.append(work())
    return line


def report(title: str, lines: list[Line], file: Path | None) -> None:
    """Prints the table and appends it to `file`."""
    print(f"{title}\n{'':<36}{'median':>12} {'':<11}{'floor':>12}{'ratio':>7} {'(spread)':<12}{'  goal':<12}")
    for line in lines:
        print(line.shown())
    if file is not None:
        facts = {
            "benchmark": title,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "lines": [{**asdict(line), "ratios": [round(ratio, 3) for ratio in line.ratios]} for line in lines],
        }
        with file.open("a") as out:
            out.write(json.dumps(facts) + "\n")
