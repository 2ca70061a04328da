"""The official Go SDK (`rocketmq-clients/golang/v5` 5.1.4), unmodified: how long its idle push consumer takes to end.

`go` builds the client into a cache folder at the first run (`EVENQ_GO_CACHE`, else below the user's cache). Without Go
the test is skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there it fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from evenq.testing import LocalCluster
from evenq.testing.peer import Peer

GO = Path(__file__).with_name("go")
BUILD_SECONDS = 600
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)


@pytest.fixture(scope="session")
def go_peer(go_cache: Path, lacking: Callable[[str], NoReturn]) -> Path:
    """The client, built from its sums."""
    go = shutil.which("go")
    if go is None:
        lacking("Go is not installed (https://go.dev/dl, or apt-get install golang)")
    sources = [GO / name for name in ("go.mod", "go.sum", "main.go")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = go_cache / f"peer-{digest}"
    if not program.exists():
        go_cache.mkdir(parents=True, exist_ok=True)
        fresh = go_cache / f"peer-{digest}.{os.getpid()}"
        command = ["nice", go, "build", "-mod=readonly", "-o", str(fresh), "."]
        done = subprocess.run(command, cwd=GO, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode != 0:
            lacking(f"go could not build the client: {done.stderr.strip()[-500:]}")
        fresh.rename(program)
    return program


def test_an_idle_push_consumer_stops_within_seconds(
    tmp_path: Path, cluster: LocalCluster, go_peer: Path, keep: Callable[[Peer], None]
) -> None:
    """It waits for its poll, which has just begun, and four seconds more by itself: 19 s with polls of 15 s."""
    words = [str(go_peer), "push", cluster.endpoint, "go-idle", "go-idle-group"]
    member = Peer(words, log_path=tmp_path / "go.log", environment={**os.environ, "HOME": str(tmp_path)})
    keep(member)
    member.wait(lambda said: any("ready" in s for s in said))
    threading.Event().wait(2)
    member.stop()
    (shutdown_ms,) = member.numbers("shutdown_ms")
    print(f"an idle push consumer stopped within {shutdown_ms} ms")
    assert shutdown_ms < 18_000
