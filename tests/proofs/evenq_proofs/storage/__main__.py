"""All proofs of the store at their release size: `python tests/proofs/run.py storage [--fast] [--only KIND] [--ledger F]`.

Prints a line with rate and time left every few seconds, then one line a kind. Ends with 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

from evenq.runtime.clock import SystemClock
from evenq_proofs.storage.campaign import KINDS, Job, jobs, run_job
from evenq_proofs.storage.judge import Tally
from evenq_proofs.storage.processes import run_all

SHOWN = 20


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python tests/proofs/run.py storage", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="the size of every day")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind; may be given several times")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ledger", type=Path, help="append one line about this run to this file")
    parser.add_argument("--job", type=Job.of, help="only this job, as a violation names it")
    parser.add_argument("--case", default="", help="only this case of the job")
    arguments = parser.parse_args()
    if arguments.job is not None:
        tallies = {arguments.job.kind: run_job(arguments.job, only=arguments.case)}
        seconds = tallies[arguments.job.kind].seconds
    else:
        todo = [job for job in jobs(full=not arguments.fast) if not arguments.only or job.kind in arguments.only]
        started = SystemClock().monotonic_ms()
        tallies = run_all(todo, processes=arguments.processes, show=_say)
        seconds = (SystemClock().monotonic_ms() - started) / 1000
    total = Tally()
    for kind in KINDS:
        if kind in tallies:
            _say(_line(kind, tallies[kind]))
            total.add(tallies[kind])
    _say(_line("all", total))
    for violation in total.violations[:SHOWN]:
        _say(violation[:2_000])
    _say("damaged: " + ", ".join(f"{kind} {count}" for kind, count in sorted(total.damaged.items())))
    _say(f"{total.images} images in {seconds:.0f} s, {len(total.violations)} violations")
    if arguments.ledger is not None:
        _note(arguments.ledger, tallies, seconds, sys.argv[1:])
    return 1 if total.violations else 0


def _line(kind: str, tally: Tally) -> str:
    return (
        f"{kind:<10} {tally.images:>7} images {tally.points:>6} points {tally.mutations:>6} mutations "
        f"{tally.refused:>6} refused {tally.seconds:>6.0f} s {len(tally.violations):>3} violations"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _note(ledger: Path, tallies: dict[str, Tally], seconds: float, arguments: list[str]) -> None:
    """One line: date, commit, command, images, seconds, result by kind."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    day = dt.datetime.now(dt.UTC).date().isoformat()
    shown = [word for word in arguments if "/" not in word and word != "--ledger"]
    command = " ".join(["python tests/proofs/run.py storage", *shown])
    total = Tally()
    parts = []
    for kind, tally in tallies.items():
        total.add(tally)
        number = f"{tally.mutations} mutations" if tally.mutations else f"{tally.points} points, {tally.images} images"
        parts.append(f"{kind}: {number}, {tally.seconds:.0f} s")
    result = f"{len(total.violations)} violations, {total.refused} refused by name; {'; '.join(sorted(parts))}"
    with ledger.open("a", encoding="utf-8") as file:
        file.write(f"| {day} | {commit.strip()} | `{command}` | {total.images} | {seconds:.0f} | {result} |\n")


if __name__ == "__main__":
    sys.exit(main())
