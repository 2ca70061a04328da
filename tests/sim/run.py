"""`make sim SEEDS=n`: play many seeds in parallel, print the story of each one that breaks a promise, remember it.

`--plant drain` (or another of evenq_sim.plants) plants a fault on purpose and ends with the first seed that finds it; such seeds are not
remembered. `--seed n` plays one seed and prints all of its history.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "proofs")]

from evenq_sim.plants import PLANTS  # noqa: E402 - the line above makes them importable
from evenq_sim.playing import run  # noqa: E402

REGRESSIONS = HERE / "regressions.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--plant", default="", choices=("", *PLANTS), help="a fault to plant")
    parser.add_argument("--seed", type=int, default=None, help="only this one, with all of its history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--open", action="store_true", help="report known open faults, too (evenq_sim.open_faults)")
    asked = parser.parse_args()
    if asked.seed is not None:
        return one(asked.seed, asked.plant, show_open=asked.open)
    return many(asked.first, asked.seeds, asked.plant, asked.jobs, show_open=asked.open)


def one(seed: int, plant: str, *, show_open: bool) -> int:
    outcome = run(seed, plant=plant, show_open=show_open)
    print(outcome.history.text() + "\n" + outcome.story())
    return 1 if outcome.problems else 0


def many(first: int, seeds: int, plant: str, jobs: int, *, show_open: bool) -> int:
    started, failed, virtual_ms = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        played = pool.imap(
            partial(played_of, plant=plant, show_open=show_open), range(first, first + seeds), chunksize=4
        )
        for count, (seed, ended_ms, story) in enumerate(played, start=1):
            virtual_ms += ended_ms
            if story:
                failed += 1
                clear = "\r" + " " * 78 + "\r" if sys.stderr.isatty() else ""
                print(f"{clear}{story}\n", flush=True)
                if plant:
                    print(f"the planted fault {plant!r} was found by seed {seed}, the {count}. one played")
                    return 0
                if not show_open:
                    remember(seed, story)
            show(count, seeds, failed, time.monotonic() - started)
    seconds = time.monotonic() - started
    print(f"\n{seeds} seeds, {virtual_ms / 3_600_000:.1f} hours of the world in {seconds:.0f} s: {failed} failed")
    return 1 if failed or plant else 0


def played_of(seed: int, *, plant: str, show_open: bool) -> tuple[int, int, str]:
    outcome = run(seed, plant=plant, show_open=show_open)
    return seed, outcome.ended_ms, outcome.story() if outcome.problems else ""


def remember(seed: int, story: str) -> None:
    known = REGRESSIONS.read_text().split("\n") if REGRESSIONS.exists() else []
    if str(seed) not in [line.partition(" ")[0] for line in known]:
        with REGRESSIONS.open("a") as lines:
            lines.write(f"{seed}  {story.splitlines()[1].strip()}\n")


def show(count: int, seeds: int, failed: int, seconds: float) -> None:
    if not sys.stderr.isatty() and count % 500:
        return
    done = 30 * count // seeds
    left = seconds / count * (seeds - count)
    bar = "#" * done + "." * (30 - done)
    print(f"\r[{bar}] {count}/{seeds}, {failed} failed, {left:.0f} s left ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
