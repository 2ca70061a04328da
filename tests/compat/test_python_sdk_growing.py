"""The official Python SDK at a broker of one copy that gets two more: sends wait for its one restart, and none fails.

As the chart does it: copies 1 and 2 run and pass clients on before copy 0 restarts, and one address leads to them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer
from evenq_proofs.replicated_group import OneAddress, in_sync, members_of, nodes_at_one_address, readiness
from evenq_proofs.waiting import until

import evenq
from evenq.testing.free_ports import FreePorts

PEER = Path(__file__).with_name("python_sdk_peer.py")
TOPIC, NAME = "grows", "broker-a"
PREFIX = "EVENQ_BROKER_"
ATTEMPTS_S = 8.5
"""A send has three attempts of 3 s, so none fails by a shorter restart; a machine that starts Python slower fails one each."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def growing(folder: Path) -> Iterator[OneAddress]:
    """Copy 0 runs alone; the others are made, and not started."""
    with FreePorts() as ports:
        more = {
            "STORE__SEGMENT_BYTES": "1048576", "REPLICATION__FROM_ONE_COPY": "true", "REPLICATION__MIN_IN_SYNC": "2",
        }  # fmt: skip
        nodes = nodes_at_one_address(ports, folder, **more)
        first = nodes[0]
        copied = dict(first.environment)
        for key in copied:
            if key.startswith(f"{PREFIX}REPLICATION__"):
                del first.environment[key]
        try:
            first.start()
            first.wait_ready()
            first.environment.update(copied)
            yield OneAddress(nodes, folder / "record")
        finally:
            for node in nodes:
                node.kill()


def test_no_send_fails_while_a_broker_gets_two_more_copies(tmp_path: Path, keep: Callable[[Peer], None]) -> None:
    with growing(tmp_path) as cluster:
        first, *others = cluster.brokers
        with evenq.Admin(endpoint=first.address) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.create_group("g", start_from="FIRST")
        for node in others:
            node.start()
        for node in others:
            until(lambda node=node: readiness(node).strip() == "ready", node.log_text)  # type: ignore[misc]
        peer = Peer(
            [sys.executable, str(PEER), "steady", cluster.endpoint, TOPIC, "g"], log_path=tmp_path / "peer.log",
            environment={**os.environ, "PEER_ACCESS_KEY": "none", "PEER_SECRET_KEY": "none"},
        )  # fmt: skip
        keep(peer)
        peer.wait(lambda said: sum("got" in line for line in said) > 20, seconds=120)
        first.stop()
        first.start()
        restarted = peer.numbers("sent")[-1]
        peer.wait(lambda said: any(line.get("sent", -1) > restarted + 5 for line in said), seconds=120)
        with evenq.Admin(endpoint=cluster.endpoint, timeout_ms=5_000) as admin:
            assert admin.grow_copies(NAME, members_of(first), in_sync_min=2, wait_ms=100_000).in_sync_min == 2
        in_sync(cluster, 3)
        grown = peer.numbers("sent")[-1]
        peer.wait(lambda said: any(line.get("sent", -1) > grown + 5 for line in said), seconds=120)
        times = [line["at"] for line in peer.of("sent")]
        pause_s = max(b - a for a, b in pairwise(times))
        print(f"longest pause {pause_s:.2f} s")
        assert len(peer.of("refused")) <= pause_s // ATTEMPTS_S, peer.of("refused")
        acknowledged = set(peer.numbers("sent"))
        peer.wait(lambda said: acknowledged <= {line["got"] for line in said if "got" in line}, seconds=120)
        peer.stop()
