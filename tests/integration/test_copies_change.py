"""Copies of a broker group that come and go while a sender and a reader work (R15 to R18), with real processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from evenq_proofs.replicated_group import added_copy, figure, group, in_sync

import evenq
from evenq.cli.__main__ import main
from evenq.client.core.broker_group_views import BrokerGroupView
from evenq.errors import Error, NotFound, PreconditionFailed
from evenq.testing import LocalCluster
from evenq.testing.node import Node

TOPIC, NAME = "flights", "broker-a"
LONG_S = 60.0


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
        """Wait for so many more acknowledged sends."""
        goal = len(self.sent) + count
        until(lambda: len(self.sent) >= goal, lambda: f"{len(self.sent)} of {goal} acknowledged")

    def finish(self) -> None:
        """No message that was acknowledged is missing, and none came again behind its acknowledgement."""
        self._ended.set()
        for thread in self._threads:
            thread.join(LONG_S)
        assert set(self.sent) <= self.acked
        assert self.again == []


def until(what: Callable[[], object], why: Callable[[], object] = lambda: "") -> None:
    end = time.monotonic() + LONG_S
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.1)


def shown(admin: evenq.Admin) -> BrokerGroupView:
    end = time.monotonic() + LONG_S
    while True:
        try:
            views = [one for one in admin.describe_cluster().broker_groups if one.broker_name == NAME]
        except Error:
            views = []
        if views:
            return views[0]
        assert time.monotonic() < end, "nobody tells of the group"
        time.sleep(0.1)


def number_of(node: Node) -> int:
    return int(node.name.rpartition("-")[2])


def node_of(cluster: LocalCluster, number: int) -> Node:
    return next(node for node in cluster.brokers if number_of(node) == number)


def all_in_sync(admin: evenq.Admin, *numbers: int) -> None:
    def so() -> bool:
        view = shown(admin)
        return [one.copy for one in view.copies if one.in_sync and one.may_lead] == sorted(numbers)

    until(so, lambda: shown(admin))


@pytest.mark.timeout(300)
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
            with pytest.raises(PreconditionFailed, match=r"needs 2 copies and has 2|1 copies would be left and 2"):
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
            admin.add_copy(NAME, follower, _address_of(removed, follower))
            all_in_sync(admin, *sorted(set(others) - {leader} | {follower}))
            traffic.more()
            admin.move_leader(NAME, to=3)
            traffic.more()
            traffic.finish()


def _address_of(node: Node, number: int) -> str:
    parts = node.environment["EVENQ_BROKER_REPLICATION__MEMBERS"].split(",")
    return next(part.partition("=")[2] for part in parts if part.startswith(f"{number}="))
