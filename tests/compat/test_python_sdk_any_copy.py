"""The official Python SDK at one address of a broker group of three copies, as the chart has it, while the leader changes: consumers
pause as long as senders do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer
from evenq_proofs.replicated_group import OneAddress, group_at_one_address, in_sync, leader_of, number_of
from evenq_proofs.waiting import until

import evenq
from evenq.testing.node import Node

PEER = Path(__file__).with_name("python_sdk_peer.py")
TOPIC = "any-copy"
BEHIND_S = 6.0
"""How much later a consumer may go on than a sender: its SDK's own deadline of a call (5 s) that was on its way when the
leader stopped, and a second. A poll that hangs, or a client that waits for its next question for a route, takes longer.
"""
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]  # leaders are lost, and silence takes its time


def hand_over(cluster: OneAddress, leader: Node) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.move_leader("broker-a", to=(number_of(leader) + 1) % 3)


def stop_running(cluster: OneAddress, leader: Node) -> None:
    """No connection ends."""
    cluster.pause(leader)


def kill(_: OneAddress, leader: Node) -> None:
    leader.kill()


def measured(cluster: OneAddress, peer: Peer, change: Callable[[OneAddress, Node], None], leader: Node) -> float:
    """How much later than the sender the consumer went on, s."""
    peer.wait(lambda said: sum("got" in line for line in said[-20:]) > 5, seconds=120)
    last = peer.numbers("sent")[-1]
    change(cluster, leader)
    until(lambda: leader_of(cluster) is not leader)
    served = max(peer.numbers("sent")[-1], last)
    peer.wait(lambda said: any(line.get("sent", -1) > served for line in said), seconds=120)
    sent = next(line for line in peer.of("sent") if line["sent"] > served)
    peer.wait(lambda said: any(line.get("got", -1) >= sent["sent"] for line in said), seconds=120)
    got = next(line for line in peer.of("got") if line["got"] >= sent["sent"])
    return float(got["at"] - sent["at"])


def test_a_simple_consumer_reads_on_when_senders_send_however_the_leader_is_lost(
    tmp_path: Path, keep: Callable[[Peer], None]
) -> None:
    with group_at_one_address(tmp_path) as cluster:
        in_sync(cluster, 3)
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.create_group("g", start_from="FIRST")
        peer = Peer(
            [sys.executable, str(PEER), "steady", cluster.endpoint, TOPIC, "g"], log_path=tmp_path / "peer.log",
            environment={**os.environ, "PEER_ACCESS_KEY": "none", "PEER_SECRET_KEY": "none"},
        )  # fmt: skip
        keep(peer)
        behind: dict[str, float] = {}
        for change in (hand_over, stop_running, kill):
            in_sync(cluster, 3)
            leader = leader_of(cluster)
            if leader is cluster.brokers[1]:  # its clients talk to it, and no other copy can say that it is gone
                hand_over(cluster, leader)
                until(lambda: leader_of(cluster) is not cluster.brokers[1])
                in_sync(cluster, 3)
                leader = leader_of(cluster)
            behind[change.__name__] = measured(cluster, peer, change, leader)
            leader.kill()
            leader.restart()
        print(f"consumers went on later than senders, s: {behind}")
        assert max(behind.values()) < BEHIND_S, behind
        acknowledged = set(peer.numbers("sent"))
        peer.wait(lambda said: acknowledged <= {line["got"] for line in said if "got" in line}, seconds=120)
        peer.stop()
