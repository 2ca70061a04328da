"""Disk jobs of the timers: writing a run from memory, merging runs, reading ahead, searching runs for timers.

They run on the timers' own thread in steps of a few milliseconds, so that neither the loop nor a read-ahead waits long
for a merge. A job uses the loop's data of one moment; its results are attributes, valid after its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from evenq.store.io.disk import Disk
from evenq.store.timers import runs
from evenq.store.timers.keys import id_of
from evenq.store.timers.runs import BLOCK_ENTRIES, RunFile, RunWriter

PIECE: Final = BLOCK_ENTRIES  # keys of one source in memory while it is merged
SORT_PIECE: Final = 4_096  # keys per sort, which holds the interpreter


class Job(ABC):
    """A job for the timers' thread."""

    @abstractmethod
    def steps(self, disk: Disk) -> Iterator[None]:
        """Does the job, a few milliseconds per step. Raises OSError, StoreCorrupted."""


class WriteJob(Job):
    """A job that writes one run from sorted pieces of several sources, and keeps its first keys in memory."""

    def __init__(self, number: int, *, ahead: int, ended: Collection[int] = ()) -> None:
        self.number = number
        self.run: RunFile | None = None
        """The new run; None if nothing was left to write."""
        self.first_keys: list[bytes] = []
        self.dropped: list[int] = []
        """Those of `ended` that were found and left out."""
        self.ended = ended
        self._ahead = ahead

    @abstractmethod
    def sources(self, disk: Disk) -> list[Iterator[list[bytes]]]:
        """Returns what is merged: pieces in order."""

    def steps(self, disk: Disk) -> Iterator[None]:
        writer = RunWriter(disk, self.number)
        count = 0
        try:
            for piece in merged(self.sources(disk)):
                keys = self._left(piece) if self.ended else piece
                writer.add(keys)
                count += len(keys)
                if len(self.first_keys) < self._ahead:
                    self.first_keys += keys[: self._ahead - len(self.first_keys)]
                yield
            if count:
                self.run = writer.finish()
            else:
                writer.abandon()
        except BaseException:
            with suppress(OSError):  # the first error counts; a manifest never names this file
                writer.abandon()
            raise

    def _left(self, piece: list[bytes]) -> list[bytes]:
        ended, left = self.ended, []
        for key in piece:
            timer_id = id_of(key)
            if timer_id in ended:
                self.dropped.append(timer_id)
            else:
                left.append(key)
        return left


class SpillJob(WriteJob):
    """A job that writes a table of memory as a run."""

    def __init__(self, number: int, keys: list[bytes], *, ahead: int) -> None:
        super().__init__(number, ahead=ahead)
        self._keys = keys

    def sources(self, disk: Disk) -> list[Iterator[list[bytes]]]:  # noqa: ARG002  # of one shape with MergeJob
        keys = self._keys
        return [_sorted_pieces(keys[index : index + SORT_PIECE]) for index in range(0, len(keys), SORT_PIECE)]


class MergeJob(WriteJob):
    """A job that merges several runs into one, without what was used up or ended before it began."""

    def __init__(self, number: int, used: list[tuple[RunFile, int]], ended: Collection[int], *, ahead: int) -> None:
        super().__init__(number, ahead=ahead, ended=ended)
        self.used = used

    def sources(self, disk: Disk) -> list[Iterator[list[bytes]]]:
        return [pieces(disk, run, used) for run, used in self.used]


class ReadJob(Job):
    """A job that reads the next keys of a run."""

    def __init__(self, run: RunFile, start: int, count: int) -> None:
        self.run = run
        self.start = start
        self.count = count
        self.keys: list[bytes] = []

    def steps(self, disk: Disk) -> Iterator[None]:
        self.keys = runs.read(disk, self.run, self.start, self.count)
        yield


class ScanJob(Job):
    """A search of runs for timers below a log offset, or for certain entries."""

    def __init__(
        self,
        used: list[tuple[RunFile, int]],
        *,
        below: int = 0,
        keys: Iterable[bytes] = (),
        count_max: int = 0,
        skip: Collection[int] = (),
    ) -> None:
        self._used = used
        self._below = below.to_bytes(8, "big")
        self._keys = list(keys)
        self._count_max = count_max
        self._skip = skip
        self.found: list[bytes] = []
        self.whole = True
        """Whether the scan saw all that lies below."""

    def steps(self, disk: Disk) -> Iterator[None]:
        for run, used in self._used:
            for key in self._keys:
                if runs.holds(disk, run, key, used=used):  # a used-up entry has fired, or is somewhere else
                    self.found.append(key)
                yield
            if self._keys or run.lowest_id >= int.from_bytes(self._below, "big"):
                continue
            for piece in pieces(disk, run, used):
                self.found += [key for key in piece if key[8:16] < self._below and id_of(key) not in self._skip]
                if len(self.found) >= self._count_max:
                    self.whole = False
                    return
                yield


def merged(sources: list[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Yields pieces of all sources in one order. Sorting pieces that are sorted already is merging, in C."""
    open_sources = [(piece, source) for source in sources if (piece := next(source, None))]
    while open_sources:
        bound = min(piece[-1] for piece, _ in open_sources)
        taken: list[bytes] = []
        left = []
        for piece, source in open_sources:
            index = bisect_right(piece, bound)
            taken += piece[:index]
            rest = piece[index:] or next(source, [])
            if rest:
                left.append((rest, source))
        open_sources = left
        taken.sort()
        yield taken


def _sorted_pieces(keys: list[bytes]) -> Iterator[list[bytes]]:
    keys.sort()
    for index in range(0, len(keys), PIECE):
        yield keys[index : index + PIECE]


def pieces(disk: Disk, run: RunFile, used: int) -> Iterator[list[bytes]]:
    """Yields the rest of a run from entry `used` on."""
    start = used - used % BLOCK_ENTRIES
    while start < run.count:
        keys = runs.read(disk, run, start, PIECE)
        start += len(keys)
        skip = max(0, used - (start - len(keys)))
        if keys[skip:]:
            yield keys[skip:]
