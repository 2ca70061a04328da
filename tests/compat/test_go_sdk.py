"""The official Go SDK (`rocketmq-clients/golang/v5` 5.1.4), unmodified: how long its idle push consumer takes to end.

`go` builds the client into a cache folder at the first run (`EVENQ_GO_CACHE`, else below the user's cache). Without Go
the test is skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there it fails.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from evenq_proofs import official_sdks
from evenq_proofs.official_sdks import BUILD_SECONDS
from evenq_proofs.peer import Peer

from evenq.testing import LocalCluster

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)


@pytest.fixture(scope="session")
def go_peer(lacking: Callable[[str], NoReturn]) -> Path:
    """The client, built from its sums."""
    try:
        return official_sdks.go_peer()
    except official_sdks.NotInstalled as error:
        lacking(str(error))


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
