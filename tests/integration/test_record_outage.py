"""The place of the group record is away for longer than `suspect_ms`, as an API server of Kubernetes is: real brokers,
and a process that keeps Leases, which each of them reaches through a proxy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from evenq_proofs.group_faults.places import LeasePlace
from evenq_proofs.group_faults.proxy import ProxyLoop
from evenq_proofs.replicated_group import FAST, figure, in_sync, leader_of, readiness
from evenq_proofs.waiting import until

import evenq
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node

TOPIC = "flights"
SUSPECT_S = 3.5
REACHABLE = "evenq_broker_replica_record_reachable"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LeasePlace]:
    with (
        FreePorts() as ports,
        ProxyLoop(random.Random(0)) as loop,
        LeasePlace(tmp_path, "broker-a", range(3), ports, loop) as place,
    ):
        yield place


@pytest.fixture
def cluster(tmp_path: Path, place: LeasePlace) -> Iterator[LocalCluster]:
    settings = {**FAST, "REPLICATION__RECORD": place.setting(0), "REPLICATION__SUSPECT_MS": str(int(1_000 * SUSPECT_S))}
    cluster = LocalCluster(replicas=3, rebalancer=False, folder=tmp_path / "brokers", broker_settings=settings)
    for number, node in enumerate(cluster.brokers):
        node.environment.update(place.environment(number))
    with cluster:
        in_sync(cluster, 3)
        yield cluster


def until_reachable(node: Node, reachable: int) -> None:
    until(lambda: figure(node, REACHABLE) == reachable, lambda: node.log_text()[-3_000:])


def elections(place: LeasePlace) -> list[tuple[int, int]]:
    """Epoch and leader of every election that there was."""
    return [(one.epoch, one.leader) for one in place.elections([], SystemClock())]


@pytest.mark.slow  # waits for 14 s; the core's tests and the simulation fail, too
def test_a_leader_that_lives_goes_on_after_the_record_was_away_for_long(
    cluster: LocalCluster, place: LeasePlace
) -> None:
    """Decision 84: it is not taken for dead in the moment in which the record is back."""
    leader, before = leader_of(cluster), elections(place)
    with evenq.Producer(endpoint=cluster.endpoints) as producer:

        def send_for(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                producer.send(evenq.Message(topic=TOPIC, body=b"goes on"))
                time.sleep(0.02)

        send_for(0.1)
        place.kill()
        send_for(3 * SUSPECT_S)
        until_reachable(leader, 0)
        (to_leader,) = place.proxies[cluster.brokers.index(leader)]
        to_leader.hold()
        place.start()
        for node in cluster.brokers:
            if node is not leader:
                until_reachable(node, 1)
        to_leader.mend()  # the followers have read the record before it could renew it
        until_reachable(leader, 1)
        send_for(SUSPECT_S)
    assert elections(place) == before
    assert leader_of(cluster) is leader
    record = place.record()
    assert record is not None
    assert (record["epoch"], len(record["isr"])) == (before[-1][0], 3)


@pytest.mark.slow  # three copies of its own, and longer than `suspect_ms` without a leader
def test_a_leader_that_dies_while_the_record_is_away_is_replaced_once_it_is_back(
    cluster: LocalCluster, place: LeasePlace
) -> None:
    leader, before = leader_of(cluster), elections(place)
    place.kill()
    until_reachable(leader, 0)
    leader.kill()
    time.sleep(SUSPECT_S)
    assert elections(place) == before, "a record that nobody can write"
    place.start()
    successor = leader_of(cluster)
    assert successor is not leader
    assert elections(place)[-1][0] > before[-1][0]
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        producer.send(evenq.Message(topic=TOPIC, body=b"after it"))


@pytest.mark.slow  # three copies of its own, and a read of the record takes 5 s until it fails
def test_a_follower_that_restarts_while_the_record_is_away_holds_up_no_commit(
    cluster: LocalCluster, place: LeasePlace
) -> None:
    """Decision 92: each commit waits for it, since no set can change; it follows whom it remembers."""
    leader, before = leader_of(cluster), elections(place)
    follower = next(node for node in cluster.brokers if node is not leader)
    with evenq.Producer(endpoint=cluster.endpoints, options=evenq.ProducerOptions(send_timeout_ms=60_000)) as producer:
        producer.send(evenq.Message(topic=TOPIC, body=b"before it"))
        place.kill()
        until_reachable(leader, 0)
        follower.kill()
        follower.start()
        producer.send(evenq.Message(topic=TOPIC, body=b"in the middle of it"))
        assert not place.running
        assert "group record cannot be read since the start, so this copy follows copy" in follower.log_text()
        assert "not in sync" in readiness(follower), "it says nothing of itself that it does not know"
        place.start()
        in_sync(cluster, 3)
        producer.send(evenq.Message(topic=TOPIC, body=b"after it"))
    assert elections(place) == before
    assert leader_of(cluster) is leader
