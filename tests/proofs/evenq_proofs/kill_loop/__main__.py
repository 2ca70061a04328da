"""`python tests/proofs/run.py kill_loop`: many cycles, a progress bar, a verdict, a line for tests/chaos/ledger.md.

Exit code 0: nothing lost, nothing wrong. 1: something is; then the folder stays, and the last line says how to get
there again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from evenq_proofs.kill_loop.ledger import append_line
from evenq_proofs.kill_loop.loop import KillLoop, Progress


def show(progress: Progress) -> None:
    """One line that grows."""
    width = 30
    full = width * progress.done // max(1, progress.wanted)
    bar = "#" * full + "." * (width - full)
    text = f"\r[{bar}] {progress.done}/{progress.wanted} cycles, {progress.seconds:.0f} s, points {progress.points}"
    sys.stderr.write(f"{text}, seed {progress.seed} ")
    sys.stderr.flush()


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(
        prog="python tests/proofs/run.py kill_loop", description="kill -9, again and again"
    )
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker-share", type=float, default=0.1, help="share of the cycles with a real broker")
    parser.add_argument("--folder", type=Path, help="where the data folders go; default a new one")
    parser.add_argument("--ledger", type=Path, help="append a line with the result to this file")
    parser.add_argument("--hits-min", type=int, default=0, help="fail if a failpoint ended fewer processes than this")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="evenq-kills-"))
    loop = KillLoop(
        folder, flush=chosen.flush, seed=chosen.seed, cycles=chosen.cycles, broker_share=chosen.broker_share, show=show
    )
    result = loop.run()
    sys.stderr.write("\n")
    few = {point: hits for point, hits in result.hits.items() if hits < chosen.hits_min}
    sys.stdout.write(result.text())
    if few:
        sys.stdout.write(f"failpoints with fewer than {chosen.hits_min} hits: {few}\n")
    if chosen.ledger:
        append_line(chosen.ledger, result)
    if result.problems:
        sys.stdout.write(
            f"again: python tests/proofs/run.py kill_loop --cycles {chosen.cycles} --flush {chosen.flush} "
            f"--seed {chosen.seed} --broker-share {chosen.broker_share}\n"
        )
    return 1 if result.problems or few else 0


if __name__ == "__main__":
    sys.exit(main())
