"""Run a campaign at full size: `python tests/proofs/run.py CAMPAIGN [options]`; `--help` behind it tells them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
CAMPAIGNS = ("storage", "kill_loop", "group_faults", "rolling_upgrade", "members")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in CAMPAIGNS:
        sys.exit(f"usage: python tests/proofs/run.py {{{','.join(CAMPAIGNS)}}} [--help]")
    sys.path[0] = HERE
    runpy.run_module(f"evenq_proofs.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
