"""`evenq backup` against real brokers: made under load, restored into a new cluster, everything acknowledged is there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from evenq_proofs.command_line import evenq_json, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.testing import LocalCluster

pytestmark = pytest.mark.timeout(300)

SEGMENT = {"STORE__SEGMENT_BYTES": str(1 << 20)}
WAIT_S = 60


tool = partial(evenq_json, "backup")


class Sender(threading.Thread):
    """Sends numbered messages until it is stopped; keeps what was acknowledged."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._ended = endpoint, threading.Event()
        self.acknowledged: list[str] = []

    def run(self) -> None:
        with evenq.Producer(endpoint=self._endpoint) as producer:
            number = 0
            while not self._ended.is_set():
                number += 1
                try:
                    producer.send(evenq.Message(topic="orders", body=f"order {number} ".encode() + b"." * 2_000))
                except Error:
                    time.sleep(0.02)
                else:
                    self.acknowledged.append(f"order {number}")
                time.sleep(0.003)

    def stop(self) -> None:
        self._ended.set()
        self.join(WAIT_S)


def read(endpoint: str, topic: str, group: str, until: Callable[[list[str]], bool], *, ack: bool = True) -> list[str]:
    """What a group gets until it is enough."""
    bodies: list[str] = []
    with evenq.SimpleConsumer(
        group=group, subscriptions={topic: "*"}, endpoint=endpoint, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + WAIT_S
        while not until(bodies):
            assert time.monotonic() < end, f"{len(bodies)} messages of {topic} after {WAIT_S} s"
            for message in consumer.receive(200, invisible_ms=300_000, wait_ms=500):
                bodies.append(message.body.decode().rstrip(". "))
                if ack:
                    consumer.ack(message)
    return bodies


@pytest.mark.slow  # three clusters, and a message that is delayed for 15 s
def test_all_that_was_acknowledged_before_a_backup_under_load_is_in_a_new_cluster(tmp_path: Path) -> None:
    """Messages, offsets of groups, delayed messages, dead letters; the second run copies what is new."""
    target = tmp_path / "backups"
    with LocalCluster(rebalancer=False, folder=tmp_path / "old", broker_settings=SEGMENT) as old:
        endpoint = old.endpoint
        with evenq.Admin(endpoint=endpoint) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_topic("calls", queues=1, message_type="DELAY")
            admin.create_group("billing", max_attempts=1, start_from="FIRST")
        sender = Sender(endpoint)
        sender.start()
        until(lambda: len(sender.acknowledged) >= 300, "some sends")
        first = set(read(endpoint, "orders", "audit", lambda bodies: len(bodies) >= 100))
        with evenq.Producer(endpoint=endpoint) as producer:
            producer.send(evenq.Message(topic="calls", body=b"later", delivery_ms=int(time.time() * 1000) + 15_000))
            producer.send(evenq.Message(topic="poison", body=b"bad"))
        with evenq.SimpleConsumer(group="billing", subscriptions={"poison": "*"}, endpoint=endpoint) as consumer:
            handle = None
            end = time.monotonic() + WAIT_S
            while handle is None and time.monotonic() < end:
                for message in consumer.receive(1, invisible_ms=30_000, wait_ms=1_000):
                    handle = message
            assert handle is not None
            consumer.change_invisible(handle, 0)
        with evenq.Admin(endpoint=endpoint) as admin:
            until(lambda: len(admin.list_dead_letters("billing").letters) == 1, "the dead letter")
        before = list(sender.acknowledged)
        [made] = tool("create", "--to", target, "--endpoint", endpoint)
        assert made["copied_bytes"] == made["until"] - made["log_start"]
        grown = len(sender.acknowledged)
        until(lambda: len(sender.acknowledged) >= grown + 200, "more sends")
        between = list(sender.acknowledged)
        [again] = tool("create", "--to", target, "--endpoint", endpoint, "--max-rate", "50M")
        sender.stop()
        assert again["copied_bytes"] == again["until"] - made["until"] > 0, "only what is new"
    assert tool("verify", target)["clean"]

    folder = tmp_path / "new" / "broker-a"
    done = tool("restore", target, "--broker", "broker-a", "--data", folder)
    assert (done["until"], done["epoch"]) == (again["until"], 2)
    run_evenq("store", "verify", folder)
    with LocalCluster(rebalancer=False, folder=tmp_path / "new", broker_settings=SEGMENT) as new:
        got = read(new.endpoint, "orders", "fresh", lambda bodies: set(bodies) >= set(between), ack=False)
        assert set(got) <= set(sender.acknowledged) | {f"order {len(sender.acknowledged) + 1}"}
        assert not first & set(read(new.endpoint, "orders", "audit", lambda bodies: len(bodies) >= 100)), "offsets"
        with evenq.Admin(endpoint=new.endpoint) as admin:
            assert [one.body for one in admin.list_dead_letters("billing", bodies=True).letters] == [b"bad"]
        assert read(new.endpoint, "calls", "ringing", bool) == ["later"]
        with evenq.Producer(endpoint=new.endpoint) as producer:
            producer.send(evenq.Message(topic="orders", body=b"the first new one"))
    earlier = tmp_path / "earlier" / "broker-a"
    tool("restore", target, "--until", made["until"], "--data", earlier)
    run_evenq("store", "verify", earlier)
    run_evenq("store", "verify", folder)
    with LocalCluster(rebalancer=False, folder=tmp_path / "earlier", broker_settings=SEGMENT) as new:
        got = read(new.endpoint, "orders", "fresh", lambda bodies: set(bodies) >= set(before), ack=False)
        assert not set(between[-100:]) & set(got), "what was stored behind the place is not there"
    assert "is not empty" in tool("restore", target, "--data", earlier, code=4)


@pytest.mark.slow  # two groups of three brokers, and a failover
def test_a_group_of_three_is_backed_up_and_begins_anew_from_one_restored_copy(tmp_path: Path) -> None:
    """Also when another copy leads by the second run; epochs go on above the old ones."""
    target = tmp_path / "backups"
    sent: list[str] = []

    def send(endpoint: str, count: int) -> None:
        with evenq.Producer(endpoint=endpoint) as producer:
            for _ in range(count):
                text = f"order {len(sent)}"
                producer.send(evenq.Message(topic="orders", body=text.encode()))
                sent.append(text)

    with LocalCluster(replicas=3, rebalancer=False, folder=tmp_path / "old", broker_settings=SEGMENT) as old:
        send(old.endpoints, 50)
        [first] = tool("create", "--to", target, "--endpoint", old.endpoints.replace(";", ","))
        next(node for node in old.brokers if serves(node.address)).kill()
        until(lambda: any(serves(node.address) for node in old.brokers), "another copy leads")
        send(old.endpoints, 50)
        [second] = tool("create", "--to", target, "--endpoint", old.endpoints.replace(";", ","))
        assert 0 < second["copied_bytes"] == second["until"] - first["until"], "the other copy's log is the same"
    for node in old.brokers:
        run_evenq("store", "verify", tmp_path / "old" / node.name)
    done = tool("restore", target, "--data", tmp_path / "new" / "broker-a-0")
    run_evenq("store", "verify", tmp_path / "new" / "broker-a-0")
    assert done["epoch"] >= 3, "above both leaders'"
    with LocalCluster(replicas=3, rebalancer=False, folder=tmp_path / "new", broker_settings=SEGMENT) as new:
        until(lambda: serves(new.brokers[0].address), "the restored copy leads")
        got = read(new.endpoints, "orders", "fresh", lambda bodies: set(bodies) >= set(sent), ack=False)
        assert sorted(got) == sorted(sent)
        with evenq.Admin(endpoint=new.endpoints) as admin:

            def whole() -> bool:
                [group] = admin.describe_cluster().broker_groups
                return group.in_sync == 3 and group.epoch > done["epoch"]

            until(whole, "three in sync, in a higher epoch")
        new.brokers[0].kill()
        until(lambda: any(serves(node.address) for node in new.brokers[1:]), "another copy leads")
        send(new.endpoints, 1)
        got = read(new.endpoints, "orders", "others", lambda bodies: set(bodies) >= set(sent), ack=False)
        assert sorted(got) == sorted(sent)


def serves(address: str) -> bool:
    try:
        with evenq.Admin(endpoint=address, timeout_ms=2_000) as admin:
            return bool(admin.list_brokers())
    except Error:
        return False


@pytest.mark.slow  # a backup that is slow on purpose
def test_a_broker_that_is_killed_in_the_middle_is_asked_again_behind_what_came(tmp_path: Path) -> None:
    target = tmp_path / "backups"
    with LocalCluster(rebalancer=False, folder=tmp_path / "old", broker_settings=SEGMENT) as old:
        with evenq.Producer(endpoint=old.endpoint) as producer:
            for number in range(300):
                producer.send(evenq.Message(topic="orders", body=f"{number}".encode() * 2_000))
        words = [
            "create",
            "--to",
            str(target),
            "--endpoint",
            old.endpoint,
            "--max-rate",
            "300K",
            "--patience",
            "150s",
            "--json",
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "evenq.cli", "backup", *words], stdout=subprocess.PIPE, text=True
        ) as backup:
            try:
                until(lambda: bool(list(target.rglob("*.new"))), "a piece has begun")
                old.brokers[0].kill()
                old.brokers[0].restart(timeout_ms=100_000)
                out, _ = backup.communicate(timeout=200)
            finally:
                backup.kill()
        assert backup.returncode == 0
        [made] = json.loads(out)
        assert made["copied_bytes"] == made["until"]
    assert tool("verify", target)["clean"]
    assert len(list((target / "broker-a" / "log").iterdir())) > 1, "what came before the kill is a piece of its own"
