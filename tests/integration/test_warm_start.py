"""A follower that was never a leader leads within seconds, and knows what the old leader knew."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import figure, group, leader_of

import evenq
from evenq.testing import LocalCluster
from evenq.testing.node import Node

TOPIC = "flights"
COUNT = 3_000
LAG = "evenq_broker_replica_replay_lag"
SMALL = {"STORE__SNAPSHOT_RECORDS": "1000", "STORE__SEGMENT_BYTES": "262144"}


def send(cluster: LocalCluster, count: int, prefix: str) -> None:
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        for first in range(0, count, 50):
            producer.send_batch([evenq.Message(topic=TOPIC, body=f"{prefix} {first + n}".encode()) for n in range(50)])


def until_warm(node: Node, most: int, *, within_s: float = 60.0) -> None:
    """Until it would read at most this number of bytes of its log."""
    end = time.monotonic() + within_s
    while not 0 <= (lag := figure(node, LAG)) <= most:
        assert time.monotonic() < end, f"{lag} bytes to read after {within_s} s: {node.log_text()[-3_000:]}"
        time.sleep(0.2)


def records_read(node: Node) -> int:
    """By its newest term as the leader."""
    found = re.findall(r"the log is open, (\d+) records of it were read", node.log_text())
    assert found, node.log_text()[-3_000:]
    return int(found[-1])


def receive(cluster: LocalCluster, group_name: str, count: int, *, ack: bool) -> list[str]:
    """So many different ones of the group's messages, or what it got within two minutes."""
    bodies: dict[str, None] = {}
    with evenq.SimpleConsumer(
        group=group_name, subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + 120
        while len(bodies) < count and time.monotonic() < end:
            for message in consumer.receive(32, invisible_ms=120_000, wait_ms=1_000):
                bodies[message.body.decode()] = None
                if ack:
                    consumer.ack(message)
    return list(bodies)


@pytest.mark.parametrize("mode", ["sync", "memory"])
@pytest.mark.slow
def test_a_copy_that_never_led_reads_only_the_end_of_its_log(tmp_path: Path, mode: str) -> None:
    """Messages, acknowledgements and a delayed message from before come along, out of the replay and not out of the log."""
    with group(tmp_path, mode=mode, **SMALL, REPLICATION__SUSPECT_MS="4000") as cluster:  # what is not killed leads on
        leader = leader_of(cluster)
        send(cluster, COUNT, "early")
        with evenq.Producer(endpoint=cluster.endpoints) as producer:
            producer.send(evenq.Message(topic="later", body=b"delayed", delivery_ms=int(time.time() * 1000) + 15_000))
        finished = receive(cluster, "half-done", COUNT // 2, ack=True)
        send(cluster, 1_500, "late")  # so that a snapshot holds all of that
        followers = [node for node in cluster.brokers if node is not leader]
        whole = figure(leader, "evenq_broker_replica_committed_end")
        for node in followers:
            until_warm(node, int(whole / 4))
        send(cluster, 50, "last")
        killed_at = time.monotonic()
        leader.kill()
        successor = leader_of(cluster)
        pause_s = time.monotonic() - killed_at
        assert pause_s < 40
        read = records_read(successor)
        assert read < COUNT + 1_000, "of more than 6,000"
        left = receive(cluster, "half-done", COUNT + 1_550 - len(finished), ack=True)
        assert not set(finished) & set(left), "what was acknowledged does not come again"
        assert len(set(finished) | set(left)) == COUNT + 1_550
        with evenq.SimpleConsumer(
            group="delayed", subscriptions={"later": "*"}, endpoint=cluster.endpoints, start_from="FIRST"
        ) as consumer:
            end = time.monotonic() + 90
            while not (messages := consumer.receive(1, wait_ms=1_000)):
                assert time.monotonic() < end, "the timer did not come along"
            assert messages[0].body == b"delayed"
        leader.restart()
        until_warm(leader, int(whole / 2))
