"""`evenq store verify` on a stopped store: the files must be right too, not only what is served from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def verified(data: Path) -> list[str]:
    """What `evenq store verify` finds wrong in a folder; nothing if it is clean."""
    done = subprocess.run(
        [sys.executable, "-m", "evenq.cli", "store", "verify", str(data)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    return [f"evenq store verify {data}: exit code {done.returncode}: {(done.stdout + done.stderr)[-2_000:]}"]
