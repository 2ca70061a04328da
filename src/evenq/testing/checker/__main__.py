"""`python -m evenq.testing.checker FILE...`: checks one history, or the merged histories of several recorders, and
prints the table.

Exit code 0 if nothing was found, 1 if something was, 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from evenq.errors import BadRequest
from evenq.testing.checker import Tolerances, check
from evenq.testing.history import merge_histories, read_history

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evenq.testing.checker", description="Check recorded histories of an evenq cluster."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSONL histories; several are merged by time"
    )
    parser.add_argument(
        "--recovery-ms-max",
        type=int,
        default=Tolerances().recovery_ms_max,
        help="longest recovery after a fault (default %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        histories = [read_history(path) for path in options.files]
        events = histories[0] if len(histories) == 1 else merge_histories(list(histories))
        report = check(events, limits=Tolerances(recovery_ms_max=options.recovery_ms_max))
    except (OSError, BadRequest) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    gc.disable()  # a history has no cycles, and scans of its millions of events take half of the time
    sys.exit(main())
