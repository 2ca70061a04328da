"""The official Python SDK, unmodified, while the leader of a broker group of three copies is killed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer
from evenq_proofs.replicated_group import group, in_sync, leader_of

import evenq

PEER = Path(__file__).with_name("python_sdk_peer.py")
TOPIC = "compat-failover"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.slow,  # that leaders may die is proven by test_replicated_group.py in less time; here it is what the SDK makes of it
]


def test_the_official_sdk_goes_on_at_the_next_leader_and_loses_nothing(
    tmp_path: Path, keep: Callable[[Peer], None]
) -> None:
    with group(tmp_path / "cluster") as cluster:
        in_sync(cluster, 3)
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.create_group("g", start_from="FIRST")
        peer = Peer(
            [sys.executable, str(PEER), "steady", cluster.endpoints, TOPIC, "g"], log_path=tmp_path / "peer.log"
        )
        keep(peer)
        peer.wait(lambda said: sum("got" in line for line in said) > 30, seconds=120)
        leader = leader_of(cluster)
        sent, got = len(peer.numbers("sent")), len(peer.numbers())
        leader.kill()
        began = time.monotonic()
        peer.wait(lambda said: sum("sent" in line for line in said) > sent + 5, seconds=120)
        sends_s = time.monotonic() - began
        peer.wait(lambda said: sum("got" in line for line in said) > got + 30, seconds=120)
        acknowledged = set(peer.numbers("sent"))
        peer.wait(lambda said: acknowledged <= {line["got"] for line in said if "got" in line}, seconds=120)
        seen = Counter(peer.numbers())
        refused = len(peer.of("refused"))
        repeated = sum(times - 1 for times in seen.values())
        print(f"{len(acknowledged)} sent, {refused} refused, {repeated} repeated, sends went on after {sends_s:.1f} s")
        assert sends_s < 60
        peer.stop()
