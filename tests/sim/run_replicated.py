"""`make sim-replicated SEEDS=n`: play a group of three copies by seed, print the story of each one that breaks a promise.

`--plant NAME` plants a fault on purpose and ends with the first seed that finds it; `--mutants` (`make sim-mutants`) looks
for all of them, first by the seeds that are known to find each, and fails if one is not found. `--seed n` plays one seed and prints
what was done to it; `--history` prints every operation besides. From seed 10,000,000 on consumers transact as well.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "proofs")]

from replicated_sim.plants import FOUND_BY, PLANTS, first_seed  # noqa: E402 - the line above makes them importable
from replicated_sim.world import run_group  # noqa: E402

SHOWN_EACH = 100
MUTANT_SEEDS = 300
"""So many seeds at most look for a planted fault that no known seed finds."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a process tells of a seed."""

    seed: int
    story: str
    """Empty: no promise was broken."""
    problem: str
    """The first one, in a line."""
    ended_ms: int
    acknowledged: int
    elections: int
    cpu_s: float


@dataclass(slots=True)
class Sums:
    """Of all seeds so far."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    virtual_ms: int = 0
    acknowledged: int = 0
    elections: int = 0
    cpu_s: float = 0.0

    def add(self, played: Played) -> None:
        """One more."""
        self.seeds += 1
        self.virtual_ms += played.ended_ms
        self.acknowledged += played.acknowledged
        self.elections += played.elections
        self.cpu_s += played.cpu_s
        if played.story:
            self.failed.append(played.seed)

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds, {self.virtual_ms / 3_600_000:.1f} hours of the group, {self.acknowledged:,} answers "
            f"with OK, {self.elections:,} elections, {self.cpu_s / max(1, self.seeds):.2f} s of the processor a seed "
            f"({3_600 * self.seeds / max(0.001, self.cpu_s):,.0f} seeds an hour of a core): "
            f"{len(self.failed)} failed {self.failed[:20] or ''}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--plant", default="", choices=("", *PLANTS), help="a fault to plant")
    parser.add_argument("--mutants", action="store_true", help="look for every fault that can be planted")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    parser.add_argument("--history", action="store_true", help="with --seed: every operation, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args()
    if asked.seed is not None:
        outcome = run_group(asked.seed, plant=asked.plant)
        print(f"{outcome.text()}\n" * asked.history + outcome.story())
        return 1 if outcome.problems else 0
    if asked.mutants:
        return mutants(min(asked.seeds, MUTANT_SEEDS), asked.jobs)
    return many(asked.first, asked.seeds, asked.plant, asked.jobs)


def many(first: int, seeds: int, plant: str, jobs: int) -> int:
    sums = Sums()
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=100) as pool:
        for played in pool.imap(partial(played_of, plant=plant), range(first, first + seeds), chunksize=2):
            sums.add(played)
            if played.story:
                print(f"{played.story}\n", flush=True)
                if plant:
                    print(f"the planted fault {plant!r} was found by seed {played.seed}, the {sums.seeds}. one played")
                    return 0
            if sums.seeds % SHOWN_EACH == 0:
                print(sums, flush=True)
    print(sums)
    return 1 if sums.failed or plant else 0


def mutants(seeds: int, jobs: int) -> int:
    found = 0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=100) as pool:
        for plant in PLANTS:
            known = FOUND_BY[plant]
            first = first_seed(plant)
            order = [*known, *(seed for seed in range(first, first + seeds) if seed not in known)]
            found += is_found(pool, plant, order, jobs)
    print(f"{found} of {len(PLANTS)} planted faults were found")
    return 0 if found == len(PLANTS) else 1


def is_found(pool: multiprocessing.pool.Pool, plant: str, order: list[int], jobs: int) -> bool:
    """By one of these seeds, which is clean without it."""
    cpu_s = 0.0
    for first in range(0, len(order), jobs):
        for played in pool.map(partial(played_of, plant=plant), order[first : first + jobs], chunksize=1):
            cpu_s += played.cpu_s
            if played.story and not pool.apply(played_of, (played.seed,), {"plant": ""}).story:
                tried = order.index(played.seed) + 1
                print(f"found: {plant}, by seed {played.seed}, the {tried}. played, {cpu_s:.0f} s of the processor: {played.problem}", flush=True)  # fmt: skip
                return True
    print(f"NOT FOUND: {plant}, by {len(order)} seeds, {cpu_s:.0f} s of the processor", flush=True)
    return False


def played_of(seed: int, *, plant: str) -> Played:
    begun_s = time.process_time()
    try:
        outcome = run_group(seed, plant=plant)
    except Exception as error:  # noqa: BLE001  # a world that cannot be played is a finding, too
        return Played(
            seed, f"seed {seed}: the world ended: {error!r}", repr(error), 0, 0, 0, time.process_time() - begun_s
        )
    return Played(
        seed, outcome.story() if outcome.problems else "", "".join(outcome.problems[:1]), outcome.ended_ms, outcome.acknowledged, outcome.elections,
        time.process_time() - begun_s,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
