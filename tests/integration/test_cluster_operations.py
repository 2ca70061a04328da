"""Operators and a real broker group of three: what they see of its copies, and another copy that leads on request."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import figure, group, in_sync, leader_of

import evenq
from evenq.cli.__main__ import main
from evenq.client.core.admin.broker_group_views import BrokerCopyView, BrokerGroupView
from evenq.errors import Error, NotFound, PreconditionFailed
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from tests.integration.sender import Sender

log = logging.getLogger(__name__)

TOPIC, NAME = "flights", "broker-a"


@pytest.fixture
def admin_of() -> Iterator[Callable[[str], evenq.Admin]]:
    opened: list[evenq.Admin] = []

    def open_one(endpoint: str) -> evenq.Admin:
        opened.append(evenq.Admin(endpoint=endpoint, timeout_ms=10_000))
        return opened[-1]

    yield open_one
    for admin in opened:
        admin.close()


def shown(admin: evenq.Admin) -> BrokerGroupView:
    (view,) = admin.describe_cluster().broker_groups
    return view


def until(admin: evenq.Admin, what: Callable[[BrokerGroupView], bool], *, within_s: float = 60) -> BrokerGroupView:
    """The first view of which it is true."""
    end, last = time.monotonic() + within_s, "no server answers"
    while time.monotonic() < end:
        try:
            view = shown(admin)
        except Error as error:
            last = str(error)
        else:
            if what(view):
                return view
            last = str(view)
        time.sleep(0.1)
    raise AssertionError(f"not within {within_s} s: {last}")


def number_of(node: Node) -> int:
    return int(node.name.rpartition("-")[2])


def states(view: BrokerGroupView) -> dict[int, str]:
    return {one.copy: one.state for one in view.copies}


def copy_of(view: BrokerGroupView, number: int) -> BrokerCopyView:
    return next(one for one in view.copies if one.copy == number)


class PatientSender(Sender):
    """Sends each message until it is acknowledged."""

    gap_s = 0.0

    def run(self) -> None:
        with evenq.Producer(endpoint=self._endpoint) as producer:
            last = time.monotonic()
            while not self._ended.is_set():
                body = f"message {len(self.acknowledged)}"
                try:
                    producer.send(evenq.Message(topic=TOPIC, body=body.encode()))
                except Error:
                    time.sleep(0.02)
                    continue
                self.acknowledged.append(body)
                now = time.monotonic()
                self.gap_s, last = max(self.gap_s, now - last), now


class Scraper(threading.Thread):
    """Reads the pages of metrics without a pause, as Prometheus may just when a leader opens its store."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(name="scraper", daemon=True)
        self._cluster, self._ended = cluster, threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            for node in self._cluster.brokers:
                figure(node, "evenq_broker_replicas")
            time.sleep(0.02)

    def stop(self) -> None:
        self._ended.set()
        self.join(60)
        for node in self._cluster.brokers:
            assert "reading the metrics failed" not in node.log_text()


