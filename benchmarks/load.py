"""The load generator: Go, the official client's stubs, one JSON line of figures. Built once into a cache folder.

Its source is not ours; it lies in the folder BENCH_TOOLS (default `../shared/bench` beside the project), see README.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent


def built() -> Path:
    """The program, built if its source has changed since. Ends the run with a sentence if it cannot be built."""
    tools = Path(os.environ.get("BENCH_TOOLS") or PROJECT.parent / "shared" / "bench")
    source = tools / "loadgen"
    if not (source / "main.go").is_file():
        raise SystemExit(
            "no load generator: `main.go` is not in the folder loadgen of BENCH_TOOLS (default ../shared/bench); "
            "set BENCH_TOOLS to the folder that holds `loadgen/`"
        )
    files = sorted(path for path in source.iterdir() if path.is_file())
    mark = hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenq-bench"
    program = cache / f"loadgen-{mark}"
    if program.exists():
        return program
    go = shutil.which("go") or ("/usr/local/go/bin/go" if Path("/usr/local/go/bin/go").exists() else None)
    if go is None:
        raise SystemExit("no `go` to build the load generator with: install Go 1.24 or newer")
    cache.mkdir(parents=True, exist_ok=True)
    copy = cache / f"source-{mark}"
    shutil.copytree(source, copy, dirs_exist_ok=True)
    subprocess.run([go, "build", "-o", str(program), "."], cwd=copy, check=True)
    shutil.rmtree(copy)
    return program


def run(program: Path, mode: str, address: str, **flags: object) -> dict[str, Any]:
    """One run's figures. Ends everything with what the program said if it failed or lost requests."""
    options = [text for name, value in flags.items() for text in (f"-{name}", str(value))]
    done = subprocess.run([str(program), mode, "-addr", address, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the load generator failed ({mode} {' '.join(options)}): {done.stderr.strip()}")
    figures: dict[str, Any] = json.loads(done.stdout)
    if figures.get("errors") or figures.get("dups"):
        raise SystemExit(f"{mode} {' '.join(options)}: errors or repeats: {done.stdout.strip()} {done.stderr.strip()}")
    return figures
