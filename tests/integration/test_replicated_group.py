"""Three brokers that are one group: real processes, a group record in a file, kill -9 of who leads."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from pathlib import Path

import pytest
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.etcd import Etcd
from evenq_proofs.replicated_group import FAST, figure, group, leader_of

import evenq
from evenq.errors import Error
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from tests.integration.sender import Sender

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)

TOPIC = "flights"


def read_all(cluster: LocalCluster, count: int, *, group_name: str = "readers") -> list[str]:
    """Every message of the topic, as a new group gets it, until nothing came for two seconds."""
    endpoint = cluster.endpoints
    leader_of(cluster)
    bodies: list[str] = []
    with evenq.SimpleConsumer(
        group=group_name, subscriptions={TOPIC: "*"}, endpoint=endpoint, start_from="FIRST"
    ) as consumer:
        quiet = 0
        while quiet < 2 or len(set(bodies)) < count:
            messages = consumer.receive(64, invisible_ms=60_000, wait_ms=1_000)
            quiet = 0 if messages else quiet + 1
            if quiet > 20:
                break
            bodies += [message.body.decode() for message in messages]
            for message in messages:
                consumer.ack(message)
    return bodies


def read_some(cluster: LocalCluster) -> None:
    """One batch, finished: the group has progress."""
    subscriptions = {TOPIC: "*"}
    with evenq.SimpleConsumer(
        group="readers", subscriptions=subscriptions, endpoint=cluster.endpoints, start_from="FIRST"
    ) as consumer:
        messages = consumer.receive(64, wait_ms=5_000)
        assert messages
        for message in messages:
            consumer.ack(message)


def until_ended(node: Node) -> None:
    end = time.monotonic() + 60
    while node.alive:
        assert time.monotonic() < end, node.log_text()
        time.sleep(0.05)


def refusal_of(producer: evenq.Producer) -> str:
    """Why a send is refused, once it names the copies; the last reason if it never does."""
    reason, end = "", time.monotonic() + 60
    while "copies are in sync" not in reason and time.monotonic() < end:
        try:
            producer.send(evenq.Message(topic=TOPIC, body=b"alone"))
        except Error as error:
            reason = str(error)
    return reason


@pytest.mark.slow
@pytest.mark.spec("HA-2", "HA-6")
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path) -> None:
    """D1, D11: kill -9 of two leaders in turn under load; the third copy has it all, and each comes back in sync. No send
    of a producer with default settings fails: each goes on at the next leader (decision 66).
    """
    with group(tmp_path) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(200)
        for _ in range(2):
            leader = leader_of(cluster)
            epoch = figure(leader, "evenq_broker_replica_epoch")
            leader.kill()
            successor = leader_of(cluster)
            assert successor is not leader
            assert figure(successor, "evenq_broker_replica_epoch") > epoch
            sender.wait_for(200)
            leader.restart()
        acknowledged = sender.stop()
        assert sender.refused == 0
        received = read_all(cluster, len(acknowledged))
        assert set(acknowledged) <= set(received)
        assert len(received) == len(set(received)), "the window of duplicates holds over a failover, too"
        gap_s = sender.longest_gap_s()
        log.info("longest pause of the sender: %.2f s", gap_s)
        assert gap_s < 25, "before clients read their routes again by themselves"


@pytest.mark.slow
def test_a_producer_that_starts_while_nobody_leads_sends_once_another_copy_does(tmp_path: Path) -> None:
    """Decision 74: it knows no route yet, and no access point answers."""
    with group(tmp_path) as cluster:
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.create_topic(TOPIC)
        leader = leader_of(cluster)
        leader.kill()
        options = evenq.ProducerOptions(send_timeout_ms=120_000)
        with evenq.Producer(endpoint=cluster.endpoints, options=options) as producer:
            producer.send(evenq.Message(topic=TOPIC, body=b"first"))
        assert leader_of(cluster) is not leader


@pytest.mark.slow
def test_folders_of_groups_and_of_single_brokers_are_told_apart(tmp_path: Path) -> None:
    """A log of one broker has epoch 1, as the first epoch of a group has: their bytes must never be taken for equal."""
    small = {"STORE__SEGMENT_BYTES": "1048576"}
    with LocalCluster(rebalancer=False, folder=tmp_path / "alone", broker_settings=small) as cluster:
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            producer.send(evenq.Message(topic=TOPIC, body=b"alone"))
        alone = cluster.brokers[0]
        alone.stop()
        members = {"REPLICATION__MEMBERS": "0=127.0.0.1:1", "REPLICATION__MIN_IN_SYNC": "1"}
        record = {"REPLICATION__RECORD": f"file:{tmp_path / 'record'}"}
        as_copy = Node(
            "evenq_broker", name="as-copy", port=alone.port, metrics_port=alone.metrics_port,
            log_path=tmp_path / "as-copy.log",
            environment={
                f"EVENQ_BROKER_{name}": value
                for name, value in {
                    **members, **record, **small, "STORE__PATH": str(tmp_path / "alone" / "broker-a"), "BROKER_NAME": "broker-a",
                    "PORT": str(alone.port), "METRICS_PORT": "-1",
                }.items()
            },
        )  # fmt: skip
        as_copy.start()
        until_ended(as_copy)
        assert "of a broker that was alone" in as_copy.log_text()
        alone.restart()
        (tmp_path / "alone" / "broker-a" / "replica").write_text("{}")
        alone.stop()
        alone.start()
        until_ended(alone)
        assert "one copy of a broker group" in alone.log_text()
        (tmp_path / "alone" / "broker-a" / "replica").unlink()
        alone.restart()


@pytest.mark.slow  # the first two stories fail too if copies do
def test_with_the_group_record_in_etcd_a_leader_and_a_member_of_etcd_may_be_killed(tmp_path: Path) -> None:
    """D11 with the record of a real etcd of three."""
    with Etcd(tmp_path / "etcd", members=3) as etcd:
        record = f"etcd:{etcd.endpoints}/evenq/broker-a"
        with group(tmp_path / "brokers", REPLICATION__RECORD=record, REPLICATION__SUSPECT_MS="3000") as cluster:
            sender = Sender(cluster.endpoints, TOPIC)
            sender.start()
            sender.wait_for(100)
            etcd.members[0].kill()
            sender.wait_for(100)
            leader = leader_of(cluster)
            leader.kill()
            sender.wait_for(100)
            leader.restart(timeout_ms=60_000)
            acknowledged = sender.stop()
            assert set(acknowledged) <= set(read_all(cluster, len(acknowledged)))


@pytest.mark.slow
def test_a_planned_stop_hands_over_at_once_and_repeats_nothing(tmp_path: Path) -> None:
    """R13, D7."""
    with group(tmp_path) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(200)
        leader = leader_of(cluster)
        assert leader.stop() == 0
        sender.wait_for(200)
        assert leader_of(cluster) is not leader
        leader.restart()
        acknowledged = sender.stop()
        assert sender.refused == 0, "decision 63"
        received = read_all(cluster, len(acknowledged))
        assert sorted(set(received)) == sorted(received)
        assert set(acknowledged) <= set(received)
        gap_s = sender.longest_gap_s()
        log.info("longest pause of the sender: %.2f s", gap_s)
        assert gap_s < 25, "before clients read their routes again by themselves"


class Worker(threading.Thread):
    """Receives a few messages at a time and acknowledges each by itself, until it is stopped."""

    def __init__(self, consumer: evenq.SimpleConsumer) -> None:
        super().__init__(name="worker", daemon=True)
        self._consumer = consumer
        self._ended = threading.Event()
        self.finished: list[str] = []
        self.refused: list[Error] = []

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                messages = self._consumer.receive(4, invisible_ms=20_000, wait_ms=500)
            except Error:
                time.sleep(0.02)
                continue
            for message in messages:
                try:
                    self._consumer.ack(message)
                except Error as error:
                    self.refused.append(error)
                self.finished.append(message.body.decode())

    def stop(self) -> None:
        self._ended.set()
        self.join(120)
        assert not self.is_alive()


@pytest.mark.slow
def test_a_planned_hand_over_refuses_no_acknowledgement_of_a_simple_consumer(tmp_path: Path) -> None:
    """D7, R13: an acknowledgement that meets the hand-over is made again at the next leader, so nothing is repeated. What
    was received has been finished with OK, which is final (D4).
    """
    options = evenq.SimpleOptions(timeout_ms=60_000)  # of a busy machine; a hand-over takes less than a second
    with group(tmp_path) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(50)
        with evenq.SimpleConsumer(
            group="workers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST", options=options
        ) as consumer:
            workers = [Worker(consumer) for _ in range(3)]
            for worker in workers:
                worker.start()
            for _ in range(2):
                sender.wait_for(100)
                leader = leader_of(cluster)
                assert leader.stop() == 0
                assert leader_of(cluster) is not leader
                leader.restart()
            acknowledged = sender.stop()
            until = time.monotonic() + 120
            while not set(acknowledged) <= {body for worker in workers for body in worker.finished}:
                assert time.monotonic() < until
                time.sleep(0.05)
            for worker in workers:
                worker.stop()
        finished = [body for worker in workers for body in worker.finished]
        assert [str(error) for worker in workers for error in worker.refused] == []
        assert sorted(finished) == sorted(set(finished))


@pytest.mark.slow  # the first two stories fail too if copies do
def test_without_a_second_copy_nothing_is_taken_and_it_says_why(tmp_path: Path) -> None:
    """R9: below the minimum a send is refused before anything is written."""
    with group(tmp_path) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(50)
        leader = leader_of(cluster)
        followers = [node for node in cluster.brokers if node is not leader]
        for node in followers:
            node.kill()
        options = evenq.ProducerOptions(max_attempts=1)
        with evenq.Producer(endpoint=leader.address, options=options) as producer:
            assert "1 of 2 copies are in sync" in refusal_of(producer)
        for node in followers:
            node.restart()
        sender.wait_for(50)
        acknowledged = sender.stop()
        assert set(acknowledged) <= set(read_all(cluster, len(acknowledged)))


@pytest.mark.slow  # the first two stories fail too if copies do
@pytest.mark.parametrize("mode", ["sync", "memory"])
def test_a_broker_with_an_empty_disk_copies_all_and_may_lead(tmp_path: Path, mode: str) -> None:
    """R8, R10: its new store is admitted once it has all that is committed."""
    with group(tmp_path, mode=mode) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(300)
        leader = leader_of(cluster)
        wiped = next(node for node in cluster.brokers if node is not leader)
        wiped.kill()
        folder = tmp_path / wiped.name
        folder.rename(tmp_path / "gone")
        wiped.restart(timeout_ms=60_000)
        acknowledged = sender.stop()
        for node in cluster.brokers:
            if node not in (wiped, leader):
                node.kill()  # now the wiped one is needed for every commit
        with evenq.Producer(endpoint=cluster.endpoints) as producer:
            producer.send(evenq.Message(topic=TOPIC, body=b"after the wipe"))
        leader.kill()
        for node in cluster.brokers:
            node.start()
        assert set(acknowledged) | {"after the wipe"} <= set(read_all(cluster, len(acknowledged) + 1))


@pytest.mark.slow
def test_a_disk_that_is_replaced_while_nothing_is_sent_leaves_the_group_at_rest(tmp_path: Path) -> None:
    """The lost disk has confirmed all that there is: it must not come back in turns with the new one."""
    with group(tmp_path) as cluster:
        record = tmp_path / "broker-a.group"
        leader = leader_of(cluster)
        wiped = next(node for node in cluster.brokers if node is not leader)
        lost = json.loads(record.read_text())["isr"]
        wiped.kill()
        shutil.rmtree(tmp_path / wiped.name)
        wiped.restart(timeout_ms=60_000)
        end = time.monotonic() + 60  # ready is a copy that is in sync, and the record may still have the lost disk
        while set((before := json.loads(record.read_text()))["isr"].items()) & set(lost.items()) == set(lost.items()):
            assert time.monotonic() < end, "the new disk is not admitted"
            time.sleep(0.05)
        time.sleep(3)
        after = json.loads(record.read_text())
        renewals = 3_000 / int(FAST["REPLICATION__RENEW_MS"])
        assert after["isr"] == before["isr"]
        assert after["version"] - before["version"] <= 2 + renewals


@pytest.mark.slow  # the first two stories fail too if copies do
def test_a_new_copy_of_a_log_whose_first_files_are_gone_takes_a_snapshot_and_may_lead(tmp_path: Path) -> None:
    """R10 behind retention: what the log no longer says, the leader's snapshot does; progress of groups included."""
    short = {
        "STORE__SEGMENT_BYTES": "65536",
        "STORE__RETENTION_MS": "3000",
        "STORE__SNAPSHOT_INTERVAL_MS": "1000",
        "STORE__DISK_CLEAN_RATIO": "0.01",  # the volume is fuller than that: looked at each second
    }
    with group(tmp_path, **short) as cluster:
        sender = Sender(cluster.endpoints, TOPIC)
        sender.start()
        sender.wait_for(200)
        read_some(cluster)
        leader = leader_of(cluster)
        log_folder = tmp_path / leader.name / "commitlog"
        end = time.monotonic() + 60
        while min(int(path.name) for path in log_folder.iterdir() if path.name.isdecimal()) == 0:
            assert time.monotonic() < end, "retention lets nothing go"
            time.sleep(0.1)
        time.sleep(2)  # the leader tells its copies within a second
        wiped = next(node for node in cluster.brokers if node is not leader)
        wiped.kill()
        shutil.rmtree(tmp_path / wiped.name)
        wiped.restart(timeout_ms=60_000)
        assert (
            min(int(path.name) for path in (tmp_path / wiped.name / "commitlog").iterdir() if path.name.isdecimal()) > 0
        )
        for node in cluster.brokers:
            if node not in {wiped, leader}:
                node.kill()
        sender.wait_for(20)
        leader.kill()
        for node in cluster.brokers:
            if node not in {wiped, leader}:
                node.start()
        successor = leader_of(cluster)
        assert successor is wiped
        leader.start()  # not before: it is in sync, too, and would lead again as soon as it runs
        sender.wait_for(20)
        sender.stop()
        read_some(cluster)
