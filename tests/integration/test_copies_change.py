"""Copies of a broker group that come and go while a sender and a reader work (R15 to R18), with real processes."""

from __future__ import annotations

import json
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from evenq_proofs.replicated_group import FAST, added_copy, figure, group, in_sync, members_of, number_of
from evenq_proofs.waiting import until as within

import evenq
from evenq.cli.__main__ import main
from evenq.client.core.admin.broker_group_views import BrokerGroupView
from evenq.errors import Error, NotFound, PreconditionFailed
from evenq.testing import LocalCluster
from evenq.testing.node import Node

TOPIC, NAME = "flights", "broker-a"
LONG_S = 100.0
until = partial(within, seconds=LONG_S)


class Traffic:
    """Sends numbered messages, each until it is acknowledged, and receives and acknowledges them, until `finish`."""

    def __init__(self, endpoints: str) -> None:
        self._endpoints, self._ended = endpoints, threading.Event()
        self.sent: list[str] = []
        self.acked: set[str] = set()
        self._ids: set[str] = set()
        self.again: list[str] = []
        """Received after an acknowledgement of theirs had been answered with OK."""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(LONG_S)

    def _send(self) -> None:
        with evenq.Producer(endpoint=self._endpoints) as producer:
            while not self._ended.is_set():
                body = f"message {len(self.sent)}"
                try:
                    producer.send(evenq.Message(topic=TOPIC, body=body.encode()))
                except Error:
                    time.sleep(0.02)
                    continue
                self.sent.append(body)

    def _read(self) -> None:
        reader = evenq.SimpleConsumer(
            group="readers", subscriptions={TOPIC: "*"}, endpoint=self._endpoints, start_from="FIRST"
        )
        with reader as consumer:
            while not self._ended.is_set() or len(self.acked) < len(set(self.sent)):
                try:
                    for message in consumer.receive(32, wait_ms=500):
                        body = message.body.decode()
                        if message.message_id in self._ids:
                            self.again.append(f"{body} ({message.message_id})")
                        consumer.ack(message)
                        self.acked.add(body)
                        self._ids.add(message.message_id)
                except Error:
                    time.sleep(0.02)

    def more(self, count: int = 20) -> None:
        """Wait for this number of more acknowledged sends."""
        goal = len(self.sent) + count
        until(lambda: len(self.sent) >= goal, lambda: f"{len(self.sent)} of {goal} acknowledged")

    def finish(self) -> None:
        """No message that was acknowledged is missing, and none came again behind its acknowledgement."""
        self._ended.set()
        for thread in self._threads:
            thread.join(LONG_S)
        assert set(self.sent) <= self.acked
        assert self.again == []


def shown(admin: evenq.Admin) -> BrokerGroupView:
    end = time.monotonic() + LONG_S
    while True:
        try:
            views = [one for one in admin.describe_cluster().broker_groups if one.broker_name == NAME]
        except Error:
            views = []
        if views:
            return views[0]
        assert time.monotonic() < end, "no copy tells of the group"
        time.sleep(0.1)


def node_of(cluster: LocalCluster, number: int) -> Node:
    return next(node for node in cluster.brokers if number_of(node) == number)


def all_in_sync(admin: evenq.Admin, *numbers: int) -> None:
    def so() -> bool:
        view = shown(admin)
        return [one.copy for one in view.copies if one.in_sync and one.may_lead] == sorted(numbers)

    until(so, lambda: shown(admin))


@pytest.mark.timeout(600)
@pytest.mark.slow  # several takeovers and catch-ups, one after the other
def test_copies_are_removed_and_added_under_a_sender_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with group(tmp_path) as cluster:
        in_sync(cluster, 3)
        new, address = added_copy(cluster, 3)
        with (
            evenq.Admin(endpoint=cluster.endpoints, timeout_ms=5_000) as admin,
            Traffic(cluster.endpoints) as traffic,
        ):
            traffic.more()
            leader = shown(admin).leader
            assert leader is not None
            follower = next(number for number in (0, 1, 2) if number != leader)
            removed = node_of(cluster, follower)
            assert [one.copy for one in admin.remove_copy(NAME, follower).copies] == sorted({0, 1, 2} - {follower})
            traffic.more()
            with pytest.raises(NotFound, match=f"has no copy {follower}"):
                admin.remove_copy(NAME, follower)
            with pytest.raises(PreconditionFailed, match=r"needs 2 copies and has 2|1 copy would be left and 2"):
                admin.remove_copy(NAME, leader)
            until(lambda: figure(removed, "evenq_broker_replica_member") == 0)
            removed.kill()
            removed.start()
            said = f"this is copy {follower}, and the copies of the group are"
            until(lambda: removed.log_text().count(said) >= 2, removed.log_text)
            assert figure(removed, "evenq_broker_replica_role", 'role="ready"') == 0

            assert main(["broker", "add-replica", NAME, "--copy", "3", "--at", address, "--json", "--endpoint", cluster.endpoints]) == 0  # fmt: skip
            assert "3" in json.loads(capsys.readouterr().out)["copies"]
            assert [one.copy for one in shown(admin).copies if one.in_sync and one.may_lead and one.copy == 3] == []
            traffic.more()
            new.start()
            others = sorted({0, 1, 2, 3} - {follower})
            all_in_sync(admin, *others)
            traffic.more()
            admin.set_in_sync_min(NAME, 3)
            with pytest.raises(PreconditionFailed, match="2 copies would be left and 3 are needed"):
                admin.remove_copy(NAME, next(number for number in others if number != leader))
            admin.set_in_sync_min(NAME, 2)
            view = admin.remove_copy(NAME, leader)
            assert view.leader not in {leader, None}
            assert [one.copy for one in view.copies] == sorted(set(others) - {leader})
            traffic.more()
            admin.add_copy(NAME, follower, members_of(removed)[follower])
            all_in_sync(admin, *sorted(set(others) - {leader} | {follower}))
            traffic.more()
            admin.move_leader(NAME, to=3)
            traffic.more()
            traffic.finish()


