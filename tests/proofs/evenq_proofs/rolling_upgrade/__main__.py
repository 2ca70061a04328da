"""`python tests/proofs/run.py rolling_upgrade --rounds 20 --from COMMIT`: replace copies one by one, with a verdict.

Exit code 0: every promise was kept. 1: one was not; then the folder stays.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evenq_proofs.ledgers import append_row, say, today
from evenq_proofs.rolling_upgrade.rounds import STALL_MS_MAX, RollingUpgrade
from evenq_proofs.rolling_upgrade.versions import ROOT, commit_before, this_version, version_of

LEDGER_HEAD = """# Rolling upgrades that were run

One line a run of `make replication-upgrade` (reliability T9): three copies and two nameservers, replaced one after the
other under load, from the old version to the new one and back. Stalls: the longest time without an acknowledgement
while a pod was replaced, of all senders together.

| date | old | new | mode | rounds | messages | stall, median and longest | minutes | verdict |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(
        prog="python tests/proofs/run.py rolling_upgrade", description="replace the copies of a group one by one"
    )
    parser.add_argument("--rounds", type=int, default=20, help="of three pods each")
    parser.add_argument(
        "--from",
        dest="old",
        default="",
        help="commit of the old version; default the newest tag or where this branch left main",
    )
    parser.add_argument("--mode", choices=("sync", "memory"), default="sync")
    parser.add_argument("--stall", type=int, default=STALL_MS_MAX, help="longest write stall of a pod, ms")
    parser.add_argument("--folder", type=Path, help="where data and logs go; default a new one")
    parser.add_argument("--ledger", type=Path, help="append a line with the result to this file")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="evenq-upgrade-"))
    begun = time.monotonic()
    old = version_of(chosen.old or commit_before(), ROOT / "build" / "versions")
    run = RollingUpgrade(
        folder, old, this_version(), chosen.rounds, mode=chosen.mode, stall_ms_max=chosen.stall, say=say
    )
    try:
        run.run()
    except AssertionError as error:
        run.problems.append(str(error))
    sys.stdout.write(run.text())
    if chosen.ledger:
        append_line(chosen.ledger, run, (time.monotonic() - begun) / 60)
    if run.problems:
        sys.stdout.write(f"everything is in {folder}\n")
    return 1 if run.problems else 0


def append_line(path: Path, run: RollingUpgrade, minutes: float) -> None:
    """Add one line to the ledger, which is begun if it is not there."""
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    stalls = sorted(together for together, _ in run.stalls_ms) or [0]
    cells = [
        today(), run.old.name, commit, run.mode, str(run.rounds),
        f"{run.outcome.acknowledged:,}", f"{stalls[len(stalls) // 2]} and {stalls[-1]} ms", f"{minutes:.1f}",
        f"{len(run.problems)} wrong" if run.problems else "clean",
    ]  # fmt: skip
    append_row(path, LEDGER_HEAD, cells)


if __name__ == "__main__":
    sys.exit(main())
