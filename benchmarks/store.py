"""The benchmarks of the store, one after the other, saved with facts of the machine.

python benchmarks/store.py [--quick] [--only NAME ...] [--no-save]

Each is a program of `benchmarks/micro` with its own floor or peer in the same run. This one runs them with the sizes of
their goals and writes their commands and output to `benchmarks/results/<date>-store.md`. The full run takes about half
an hour and 25 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
FULL = {
    "append": ["--uvloop"],
    "group_commit": ["--uvloop"],
    "reading": ["--rounds", "5"],
    "index": ["--gib", "1", "--seconds", "5", "--rounds", "5"],
    "recovery": ["--gib", "10", "--rounds", "3"],
    "many_queues": ["--messages", "20000000", "--rounds", "2", "--uvloop"],
    "timers": ["--count", "1000000"],
    "local_queues": ["--rounds", "3"],
}
QUICK = {
    "append": ["--seconds", "0.5", "--rounds", "1"],
    "group_commit": ["--seconds", "0.5", "--rounds", "1"],
    "reading": ["--rounds", "1"],
    "index": ["--gib", "0.1", "--seconds", "1", "--rounds", "1"],
    "recovery": ["--gib", "0.2", "--rounds", "1"],
    "many_queues": ["--messages", "100000", "--queues", "500", "--rounds", "1"],
    "timers": ["--count", "50000", "--seconds", "1"],
    "local_queues": ["--rounds", "1", "--seconds", "0.5", "--stored", "2000"],
}


def machine() -> str:
    """Returns one line with the facts that the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {system}"


def run(name: str, options: list[str]) -> tuple[str, int]:
    """Returns command and output as Markdown, and the exit code."""
    began = time.monotonic()
    command = [sys.executable, str(HERE / "micro" / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip("\n")
    if done.returncode not in {0, 1}:
        text += "\n" + done.stderr.strip()
    shown = " ".join(["python", f"benchmarks/micro/{name}.py", *options])
    return f"## {name}\n\n```console\n$ {shown}\n{text}\n```\n\nTook {took:.0f} s.\n", done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, two minutes, nothing saved")
    parser.add_argument("--only", nargs="+", choices=sorted(FULL), default=list(FULL))
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    today = datetime.now(UTC).date().isoformat()
    parts = [f"# The store's benchmarks, {today}\n\nMachine: {machine()}.\n"]
    worst = 0
    for number, name in enumerate(options.only, 1):
        print(f"[{number}/{len(options.only)}] {name} ...", flush=True)
        text, code = run(name, sizes[name])
        print(text, flush=True)
        parts.append(text)
        worst = max(worst, code)
    if not options.quick and not options.no_save:
        target = HERE / "results" / f"{today}-store.md"
        target.write_text("\n".join(parts))
        print(f"kept in {target.relative_to(HERE.parent)}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