def received(endpoints: str, count: int) -> list[str]:
    """So many messages, each acknowledged."""
    bodies: list[str] = []
    with evenq.SimpleConsumer(
        group="readers", subscriptions={TOPIC: "*"}, endpoint=endpoints, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + LONG_S
        while len(bodies) < count:
            assert time.monotonic() < end, f"{len(bodies)} of {count}"
            for message in consumer.receive(min(32, count - len(bodies)), wait_ms=1_000):
                bodies.append(message.body.decode())
                consumer.ack(message)
    return bodies


@pytest.mark.timeout(600)
@pytest.mark.slow  # three starts of brokers, one after the other, and a takeover
def test_the_data_of_a_broker_that_was_alone_gets_copies_and_survives_the_loss_of_its_disk(tmp_path: Path) -> None:
    settings = {**FAST, "STORE__SEGMENT_BYTES": "1048576"}
    with LocalCluster(rebalancer=False, folder=tmp_path, broker_settings=settings, ready_ms_max=120_000) as cluster:
        first = cluster.brokers[0]
        bodies = [f"message {number}" for number in range(300)]
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for body in bodies:
                producer.send(evenq.Message(topic=TOPIC, body=body.encode().ljust(8_000)))
        read = received(cluster.endpoint, 100)
        address, *others_at = (f"127.0.0.1:{cluster._ports.take()}" for _ in range(3))
        members = dict(enumerate((address, *others_at)))
        first.stop()
        first.environment.update({
            "EVENQ_BROKER_REPLICATION__MEMBERS": ",".join(f"{number}={where}" for number, where in members.items()),
            "EVENQ_BROKER_REPLICATION__MIN_IN_SYNC": "2",
            "EVENQ_BROKER_REPLICATION__FROM_ONE_COPY": "true",
            "EVENQ_BROKER_REPLICATION__RECORD": f"file:{tmp_path / 'broker-a.group'}",
        })  # fmt: skip
        record = tmp_path / "broker-a.group"
        others = {"version": 1, "epoch": 1, "leader": 0, "isr": {"0": "a" * 32}, "min_isr": 1, "members": [0]}
        record.write_text(json.dumps({"token": "1", **others}))
        first.start()
        until(lambda: not first.alive, first.log_text)
        assert "holds the record of a group with the copies 0" in first.log_text(), "it joins no other group (R19)"
        assert not (tmp_path / "broker-a" / "replica").exists(), "it is still the folder of a broker that is alone"
        record.unlink()
        first.start()
        first.wait_ready(timeout_ms=120_000)
        result = {
            "STORE__SEGMENT_BYTES": "1048576",
            "REPLICATION__MEMBERS": first.environment["EVENQ_BROKER_REPLICATION__MEMBERS"],
        }
        nodes = [added_copy(cluster, number, **result)[0] for number in (1, 2)]
        with evenq.Admin(endpoint=cluster.endpoints, timeout_ms=5_000) as admin:
            assert (shown(admin).mode, shown(admin).in_sync_min, shown(admin).served) == ("sync", 1, True)
            for node in nodes:
                node.start()
            assert admin.grow_copies(NAME, members, in_sync_min=2, wait_ms=100_000).in_sync_min == 2
            all_in_sync(admin, 0, 1, 2)
            read += received(cluster.endpoints, 50)
            first.kill()
            shutil.rmtree(tmp_path / "broker-a")
            until(lambda: shown(admin).served and shown(admin).leader != 0, lambda: shown(admin))
            read += received(cluster.endpoints, 150)
            assert sorted(body.strip() for body in read) == sorted(bodies), "each once, none missing"
            first.start()  # with the settings from before: an empty folder is a new copy
            all_in_sync(admin, 0, 1, 2)
