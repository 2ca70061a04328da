"""The third act of the demo: a Spark stream and two consumers read the year once more.

By default the stream is the only member of one group, and the consumers share another; each group counts each flight
once. With `--shared` all three are members of one group, which counts each flight once. Every reader is a process that
reports its flights.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.progress import Progress

from evenq.errors import InternalError
from evenq.runtime.clock import Clock
from evenq.testing.history import EntryKind, read_history
from flight_demo.flights import Delay
from flight_demo.members import MemberProcess, sums_of
from flight_demo.spark_jobs import SparkJobs

GROUP = "gate-desk"
STREAM_GROUP = "gate-desk-spark"
CONSUMERS = ("eva", "fay")
ACT_SECONDS = 180
STOP_SECONDS = 60
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """The counts of one reader."""

    flights: Counter[int]
    """By their number in the file."""
    delays: Mapping[str, Delay]
    """By carrier."""


class Reader(Protocol):
    """A process that counts flights."""

    @property
    def count(self) -> int:
        """Flights so far, approximately."""

    def failure(self) -> str:
        """Returns the reason of its end; empty while it runs."""

    def leave(self) -> None:
        """Stops it after a last commit."""

    def counted(self) -> ReaderCounts:
        """Returns its counts, after `leave`."""


@dataclass(frozen=True, slots=True)
class Desk:
    group: str
    readers: Sequence[Reader]

    @property
    def count(self) -> int:
        return sum(reader.count for reader in self.readers)


class DemoConsumer:
    """A member that uses the SDK (`members`)."""

    def __init__(self, name: str, *, endpoint: str, topic: str, group: str, folder: Path) -> None:
        self._member = MemberProcess(name, endpoint=endpoint, topic=topic, group=group, folder=folder)
        self._folder = folder

    @property
    def count(self) -> int:
        return self._member.count

    def failure(self) -> str:
        code = self._member.process.poll()
        return "" if code is None else f"member {self._member.name} ended with {code}"

    def leave(self) -> None:
        self._member.leave()

    def counted(self) -> ReaderCounts:
        return counted_by(self._folder, self._member.name)


class SparkStream:
    """The Spark stream (`spark/examples/count_flights_stream.py`)."""

    def __init__(
        self, jobs: SparkJobs, *, endpoint: str, topic: str, group: str, folder: Path, options: Sequence[str] = ()
    ) -> None:
        self._jobs, self._out = jobs, folder / "counted"
        source = ("--endpoint", endpoint, "--topic", topic, "--group", group)
        target = ("--checkpoint", str(folder / "checkpoint"), "--out", str(self._out))
        jobs.begin("count_flights_stream", *source, *target, "--option", *options)

    @property
    def count(self) -> int:
        return self._jobs.rows

    def failure(self) -> str:
        return "" if self._jobs.running else "the Spark stream has ended"

    def leave(self) -> None:
        self._jobs.interrupt()
        self._jobs.wait(STOP_SECONDS)

    def counted(self) -> ReaderCounts:
        flights: Counter[int] = Counter()
        delays: dict[str, Delay] = {}
        for row in rows_of(self._out):
            flights[int(row["flight"])] += 1
            delays.setdefault(row["carrier"], Delay()).add(row.get("dep_delay", ""))
        return ReaderCounts(flights, delays)


class ThirdAct:
    """One run of the act: `run` starts and stops the readers, `verdict` compares. GROUP must exist with a strategy."""

    def __init__(
        self, jobs: SparkJobs, *, endpoint: str, topic: str, folder: Path, total: int, clock: Clock, shared: bool
    ) -> None:
        self._jobs, self._total, self._clock, self._shared = jobs, total, clock, shared
        self._endpoint, self._topic, self._folder = endpoint, topic, folder
        self._desks: list[Desk] = []
        """Each group once, with all its readers."""

    def run(self, bars: Progress) -> None:
        """Runs all readers. Raises InternalError if one fails or they take longer than ACT_SECONDS."""
        self._folder.mkdir(parents=True, exist_ok=True)
        readers: list[Reader] = []
        try:
            self._desks = self._start(readers)
            self._wait(bars)
            for reader in readers:
                reader.leave()
        except BaseException:
            for reader in readers:
                if not reader.failure():
                    _let_go(reader)
            raise

    def verdict(self, truth: Mapping[str, Delay]) -> Iterator[tuple[str, str, bool]]:
        """Yields the lines for `show_verdict`: flights and delays of each group."""
        for desk in self._desks:
            yield from compared(desk.group, [reader.counted() for reader in desk.readers], truth, self._total)

    def _start(self, readers: list[Reader]) -> list[Desk]:
        at = {"endpoint": self._endpoint, "topic": self._topic}
        own = [] if self._shared else [STREAM_GROUP]
        options = ["assignment=shared"] if self._shared else []
        readers.append(SparkStream(self._jobs, **at, group=(*own, GROUP)[0], folder=self._folder, options=options))
        readers += [DemoConsumer(name, **at, group=GROUP, folder=self._folder) for name in CONSUMERS]
        stream, *consumers = readers
        return [Desk(GROUP, readers)] if self._shared else [Desk(GROUP, consumers), Desk(STREAM_GROUP, [stream])]

    def _wait(self, bars: Progress) -> None:
        shown = {
            desk.group: bars.add_task(f"{desk.group}, {members_of(desk.readers)}", total=self._total)
            for desk in self._desks
        }
        until_ms = self._clock.monotonic_ms() + ACT_SECONDS * 1000
        while True:
            for desk in self._desks:
                bars.update(shown[desk.group], completed=desk.count)
            if all(desk.count >= self._total for desk in self._desks):
                return
            for reader in (reader for desk in self._desks for reader in desk.readers):
                if why := reader.failure():
                    reader.leave()  # its own error is more precise
                    raise InternalError(why)
            if self._clock.monotonic_ms() > until_ms:
                counts = ", ".join(f"{desk.group} {desk.count:,}" for desk in self._desks)
                raise InternalError(f"after {ACT_SECONDS} s, of {self._total:,} flights: {counts}; see {self._folder}")
            threading.Event().wait(LOOK_SECONDS)


def compared(
    group: str, counted: Iterable[ReaderCounts], truth: Mapping[str, Delay], total: int
) -> Iterator[tuple[str, str, bool]]:
    """Compares the counts of one group with the file."""
    flights: Counter[int] = Counter()
    delays: dict[str, Delay] = {}
    for one in counted:
        flights.update(one.flights)
        for carrier, delay in one.delays.items():
            delays.setdefault(carrier, Delay()).include(delay)
    missing = sum(number not in flights for number in range(total))
    repeated = sum(times - 1 for times in flights.values())
    once = not missing and not repeated and len(flights) == total
    said = f"{len(flights):,} of {total:,}, missing {missing}, again {repeated}"
    yield f"{group} counted each flight once", said, once
    yield f"delays of {group} = delays of the file", f"{len(delays)} carriers", delays == dict(truth)


def counted_by(folder: Path, member: str) -> ReaderCounts:
    """Returns the flights of a member's history, and its own sums."""
    answers = (
        event.messages for event in read_history(folder / f"{member}.history.jsonl") if event.kind == EntryKind.OK
    )
    flights = Counter(int(one.body) for messages in answers for one in messages or ())
    return ReaderCounts(flights, sums_of(folder, member)[1])


def members_of(readers: Sequence[Reader]) -> str:
    """Returns the kinds of readers, for the bar."""
    consumers = sum(isinstance(reader, DemoConsumer) for reader in readers)
    words = [f"{consumers} consumers"] if consumers else []
    words += ["the Spark stream"] if consumers < len(readers) else []
    return " and ".join(words)


def rows_of(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the rows of all batches that Spark has finished."""
    for batch in sorted(folder.glob("batch-*")):
        if not (batch / "_SUCCESS").exists():
            continue
        for part in sorted(batch.glob("part-*.json")):
            with part.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def _let_go(reader: Reader) -> None:
    """Stops a reader after a failure that is already reported."""
    with suppress(InternalError):
        reader.leave()
