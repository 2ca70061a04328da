"""NATS JetStream for comparison: its server by the scripts in `peers/nats` of BENCH_TOOLS, its Python client by pip.

The scripts build the server as a Go module, once, and start it on 127.0.0.1:4222 with file storage; its data is deleted
at each start. nats-py is installed into a separate environment in ~/.cache/evenq-bench.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import load
import servers

CLIENT = "2.16.0"
PORT = 4222
ADDRESS = f"127.0.0.1:{PORT}"
CACHE = Path(os.environ.get("PEER_CACHE") or Path.home() / ".cache" / "evenq-peers") / "nats"
START_S = 900.0
"""The first start builds the server."""
_RATES = re.compile(r"^nats (.+): (\d+)/s$", re.MULTILINE)


def python() -> str:
    """Returns the interpreter with nats-py; creates its environment if needed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenq-bench"
    folder = base / f"nats-py-{CLIENT}-{sys.version_info.major}.{sys.version_info.minor}"
    program = str(folder / "bin" / "python")
    if not (folder / "whole").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([program, "-m", "pip", "install", "--quiet", f"nats-py=={CLIENT}"], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"no nats-py {CLIENT} in {folder}: `{' '.join(error.cmd)}` failed, see above") from None
        (folder / "whole").touch()
    return program


def _scripts() -> Path:
    scripts = load.tools() / "peers" / "nats"
    if not (scripts / "up").is_file():
        raise SystemExit(f"no scripts for NATS in {scripts}: set BENCH_TOOLS to the folder that holds `peers/nats`")
    return scripts


def version() -> str:
    done = subprocess.run([str(CACHE / "bin" / "nats-server"), "-v"], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition("v")[2]


@contextmanager
def nats() -> Iterator[servers.Server]:
    """Runs the server until the block ends."""
    scripts = _scripts()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise SystemExit(f"{ADDRESS} is taken, NATS needs it: end what listens there (`{scripts / 'down'}`?)")
    begun = time.perf_counter()
    go = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/local/go/bin"}
    try:
        # Not captured: the processes that it starts would keep the pipe open.
        done = subprocess.run([str(scripts / "up")], stdout=subprocess.DEVNULL, check=False, timeout=START_S, env=go)
        if done.returncode != 0:
            raise SystemExit(f"NATS did not start: its server is built by Go 1.24 or newer, and its log is {CACHE}/log")
        yield servers.Server(int((CACHE / "pid").read_text()), ADDRESS, time.perf_counter() - begun)
    finally:
        subprocess.run([str(scripts / "down")], check=False)


def go_load() -> Path:
    """Returns the program with NATS' Go client, built once."""
    return load.compiled(_scripts() / "load", "nats-load")


def go_rates() -> dict[str, float]:
    """Returns messages of 1 KiB a second with NATS' Go client, by name (`async publish`, `fetch+ack` ...)."""
    done = subprocess.run([str(go_load())], capture_output=True, text=True, check=False)
    rates = {name: float(rate) for name, rate in _RATES.findall(done.stdout)}
    if done.returncode != 0 or not {"async publish", "fetch+ack"} <= set(rates):
        raise SystemExit(f"NATS' load program failed: {(done.stdout + done.stderr).strip()}")
    return rates