def everything(cluster: LocalCluster, count: int) -> set[str]:
    bodies: set[str] = set()
    with evenq.SimpleConsumer(
        group="readers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + 60
        while len(bodies) < count and time.monotonic() < end:
            for message in consumer.receive(64, wait_ms=1_000):
                bodies.add(message.body.decode())
                consumer.ack(message)
    return bodies


@pytest.mark.spec("HA-6")
@pytest.mark.slow
def test_each_copy_leads_in_turn_on_request_and_nothing_is_lost(
    tmp_path: Path, admin_of: Callable[[str], evenq.Admin], capsys: pytest.CaptureFixture[str]
) -> None:
    """R13 by hand, under a sender: the leader goes on as a follower, without a restart."""
    with group(tmp_path, REPLICATION__SUSPECT_MS="4000") as cluster:  # a busy machine's pauses move no leader
        in_sync(cluster, 3)
        admin = admin_of(cluster.endpoints)
        sender, scraper = PatientSender(cluster.endpoints, TOPIC), Scraper(cluster)
        sender.start()
        scraper.start()
        sender.wait_for(20)
        started = [node.pid for node in cluster.brokers]
        view = shown(admin)
        assert (view.mode, view.in_sync, view.in_sync_min, len(view.copies)) == ("sync", 3, 2, 3)
        first, took = view.leader, []
        for _ in range(2):
            view = until(admin, lambda one: one.in_sync == 3)
            target = next(one.copy for one in view.copies if one.copy != view.leader)
            moved = admin.move_leader(NAME, to=target)
            assert (moved.before, moved.leader, moved.served) == (view.leader, target, True)
            assert moved.epoch > view.epoch
            took.append(moved.took_ms)
            sender.wait_for(20)
        moved = admin.move_leader(NAME)
        assert moved.before is not None
        assert moved.leader != moved.before, "without a name it is another one"
        again = admin.move_leader(NAME, to=moved.leader)
        assert (again.before, again.leader, again.epoch) == (moved.leader, moved.leader, moved.epoch)
        assert [node.pid for node in cluster.brokers] == started
        scraper.stop()
        acknowledged = sender.stop()
        assert set(acknowledged) <= everything(cluster, len(set(acknowledged)))
        log.info("from copy %s; hand-overs of %s ms, longest pause of the sender %.2f s", first, took, sender.gap_s)
        with pytest.raises(NotFound, match=r"has no copy 7; it has 0, 1, 2"):
            admin.move_leader(NAME, to=7)
        with pytest.raises(NotFound, match="no broker group is named 'broker-z'; the cluster has broker-a"):
            admin.move_leader("broker-z")
        assert main(["cluster", "show", "--json", "--endpoint", cluster.endpoints]) == 0
        output = json.loads(capsys.readouterr().out)
        assert output["broker_groups"][0]["leader"] == moved.leader
        assert [one["copy"] for one in output["copies"]] == [0, 1, 2]


@pytest.mark.slow
def test_dead_copies_are_seen_since_when_and_a_group_that_nobody_leads_is_asked_at_a_copy(
    tmp_path: Path, admin_of: Callable[[str], evenq.Admin]
) -> None:
    """One copy dies, then the next, then the leader; the one that fell behind comes first and must not lead."""
    with group(tmp_path, REPLICATION__SUSPECT_MS="3000") as cluster:
        in_sync(cluster, 3)
        admin, leader = admin_of(cluster.endpoints), leader_of(cluster)
        behind, last = [node for node in cluster.brokers if node is not leader]
        begun_ms = int(time.time() * 1000)
        behind.kill()
        # it is seen to be away at once, and may lead until the record says otherwise
        view = until(admin, lambda one: one.in_sync == 2 and not copy_of(one, number_of(behind)).may_lead)
        gone = copy_of(view, number_of(behind))
        assert gone.state == "AWAY"
        assert begun_ms - 1_000 <= gone.away_since_ms <= int(time.time() * 1000)
        with evenq.Producer(endpoint=cluster.endpoints) as producer:
            producer.send(evenq.Message(topic=TOPIC, body=b"behind copy %d" % number_of(behind)))
        until(admin, lambda one: (copy_of(one, number_of(behind)).lag_bytes or 0) > 0)
        with pytest.raises(PreconditionFailed, match=rf"copy {number_of(behind)} .* is not in sync: does not answer"):
            admin.move_leader(NAME, to=number_of(behind))
        last.kill()
        view = until(admin, lambda one: one.in_sync == 1)
        assert copy_of(view, number_of(last)).may_lead
        assert figure(leader, "evenq_broker_replicas_in_sync") == 1
        assert figure(leader, "evenq_broker_replicas") == 3
        with pytest.raises(PreconditionFailed, match="no other copy of broker group broker-a is in sync"):
            admin.move_leader(NAME)
        assert shown(admin).leader == number_of(leader), "a refusal changes nothing"
        leader.kill()
        behind.start()
        at_copy = admin_of(copy_of(view, number_of(behind)).address)
        view = until(at_copy, lambda one: one.leader is None and len(one.copies) == 3)
        assert (view.leader, view.in_sync) == (None, 0)
        assert states(view) == {
            number_of(behind): "CATCHING_UP",
            number_of(last): "AWAY",
            number_of(leader): "AWAY",
        }
        assert [one.copy for one in view.copies if one.may_lead] == sorted([number_of(leader), number_of(last)])
        last.start()
        until(at_copy, lambda one: one.leader == number_of(last) and one.served)
        assert everything(cluster, 1) == {f"behind copy {number_of(behind)}"}
