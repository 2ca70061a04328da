"""`python tests/proofs/run.py group_faults links|kills`: broken links or kills of a group of copies, with a verdict.

Exit code 0: every promise was kept. 1: one was not; then the folder stays, and the last line says how to get there
again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from evenq_proofs.group_faults.campaign import FaultRun
from evenq_proofs.group_faults.kills import GroupKills
from evenq_proofs.group_faults.places import RECORDS
from evenq_proofs.group_faults.shapes import SHAPES
from evenq_proofs.ledgers import append_row, commit, say, today

LEDGER_HEAD = """# Broken links and kills of groups of copies that were run

One line a run of `python tests/proofs/run.py group_faults links|kills --ledger tests/chaos/group_ledger.md` (reliability T5
and T3, three copies). Promises: sends, acks and commits that were answered OK.

| date | commit | what | mode | record | applied | promises | elections | slowest recovery | minutes | seed | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(
        prog="python tests/proofs/run.py group_faults", description="break a group of copies"
    )
    parser.add_argument("what", choices=("links", "kills"))
    parser.add_argument("--seconds", type=float, default=180, help="links: for each shape")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES], help="links: which, in this order; default all")
    parser.add_argument("--cycles", type=int, default=100, help="kills: how many")
    parser.add_argument("--mode", choices=("sync", "memory"), default="sync")
    parser.add_argument("--record", choices=RECORDS, default="lease", help="where the group record stands")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where data, logs and the history go; default a new one")
    parser.add_argument("--ledger", type=Path, help="append a line with the result to this file")
    chosen = parser.parse_args()
    chosen.shapes = chosen.shapes or [name for name, shape in SHAPES.items() if chosen.record in shape.records]
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="evenq-group-"))
    folder.mkdir(parents=True, exist_ok=True)
    begun, run = time.monotonic(), made(chosen, folder)
    try:
        run.run()
    except AssertionError as error:
        run.problems.append(str(error))
    sys.stdout.write(run.text())
    if chosen.ledger:
        append_line(chosen.ledger, run, (time.monotonic() - begun) / 60)
    if run.problems:
        again = f"--shapes {' '.join(chosen.shapes)} --seconds {chosen.seconds}"
        again = again if chosen.what == "links" else f"--cycles {chosen.cycles}"
        sys.stdout.write(
            f"everything is in {folder}; again: python tests/proofs/run.py group_faults {chosen.what} {again} "
            f"--mode {chosen.mode} --record {chosen.record} --seed {chosen.seed}\n"
        )
    return 1 if run.problems else 0


def made(chosen: argparse.Namespace, folder: Path) -> FaultRun | GroupKills:
    """The run that was asked for."""
    if chosen.what == "links":
        return FaultRun(
            folder, chosen.shapes, chosen.seconds, seed=chosen.seed, mode=chosen.mode, record=chosen.record, say=say
        )
    return GroupKills(folder, chosen.cycles, seed=chosen.seed, mode=chosen.mode, record=chosen.record, say=say)


def append_line(path: Path, run: FaultRun | GroupKills, minutes: float) -> None:
    """Add one line to the ledger, which is begun if it is not there."""
    links = isinstance(run, FaultRun)
    applied = run.applied if isinstance(run, FaultRun) else run.killed
    cells = [
        today(), commit(), "links" if links else "kills", run.mode, run.record,
        f"{sum(applied.values())} of {len(applied)} kinds", f"{run.promises:,}", str(run.elections),
        f"{run.slowest_ms} ms", f"{minutes:.1f}", str(run.seed),
        f"{len(run.problems)} wrong" if run.problems else "clean",
    ]  # fmt: skip
    append_row(path, LEDGER_HEAD, cells)


if __name__ == "__main__":
    sys.exit(main())
