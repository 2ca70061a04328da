"""What broker groups promise (semantics.md section 6), by real processes: one copy, several brokers, several copies."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import figure, group, in_sync, leader_of, listens

import evenq
from evenq.errors import Error
from evenq.testing import LocalCluster

TOPIC = "flights"
ONCE = evenq.ProducerOptions(max_attempts=1)
SEGMENT = {"STORE__SEGMENT_BYTES": "1048576"}


def send(endpoint: str, count: int, prefix: str, *, options: evenq.ProducerOptions | None = None) -> set[str]:
    """Gives the bodies that were acknowledged."""
    bodies = {f"{prefix} {number}" for number in range(count)}
    with evenq.Producer(endpoint=endpoint, options=options or evenq.ProducerOptions()) as producer:
        for body in sorted(bodies):
            producer.send(evenq.Message(topic=TOPIC, body=body.encode()))
    return bodies


def receive(endpoint: str, count: int, *, also: AbstractSet[str] = frozenset(), within_s: float = 100.0) -> set[str]:
    """So many different messages of one group and all of `also`, acknowledged; fewer after `within_s`."""
    bodies: set[str] = set()
    end = time.monotonic() + within_s
    with evenq.SimpleConsumer(
        group="readers", subscriptions={TOPIC: "*"}, endpoint=endpoint, start_from="FIRST"
    ) as consumer:
        while (len(bodies) < count or not also <= bodies) and time.monotonic() < end:
            try:
                for message in consumer.receive(32, invisible_ms=60_000, wait_ms=500):
                    bodies.add(message.body.decode())
                    consumer.ack(message)
            except Error:  # no copy leads just now
                time.sleep(0.1)
    return bodies


def log_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()) if path.name.isdecimal())


def is_refused(endpoint: str) -> bool:
    """One try of a send."""
    try:
        with evenq.Producer(endpoint=endpoint, options=ONCE) as producer:
            producer.send(evenq.Message(topic=TOPIC, body=b"nobody"))
    except Error:
        return True
    return False


@pytest.mark.spec("HA-1")
@pytest.mark.slow
def test_one_broker_of_a_name_takes_and_gives_and_all_hold_the_same(tmp_path: Path) -> None:
    """To clients the group is one broker; the copy that leads is its master, the others serve no client, and their logs are equal
    byte for byte.
    """
    with group(tmp_path, **SEGMENT, REPLICATION__SUSPECT_MS="4000") as cluster:  # no other is to lead
        leader = leader_of(cluster)
        in_sync(cluster, 3)
        sent = send(cluster.endpoints, 100, "one")
        followers = [node for node in cluster.brokers if node is not leader]
        assert listens(leader)
        assert not any(map(listens, followers))
        assert all(is_refused(node.address) for node in followers)
        with evenq.Admin(endpoint=leader.address) as admin:
            brokers = [(broker.name, broker.broker_id, broker.addresses) for broker in admin.list_brokers()]
        assert brokers == [("broker-a", 0, (leader.address,))]
        assert receive(cluster.endpoints, 100) == sent
        end_at = figure(leader, "evenq_broker_replica_log_end")
        until = time.monotonic() + 60
        while any(figure(node, "evenq_broker_replica_committed_end") < end_at for node in followers):
            assert time.monotonic() < until
            time.sleep(0.1)
    logs = [log_of(tmp_path / node.name)[: int(end_at)] for node in cluster.brokers]
    assert len(logs[0]) == end_at > 100 * 88
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.spec("HA-3")
@pytest.mark.slow
def test_a_single_broker_is_away_while_it_restarts(tmp_path: Path) -> None:
    with LocalCluster(rebalancer=False, folder=tmp_path) as cluster:
        sent = send(cluster.endpoint, 20, "before")
        broker = cluster.brokers[0]
        broker.kill()
        assert is_refused(cluster.endpoint), "there is no other"
        broker.restart()
        sent |= send(cluster.endpoint, 20, "after")
        assert receive(cluster.endpoint, 40) == sent


@pytest.mark.spec("HA-4")
@pytest.mark.slow
def test_of_several_brokers_the_others_go_on_and_what_the_lost_one_has_waits_for_it(tmp_path: Path) -> None:
    settings = {"STORE__FLUSH": "sync"}
    with LocalCluster(brokers=2, rebalancer=False, folder=tmp_path, broker_settings=settings) as cluster:
        first, second = cluster.brokers
        with evenq.Admin(endpoint=first.address) as admin:
            admin.create_topic(TOPIC, queues=4)
        early = send(cluster.endpoints, 8, "early")
        assert receive(cluster.endpoints, 8) == early, "the group has begun"
        sent = send(cluster.endpoints, 40, "both")
        first.kill()
        more = send(second.address, 40, "one")  # a try at the lost one is followed by one at the other
        while_away = receive(second.address, 40, also=more)
        waiting = (sent | more) - while_away
        assert more <= while_away, "what the living one has is read meanwhile"
        assert waiting < sent, "and only what the lost one has is not"
        assert waiting
        first.restart()
        assert receive(cluster.endpoints, len(waiting)) == waiting


@pytest.mark.spec("HA-5")
@pytest.mark.slow
def test_with_copies_that_only_write_consumers_go_on_while_the_old_leader_is_down(tmp_path: Path) -> None:
    """Freshness holds: what was unread is read from another copy, whose disk need not have synced it, while the old
    leader's machine is gone.
    """
    with group(tmp_path, mode="memory") as cluster:
        leader = leader_of(cluster)
        in_sync(cluster, 3)
        sent = send(cluster.endpoints, 100, "unread")
        leader.kill()
        assert receive(cluster.endpoints, 100) == sent
        assert not leader.alive
        assert leader_of(cluster) is not leader


@pytest.mark.spec("HA-8")
@pytest.mark.slow
def test_a_group_is_one_unit_of_service_and_a_group_more_makes_the_topic_grow(tmp_path: Path) -> None:
    """Copies add no queues, whichever of them leads; a second group does."""
    fast = {"REPLICATION__RENEW_MS": "200", "REPLICATION__SUSPECT_MS": "1000", "ROUTE_SETTLE_MS": "0"}
    with LocalCluster(
        brokers=2, replicas=2, rebalancer=False, folder=tmp_path,
        broker_settings=lambda _: {**fast, "REPLICATION__MIN_IN_SYNC": "1"},
    ) as cluster:  # fmt: skip
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.create_topic(TOPIC, queues=3)
            assert sorted(broker.name for broker in admin.list_brokers()) == ["broker-a", "broker-b"]
            assert queues_of(admin) == {"broker-a": 3, "broker-b": 3}
        of_a = [node for node in cluster.brokers if node.name.startswith("broker-a")]
        leader = next(node for node in of_a if figure(node, "evenq_broker_replica_role", 'role="ready"') == 1)
        sent = send(cluster.endpoints, 30, "before")
        leader.kill()
        sent |= send(cluster.endpoints, 30, "after")
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            assert queues_of(admin) == {"broker-a": 3, "broker-b": 3}
        assert receive(cluster.endpoints, 60) == sent


def queues_of(admin: evenq.Admin) -> dict[str, int]:
    """Queues of the topic by broker name, as soon as each broker is there."""
    end = time.monotonic() + 60
    while True:
        found: dict[str, int] = {}
        for view in admin.describe_topic(TOPIC).queues:
            found[view.queue.broker_name] = found.get(view.queue.broker_name, 0) + 1
        if len(found) == 2 or time.monotonic() > end:
            return found
        time.sleep(0.2)
