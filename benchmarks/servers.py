"""Processes that benchmarks measure: the floor, a broker, and the whole quick start, with their CPU and memory.

Figures come from /proc, so this runs on Linux only. Each server is a process group and ends with its `with` block.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
READY_S = 120.0  # the machine may have other work
_TICKS = os.sysconf("SC_CLK_TCK")
_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""As in an installed program: modules are compiled once, not at each start."""


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    address: str
    ready_s: float
    """Time from the start of the process to its line `ready`, seconds."""


@contextmanager
def floor(*options: str) -> Iterator[Server]:
    """Runs a server that does nothing (floor.py)."""
    with started([sys.executable, str(HERE / "floor.py"), *options], {}) as server:
        yield server


@contextmanager
def broker(folder: Path, **settings: str) -> Iterator[Server]:
    """Runs a broker alone, as a pod does: data on disk, asynchronous flush, nearly all settings default.

    `EVENQ_BENCH_PROFILE=FILE`: at its end it writes its profile there (cProfile's format).
    """
    environment = {
        "EVENQ_BROKER_PORT": "0",
        "EVENQ_BROKER_METRICS_PORT": "-1",
        "EVENQ_BROKER_STORE__PATH": str(folder),
        "EVENQ_BROKER_DEFAULT_QUEUES": "8",
        "EVENQ_BROKER_DEFAULT_START_FROM": "FIRST",
        **settings,
    }
    profile = os.environ.get("EVENQ_BENCH_PROFILE", "")
    command = [sys.executable, *(("-m", "cProfile", "-o", profile) if profile else ()), "-m", "evenq_broker"]
    with started(command, environment) as server:
        yield server


@contextmanager
def quick_start(*options: str) -> Iterator[Server]:
    """Runs `evenq up`: nameserver, broker and rebalancer in one process, data in memory."""
    command = [sys.executable, "-m", "evenq.cli", "up", "--port", "0", *options]
    with started(command, {}) as server:
        yield server


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[Server]:
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **_INSTALLED, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        address = _until_ready(process)
        ready_s = time.perf_counter() - begun
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            # A server whose log is not read would stop when the pipe is full.
            threading.Thread(target=_read_away, args=(pipe,), daemon=True).start()
        yield Server(process.pid, address, ready_s)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_away(pipe: IO[bytes]) -> None:
    while os.read(pipe.fileno(), 65_536):
        pass


def _until_ready(process: subprocess.Popen[bytes]) -> str:
    """Reads both outputs, unbuffered, until one has the address for clients: `ready HOST:PORT ...` or the log."""
    assert process.stdout is not None
    assert process.stderr is not None
    seen = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for descriptor in select.select(list(seen), [], [], 0.1)[0]:
            seen[descriptor] += os.read(descriptor, 65_536)
            for line in seen[descriptor].decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready ") and line.endswith("\n"):
                    return line.split()[1]
                if '"broker serves"' in line and line.endswith("\n"):
                    return f"127.0.0.1:{json.loads(line)['port']}"
    output = b"".join(seen.values()).decode(errors="replace")
    raise SystemExit(f"a server did not start: {output.strip()}")


def cpu_s(pid: int, *, loop: bool = False) -> float:
    """Returns the CPU time of one process so far, seconds; `loop`: of its first thread, with the event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat" if loop else f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process and all its descendants, MB (10^6 bytes)."""

    rss: float
    """Pages in memory, those shared with other processes counted in each."""
    pss: float
    """The same, shared pages divided among those that share them."""
    processes: int


def memory(pid: int) -> Memory:
    pids = [pid]
    for one in pids:  # grows while it is read
        for task in Path(f"/proc/{one}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    rss = pss = 0
    for one in pids:
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss += int(rest.split()[0])
            elif name == "Pss":
                pss += int(rest.split()[0])
    return Memory(rss * 1024 / 1e6, pss * 1024 / 1e6, len(pids))
