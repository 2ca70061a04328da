"""`python tests/proofs/run.py members --minutes 15 --stops 14`: members come and go while brokers restart, with a verdict.

Exit code 0: nothing was lost, late or hidden for too long. 1: something was; then the folder stays.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from evenq_proofs.ledgers import say
from evenq_proofs.members.campaign import HIDDEN_MS_MAX, Campaign
from evenq_proofs.members.clients import SDKS


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(
        prog="python tests/proofs/run.py members",
        description="members of official SDKs join, leave and are killed while brokers stop and start",
    )
    parser.add_argument("--minutes", type=float, default=15, help="of all slots together")
    parser.add_argument("--stops", type=int, default=0, help="of brokers; default one a minute, less one")
    parser.add_argument("--sdks", default=",".join(SDKS), help="some of go,java,python")
    parser.add_argument("--hidden", type=int, default=HIDDEN_MS_MAX, help="longest after a member's end, ms")
    parser.add_argument("--folder", type=Path, help="where data and logs go; default a new one")
    chosen = parser.parse_args()
    sdks = tuple(chosen.sdks.split(","))
    if unknown := set(sdks) - set(SDKS):
        parser.error(f"--sdks: {', '.join(sorted(unknown))} is not one of {', '.join(SDKS)}")
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="evenq-members-"))
    stops = chosen.stops or max(2, int(chosen.minutes) - 1)
    run = Campaign(folder, sdks, stops, chosen.minutes, hidden_ms_max=chosen.hidden, say=say)
    try:
        run.run()
    except AssertionError as error:
        run.problems.append(str(error))
    sys.stdout.write(run.text())
    if run.problems:
        sys.stdout.write(f"everything is in {folder}\n")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
