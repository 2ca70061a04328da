"""The load generators: Go programs with stubs of the official client that print one JSON line of figures.

`loadgen` is in the folder BENCH_TOOLS (default `../shared/bench` beside the project), see README.md. `replay` is in
this folder and sends requests that this process has prepared, so it can make every call. Both are built once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent


def tools() -> Path:
    """The folder with the load generator and the scripts that start peers."""
    return Path(os.environ.get("BENCH_TOOLS") or PROJECT.parent / "shared" / "bench")


def built() -> Path:
    """Returns the load generator, built if its source has changed. Ends the run with a message if that fails."""
    source = tools() / "loadgen"
    if not (source / "main.go").is_file():
        raise SystemExit(
            "no load generator: `main.go` is not in the folder loadgen of BENCH_TOOLS (default ../shared/bench); "
            "set BENCH_TOOLS to the folder that holds `loadgen/`"
        )
    return compiled(source, "loadgen")


def replay() -> Path:
    """Returns the program of the folder `replay`, built in the same way."""
    return compiled(PROJECT / "benchmarks" / "replay", "replay")


def compiled(source: Path, name: str) -> Path:
    """Returns the Go program of a folder, built once for each state of its source."""
    files = sorted(path for path in source.iterdir() if path.is_file())
    mark = hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenq-bench"
    program = cache / f"{name}-{mark}"
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
    """Returns one run's figures. Ends the run with the program's output if it failed or lost requests."""
    options = [text for name, value in flags.items() for text in (f"-{name}", str(value))]
    done = subprocess.run([str(program), mode, "-addr", address, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the load generator failed ({mode} {' '.join(options)}): {done.stderr.strip()}")
    figures: dict[str, Any] = json.loads(done.stdout)
    if figures.get("errors") or figures.get("dups"):
        raise SystemExit(f"{mode} {' '.join(options)}: errors or repeats: {done.stdout.strip()} {done.stderr.strip()}")
    return figures


@dataclass(frozen=True, slots=True)
class Replayed:
    """Output of one run of `replay`."""

    secs: float
    calls: int
    messages: int
    """Received messages."""
    output: bytes
    """`call`: the answers, framed; `consume` without acks: a line `message id, handle` for each message."""
    figures: dict[str, Any]
    """All its figures; `latency`: also p50_ms and p99_ms."""

    def answers(self) -> list[bytes]:
        """Answers of `call`, in the order of the requests."""
        found, at = [], 0
        while at < len(self.output):
            end = at + 4 + int.from_bytes(self.output[at : at + 4])
            found.append(self.output[at + 4 : end])
            at = end
        return found


def replayed(mode: str, address: str, requests: Sequence[bytes], *options: str) -> Replayed:
    """Sends the requests. Ends the run with the program's output if one failed."""
    frames = b"".join(len(one).to_bytes(4) + one for one in requests)
    command = [str(replay()), mode, "-addr", address, *options]
    done = subprocess.run(command, input=frames, capture_output=True, check=False)
    said = done.stderr.decode().strip()
    figures = json.loads(said.splitlines()[-1]) if done.returncode == 0 else {"errors": 1}
    if figures["errors"]:
        raise SystemExit(f"replay {mode} {' '.join(options)} failed: {said}")
    return Replayed(figures["secs"], figures.get("calls", 0), figures.get("messages", 0), done.stdout, figures)
