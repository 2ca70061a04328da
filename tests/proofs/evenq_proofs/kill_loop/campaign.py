"""What a run of the kill loop did so far, and what each next cycle is to do: failpoint, random moment or clean stop.

The point that was hit least comes first, at a passing drawn from how often one cycle passes it. Some need a prepared
folder: a fresh one, a torn tail, lost derived files, or a clean stop; `Needs` says which. Pure but for the counts file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from evenq.runtime.failpoints import POINTS, read_counts

BROKER_ONLY: Final = ("journal.", "opening.")
SINK_ONLY: Final = ("staging.", "transact.", "schedule.")
"""No writer of batches, no transaction of a consumer and no schedule runs in the loop. `test_spark_sink.py`,
`test_exactly_once.py` and `test_schedules.py` of `tests/integration` end brokers there.
"""
FOLLOWER_ONLY: Final = ("epochs.", "replay.", "replica.")
"""No broker of this loop follows another; `group_faults.kills` ends those that do."""
POINT_SHARE: Final = 0.8
CLEAN_SHARE: Final = 0.07


class Needs(StrEnum):
    """How the folder must be before a cycle, so that a point can be passed."""

    NOTHING = "nothing"
    FRESH = "a fresh folder"
    TORN = "a torn tail"
    REBUILD = "lost derived files"
    CLEAN_STOP = "a clean stop"


class Ending(StrEnum):
    """How a cycle was ended."""

    POINT = "failpoint"
    RANDOM = "random moment"
    CLEAN = "clean stop"


_NEEDS: Final = {
    "identity.": Needs.FRESH,
    "opening.key": Needs.FRESH,
    "recovery.cut": Needs.TORN,
    "recovery.rebuilding": Needs.REBUILD,
    "queue.linked": Needs.REBUILD,
    "close.": Needs.CLEAN_STOP,
}


def needs_of(point: str) -> Needs:
    """What a point needs."""
    return next((needs for start, needs in _NEEDS.items() if point.startswith(start)), Needs.NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle's orders."""

    number: int
    point: str = ""
    """Failpoint to arm, `NAME:PASSING`; empty for none."""
    needs: Needs = Needs.NOTHING
    wait_ms: int = 0
    """From its being ready to SIGKILL, or to the clean stop; with a failpoint the longest time it may take."""

    @property
    def ending(self) -> Ending:
        """How it should end."""
        if self.point:
            return Ending.POINT
        return Ending.CLEAN if self.needs is Needs.CLEAN_STOP else Ending.RANDOM


@dataclass(slots=True)
class Campaign:
    """All cycles of one run."""

    rng: random.Random
    counts: Path
    """File in which the processes count their failpoints."""
    endings: Counter[Ending] = field(default_factory=Counter)
    cycles: int = 0
    broker_cycles: int = 0

    def plan(self, points: Collection[str], *, first: bool, killed: bool, kill_ms: tuple[int, int]) -> Cycle:
        """The next cycle. `points`: those that this kind of process can pass. `first`: the folder is fresh. `killed`:
        the last cycle was killed after its start, so its tail may be torn.
        """
        self.cycles += 1
        self.broker_cycles += any(point.startswith(BROKER_ONLY) for point in points)
        rng = self.rng
        wait_ms = rng.randint(*kill_ms)
        if rng.random() >= POINT_SHARE:
            clean = rng.random() < CLEAN_SHARE / (1 - POINT_SHARE)
            return Cycle(number=self.cycles, needs=Needs.CLEAN_STOP if clean else Needs.NOTHING, wait_ms=wait_ms)
        possible = [point for point in points if self._possible(needs_of(point), first=first, killed=killed)]
        counted = read_counts(self.counts)
        fewest = min(counted[point].hit for point in possible)
        point = rng.choice([point for point in possible if counted[point].hit == fewest])
        passed = counted[point].passed / (self.broker_cycles if point.startswith(BROKER_ONLY) else self.cycles)
        at = 1 + rng.randrange(max(1, min(200, int(passed * 0.7))))
        return Cycle(number=self.cycles, point=f"{point}:{at}", needs=needs_of(point), wait_ms=kill_ms[1] * 3)

    def _possible(self, needs: Needs, *, first: bool, killed: bool) -> bool:
        if needs is Needs.FRESH:
            return first
        return needs in {Needs.NOTHING, Needs.CLEAN_STOP} or (killed and not first)

    def hits(self) -> dict[str, int]:
        """How often each point ended a process."""
        counted = read_counts(self.counts)
        return {name: counted[name].hit for name in broker_points()}

    def passed(self) -> dict[str, int]:
        """How often each point was passed."""
        counted = read_counts(self.counts)
        return {name: counted[name].passed for name in broker_points()}


def store_points() -> list[str]:
    """What a store without a broker can pass."""
    return [point for point in POINTS if not point.startswith((*BROKER_ONLY, *SINK_ONLY, *FOLLOWER_ONLY))]


def broker_points() -> list[str]:
    """What the broker of the loop can pass."""
    return [point for point in POINTS if not point.startswith((*SINK_ONLY, *FOLLOWER_ONLY))]
