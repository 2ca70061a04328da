"""What operators get wrong with copies, and what they are told: real processes of one group, one of which is spoilt."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.replicated_group import events, figure, group, in_sync, leader_of, readiness
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster
from evenq.testing.node import Node

pytestmark = [pytest.mark.timeout(BUILD_SECONDS + 300), pytest.mark.slow]

PREFIX = "EVENQ_BROKER_"


@dataclass(frozen=True)
class Copies:
    """A group in sync."""

    cluster: LocalCluster
    leader: Node
    victim: Node
    """A follower."""
    other: Node

    @property
    def folder(self) -> Path:
        """The victim's."""
        return Path(self.victim.environment[f"{PREFIX}STORE__PATH"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with group(tmp_path_factory.mktemp("copies")) as cluster:
        yield cluster


@pytest.fixture
def copies(running: LocalCluster) -> Iterator[Copies]:
    """Three in sync, before and after; messages are taken all the time."""
    in_sync(running, 3)
    leader = leader_of(running)
    victim, other = [node for node in running.brokers if node is not leader]
    environment, cluster = dict(victim.environment), Copies(running, leader, victim, other)
    yield cluster
    with evenq.Producer(endpoint=running.endpoints) as producer:
        producer.send(evenq.Message(topic="flights", body=b"goes on"))
    victim.environment = environment
    victim.kill()
    victim.start()
    in_sync(running, 3)


def last_words(node: Node) -> str:
    """What it says when it ends by itself."""
    node.start()
    until(lambda: not node.alive, node.log_text)
    lines = node.log_text().splitlines()
    assert "Traceback" not in lines[-1]
    assert lines[-1].startswith("evenq-broker: ")
    return lines[-1]


def said(node: Node, words: str, since: int) -> None:
    until(lambda: events(node, words, since=since), node.log_text)


@pytest.mark.parametrize(
    ("setting", "value", "refused", "linked"),
    [
        ("CLUSTER", "other", "correct the settings `cluster` and", "this is cluster 'evenq', not 'other': all copies"),
        (
            "BROKER_NAME",
            "broker-aa",
            "broker-aa",
            "this is a broker of group 'broker-a', not of 'broker-aa': all copies",
        ),
    ],
)
def test_a_copy_with_a_wrong_name_or_folder_is_refused_and_the_group_goes_on(
    copies: Copies, setting: str, value: str, refused: str, linked: str
) -> None:
    victim = copies.victim
    victim.stop()
    begun = len(copies.leader.log_text())
    victim.environment[f"{PREFIX}{setting}"] = value
    assert refused in last_words(victim)
    aside = copies.folder.with_name("aside")
    copies.folder.rename(aside)
    victim.start()  # with an empty folder it cannot see that it is of another group
    said(copies.leader, linked, begun)
    until(lambda: "it is not in sync with its group" in readiness(victim))
    victim.kill()
    shutil.rmtree(copies.folder)
    aside.rename(copies.folder)


def test_an_address_that_leads_to_another_copy_is_named(copies: Copies) -> None:
    victim = copies.victim
    victim.stop()
    members = dict(part.split("=") for part in victim.environment[f"{PREFIX}REPLICATION__MEMBERS"].split(","))
    number, leads, third = (
        node.environment[f"{PREFIX}REPLICATION__BROKER_ID"] for node in (victim, copies.leader, copies.other)
    )
    crossed = {**members, third: members[leads], leads: members[third]}
    begun = len(victim.log_text())
    victim.environment[f"{PREFIX}REPLICATION__MEMBERS"] = ",".join(f"{key}={at}" for key, at in crossed.items())
    victim.start()
    said(victim, f"this is broker {leads} of group 'broker-a', not {third}: replication.members gives", begun)
    victim.kill()
    own = {**members, number: members[leads]}
    victim.environment[f"{PREFIX}REPLICATION__MEMBERS"] = ",".join(f"{key}={at}" for key, at in own.items())
    assert f"the address {members[leads]}; each needs its own" in last_words(victim)
    assert victim.exit_code == 2


def test_a_copy_of_a_newer_format_is_refused_and_left_as_it_is(copies: Copies) -> None:
    copies.victim.stop()
    path = copies.folder / "identity"
    before = path.read_text()
    newer = json.dumps({**json.loads(before), "format": 99})
    path.write_text(newer)
    try:
        line = last_words(copies.victim)
        left = path.read_text()
    finally:
        path.write_text(before)
    assert f"{copies.folder} has format 99; this program reads format 1: start a newer program" in line
    assert left == newer


def test_two_processes_run_as_one_copy(copies: Copies) -> None:
    """They are told, and so is who follows the leader's log; the second one of a folder is refused."""
    victim, cluster = copies.victim, copies.cluster
    number = victim.environment[f"{PREFIX}REPLICATION__BROKER_ID"]
    begun = len(copies.leader.log_text()), len(victim.log_text())
    own = {
        "STORE__PATH": str(cluster.folder / "twin"), "METRICS_PORT": "-1", "PORT": str(cluster._ports.take()),
        "REPLICATION__PORT": str(cluster._ports.take()),
    }  # fmt: skip
    environment = {**victim.environment, **{f"{PREFIX}{key}": value for key, value in own.items()}}
    twin = Node(
        "evenq_broker", name="twin", port=int(own["PORT"]), metrics_port=-1, log_path=cluster.folder / "logs" / "twin.log",
        environment=environment,
    )  # fmt: skip
    twin.start()
    try:
        said(copies.leader, f"two processes run with replication.broker_id={number}; stop one of them", begun[0])
        said(victim, f"two processes run as broker {number} (replication.broker_id)", begun[1])
        assert len(events(copies.leader, "take each other's place", since=begun[0])) == 1
        assert len(events(victim, "took its place", since=begun[1])) <= 2, "one for each link"
    finally:
        twin.kill()
    replica = (copies.folder / "replica").stat().st_ino
    twin.environment[f"{PREFIX}STORE__PATH"] = str(copies.folder)
    assert f"is in use by process {victim.pid}" in last_words(twin)
    assert (copies.folder / "replica").stat().st_ino == replica, "it was written before the folder was refused"


def test_a_folder_that_is_removed_under_its_copy_ends_it(copies: Copies) -> None:
    victim = copies.victim
    shutil.rmtree(copies.folder)
    with evenq.Producer(endpoint=copies.cluster.endpoints) as producer:
        producer.send(evenq.Message(topic="flights", body=b"one to copy"))
    until(lambda: not victim.alive)
    line = victim.log_text().splitlines()[-1]
    assert f"{copies.folder} was moved or removed" in line
    assert "start this copy on another one with an empty folder" in line


@contextmanager
def only_writer(record: Path) -> Iterator[None]:
    """The leader, which writes every 200 ms, waits meanwhile."""
    with record.with_name(f"{record.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("lost", [False, True], ids=["put back", "gone"])
def test_a_record_that_was_put_back_is_refused_until_it_is_written_anew(copies: Copies, *, lost: bool) -> None:
    """Epochs never go back; the way out is the one of the runbook GroupRecordAway."""
    cluster, leader = copies.cluster, copies.leader
    begun = {node.name: len(node.log_text()) for node in cluster.brokers}
    record = cluster.folder / "broker-a.group"
    with only_writer(record):
        fields = json.loads(record.read_text())
        version, epoch = fields["version"], fields["epoch"]
        if lost:
            record.unlink()
        else:
            older = {"epoch": epoch - 1, "version": 1, "leader": fields["leader"] if epoch > 1 else -1}
            record.write_text(json.dumps({**fields, **older}))
    for node in cluster.brokers:
        said(node, f"this broker has seen epoch {epoch}, version", begun[node.name])
        until(lambda node=node: figure(node, "evenq_broker_replica_record_reachable") == 0)
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        producer.send(evenq.Message(topic="flights", body=b"the leader goes on"))
    assert leader_of(cluster) is leader
    own = json.loads((Path(leader.environment[f"{PREFIX}STORE__PATH"]) / "replica").read_text())
    assert own["epoch"] == epoch
    anew = {
        "version": version + 1_000, "epoch": epoch + 1, "leader": own["broker_id"],
        "isr": {str(own["broker_id"]): own["store_id"]}, "min_isr": 2, "members": [0, 1, 2], "token": "100000",
    }  # fmt: skip
    with only_writer(record):
        record.write_text(json.dumps(anew))
    until(lambda: figure(leader, "evenq_broker_replica_epoch") >= epoch + 2)  # more: a busy machine may elect again
    in_sync(cluster, 3)
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        producer.send(evenq.Message(topic="flights", body=b"the group goes on"))
