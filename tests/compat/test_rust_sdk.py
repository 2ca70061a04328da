"""The official Rust SDK (crate `rocketmq` 5.0.0), unmodified, beside Python's and Node.js's: a broker stops and starts
again under all three.

`cargo` builds the client into a cache folder at the first run (`EVENQ_CARGO_CACHE`, else below the user's cache).
Without cargo the tests are skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there they fail.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest
from evenq_proofs.peer import Peer, wait_for_all

import evenq
from evenq.testing import LocalCluster

HERE = Path(__file__).parent
RUST = HERE / "rust"
BUILD_SECONDS = 900
LOG_LINES_MAX = 2_000
"""What one of these clients may log about an outage of some seconds, ten sends a second among them. A Rust client that
spins writes that in a quarter second.
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + 300)]


@pytest.fixture(scope="session")
def rust_peer(rust_cache: Path, lacking: Callable[[str], NoReturn]) -> Path:
    """The client, built from its lock file."""
    cargo = shutil.which("cargo")
    if cargo is None:
        lacking("cargo is not installed (https://rustup.rs, or apt-get install cargo)")
    sources = [RUST / "Cargo.toml", RUST / "Cargo.lock", RUST / "src" / "main.rs"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = rust_cache / f"peer-{digest}"
    if not program.exists():
        rust_cache.mkdir(parents=True, exist_ok=True)
        command = ["nice", cargo, "build", "--locked", "--quiet", "--manifest-path", str(RUST / "Cargo.toml")]
        done = subprocess.run(
            [*command, "--target-dir", str(rust_cache / "target")],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            lacking(f"cargo could not build the Rust SDK: {done.stderr.strip()[-500:]}")
        fresh = rust_cache / f"peer-{digest}.{os.getpid()}"
        shutil.copy2(rust_cache / "target" / "debug" / "evenq-rust-peer", fresh)
        fresh.rename(program)
    return program


@pytest.fixture
def steady(
    tmp_path: Path, rust_peer: Path, modules: Path, keep: Callable[[Peer], None]
) -> Callable[[LocalCluster], dict[str, Peer]]:
    """Starts one client of each SDK that sends and takes, each its own topic, and goes on after errors."""
    commands = {
        "rust": [str(rust_peer), "steady"],
        "python": [sys.executable, str(HERE / "python_sdk_peer.py"), "steady"],
        "node": ["node", str(HERE / "node" / "steady.js"), "steady"],
    }
    environment = {**os.environ, "NODE_PATH": str(modules), "HOME": str(tmp_path)}

    def start(cluster: LocalCluster) -> dict[str, Peer]:
        peers = {}
        with evenq.Admin(endpoint=cluster.endpoint) as admin:  # a consumer of Rust's does not start without its topic
            for name in commands:
                admin.create_topic(f"steady-{name}", queues=2)
        for name, command in commands.items():
            words = [*command, cluster.endpoint, f"steady-{name}", f"steady-{name}-group"]
            peers[name] = Peer(words, log_path=tmp_path / f"{name}.log", environment=environment)
            keep(peers[name])
        for peer in peers.values():
            peer.wait(lambda said: any("got" in s for s in said))
        return peers

    return start


def lines(peer: Peer) -> int:
    return peer.log_path.read_bytes().count(b"\n")


def rest(seconds: float) -> None:
    Event().wait(seconds)


@pytest.mark.parametrize("down_seconds", [0, 8])
def test_every_sdk_goes_on_after_a_graceful_stop_of_the_broker_and_none_spins(
    steady: Callable[[LocalCluster], dict[str, Peer]], tmp_path: Path, down_seconds: float
) -> None:
    """Decision 25: a telemetry stream that ends with an error makes a Rust client spin for ever, at some million log
    lines a minute, and it never recovers.
    """
    settings = {"DEFAULT_START_FROM": "FIRST", "DRAIN_MS": "3000"}
    with LocalCluster(brokers=1, folder=tmp_path / "cluster", broker_settings=settings) as cluster:
        peers = steady(cluster)
        logged = {name: lines(peer) for name, peer in peers.items()}
        broker = cluster.brokers[0]
        assert broker.stop() == 0
        rest(down_seconds)
        broker.restart()
        up = time.monotonic()
        last = {name: max(peer.numbers("sent")) for name, peer in peers.items()}
        waits = {}
        for name, peer in peers.items():
            before = last[name]
            peer.wait(lambda said, n=before: any(s.get("sent", -1) > n for s in said), seconds=60)
            peer.wait(lambda said, n=before: any(s.get("got", -1) > n for s in said), seconds=60)
            waits[name] = round(time.monotonic() - up, 1)
        rest(3)  # one that spins would show
        logged = {name: lines(peer) - logged[name] for name, peer in peers.items()}
        print(f"down {down_seconds} s; again within (s) {waits}; lines logged {logged}")
        assert max(logged.values()) < LOG_LINES_MAX, logged
        for peer in peers.values():
            wait_for_all([peer], peer.numbers("sent"), seconds=60)
            peer.stop()
