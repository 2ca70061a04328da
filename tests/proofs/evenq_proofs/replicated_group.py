"""A replicated broker group of real processes on loopback, for tests: its record in a file, its copies in folders."""

from __future__ import annotations

import json
import random
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import evenq
from evenq.testing import LocalCluster
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node

_PREFIX = "EVENQ_BROKER_"

FAST = {
    "REPLICATION__RENEW_MS": "200",
    "REPLICATION__SUSPECT_MS": "2500",  # a busy machine's pauses are shorter, mostly
    "REPLICATION__LAG_MS": "1000",
    "DRAIN_MS": "2000",
    "ROUTE_SETTLE_MS": "0",  # the nameserver has just started, too; where it has run for long nothing waits
}


@contextmanager
def group(folder: Path, *, brokers: int = 3, mode: str = "sync", **settings: str) -> Iterator[LocalCluster]:
    """Brokers of one group, and a nameserver."""
    shared = {"REPLICATION__MODE": mode, **FAST, **settings}
    with LocalCluster(replicas=brokers, rebalancer=False, folder=folder, broker_settings=shared) as cluster:
        yield cluster


FAULTS = ("kill", "lose disk", "pause", "kill follower", "move", "replace")
"""Of `play_fault`."""
PAUSES_S = (1.0, 4.0, 8.0)
"""The shortest moves no leader, the others do."""


class Copies(Protocol):
    """A group that runs."""

    @property
    def brokers(self) -> Sequence[Node]:
        """Its copies."""
        ...


class OneAddress:
    """Three copies, each on a loopback address of its own with the ports of the others, and no nameserver."""

    def __init__(self, brokers: Sequence[Node], record: Path) -> None:
        self.brokers = brokers
        """By broker id; the first one founds the group and leads at first."""
        self._record = record
        self.endpoint = brokers[1].address
        """The one that clients get, whichever copy leads: the second copy's."""

    def pause(self, leader: Node) -> None:
        """Stop its process, so that no connection ends. Not while it has the lock of the group record, which a file is
        here: no other copy could be elected then.
        """
        leader.pause(without=[Path(f"{self._record}.lock")])


def nodes_at_one_address(ports: FreePorts, folder: Path, **settings: str) -> list[Node]:
    """Three copies of a broker as a release of the chart has them, not started."""
    port, links, page = (ports.take() for _ in range(3))
    hosts = [f"127.0.0.{number + 1}" for number in range(3)]
    members = ",".join(f"{number}={host}:{links}" for number, host in enumerate(hosts))
    nodes = []
    for number, host in enumerate(hosts):
        own = {
            "HOST": host,
            "PORT": str(port),
            "METRICS_PORT": str(page),
            "BROKER_NAME": "broker-a",
            "ADVERTISE": f"{host}:{port},any-copy={hosts[1]}:{port}",
            "STORE__PATH": str(folder / f"copy-{number}"),
            "STORE__DISK_FREE_MIN_BYTES": "0",
            "STORE__DISK_USED_MAX_RATIO": "1",
            "REPLICATION__MEMBERS": members,
            "REPLICATION__BROKER_ID": str(number),
            "REPLICATION__RECORD": f"file:{folder / 'record'}",
            "REPLICATION__FORWARD_CLIENTS": "true",
            **FAST,
            **settings,
        }
        node = Node(
            "evenq_broker", name=f"copy-{number}", port=port, metrics_port=page, peer_port=links, host=host,
            log_path=folder / f"copy-{number}.log", environment={_PREFIX + key: one for key, one in own.items()},
        )  # fmt: skip
        nodes.append(node)
    return nodes


@contextmanager
def group_at_one_address(folder: Path, **settings: str) -> Iterator[OneAddress]:
    """Copies that follow lead clients on, and routes name one address for all."""
    with ExitStack() as stack:
        nodes = nodes_at_one_address(stack.enter_context(FreePorts()), folder, **settings)
        for node in nodes:
            node.start()
            stack.callback(node.kill)
        for node in nodes:
            node.wait_ready()
        yield OneAddress(nodes, folder / "record")


def added_copy(cluster: LocalCluster, number: int, *, mode: str = "sync", **settings: str) -> tuple[Node, str]:
    """A further broker for the group of the first one, not started, with an empty folder; and its address for the other
    copies.
    """
    first = cluster.brokers[0]
    address = f"127.0.0.1:{cluster._ports.take()}"
    own = {
        "REPLICATION__MODE": mode,
        **FAST,
        "REPLICATION__MEMBERS": f"{first.environment['EVENQ_BROKER_REPLICATION__MEMBERS']},{number}={address}",
        "REPLICATION__BROKER_ID": str(number),
        "REPLICATION__MIN_IN_SYNC": "1",
        "REPLICATION__RECORD": f"file:{cluster.folder / 'broker-a.group'}",
        **settings,
    }
    assert first.name.startswith("broker-a")
    node = cluster._broker("a", 0, own)
    cluster.brokers.append(node)
    return node, address


def number_of(node: Node) -> int:
    """Its broker id."""
    return int(node.environment[f"{_PREFIX}REPLICATION__BROKER_ID"])


def members_of(node: Node) -> dict[int, str]:
    """Where copies reach each other, by broker id, as it was told at its start."""
    members = node.environment[f"{_PREFIX}REPLICATION__MEMBERS"].split(",")
    return {int(number): address for number, _, address in (member.partition("=") for member in members)}


def folder_of(node: Node) -> Path:
    """Of its data."""
    return Path(node.environment[f"{_PREFIX}STORE__PATH"])


def _page(node: Node, name: str) -> str:
    """One of its pages; empty while it does not answer, or says that it is not ready."""
    try:
        with urllib.request.urlopen(f"http://{node.host}:{node.metrics_port}/{name}", timeout=10) as response:
            return str(response.read().decode())
    except (OSError, urllib.error.URLError):
        return ""


def listens(node: Node) -> bool:
    """Whether clients reach it."""
    try:
        with socket.create_connection(("127.0.0.1", node.port), timeout=2):
            return True
    except OSError:
        return False


def readiness(node: Node) -> str:
    """Its `/readyz`: `ready`, or why it is not; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{node.host}:{node.metrics_port}/readyz", timeout=60) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        return ""


def events(node: Node, words: str, *, since: int = 0) -> list[str]:
    """Lines of its log with these words. `since`: an earlier length of `log_text`."""
    text = node.log_text()[since:]
    whole = text[: text.rfind("\n") + 1]  # the last line may be half written
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line["event"] for line in lines if words in line["event"]]


def _metrics(node: Node) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in _page(node, "metrics").splitlines() if line[:1] != "#"]
    series = {name: float(value) for name, _, value in lines}
    assert len(series) == len(lines), "a series stands twice on one page"
    return series


def figure(node: Node, name: str, *marks: str) -> float:
    """One series of its page; -1 without it."""
    found = [
        value for key, value in _metrics(node).items() if key.startswith(f"{name}{{") and all(m in key for m in marks)
    ]
    return found[0] if found else -1.0


def leader_of(cluster: Copies, *, within_s: float = 60.0) -> Node:
    """Who serves; waits for it."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for node in cluster.brokers:
            if node.alive and figure(node, "evenq_broker_replica_role", 'role="ready"') == 1 and _page(node, "readyz"):
                return node
        time.sleep(0.05)
    raise AssertionError(
        f"no leader within {within_s} s: " + "\n".join(node.log_text()[-2_000:] for node in cluster.brokers)
    )


def in_sync(cluster: Copies, count: int, *, within_s: float = 60.0) -> None:
    """Wait until this number of copies are in sync, as the leader says, and know it themselves: the leader still counts
    one that was killed and started again a moment ago, which has yet to learn who leads, and may be ready for clients.
    """

    def takes_part(node: Node) -> bool:
        return any(figure(node, "evenq_broker_replica_role", f'role="{role}"') == 1 for role in ("fetching", "ready"))

    def all_say_so() -> bool:
        ready = sum(node.alive and readiness(node).strip() == "ready" and takes_part(node) for node in cluster.brokers)
        return figure(leader_of(cluster), "evenq_broker_replicas_in_sync") >= count <= ready

    end = time.monotonic() + within_s
    while not all_say_so():
        if time.monotonic() > end:
            raise AssertionError(f"not {count} copies in sync within {within_s} s")
        time.sleep(0.1)


def play_fault(cluster: LocalCluster, what: str, rng: random.Random) -> None:
    """One of FAULTS, to the leader unless it says otherwise, of a group of three in sync, from its begin until all
    copies run. Raises what `evenq.Admin` does.
    """
    leader = leader_of(cluster)
    follower = rng.choice([node for node in cluster.brokers if node is not leader])
    match what:
        case "kill" | "lose disk" | "kill follower":
            victim = follower if what == "kill follower" else leader
            victim.kill()
            if what == "lose disk":
                shutil.rmtree(folder_of(victim))
            leader_of(cluster)
            victim.restart(timeout_ms=60_000)
        case "pause":
            leader.pause(without=[cluster.folder / "broker-a.group.lock"])
            time.sleep(rng.choice(PAUSES_S))
            leader.resume()
        case "move":
            with evenq.Admin(endpoint=cluster.endpoints) as admin:
                admin.move_leader("broker-a")
        case "replace":
            number = number_of(follower)
            with evenq.Admin(endpoint=cluster.endpoints) as admin:
                admin.remove_copy("broker-a", number)
                follower.kill()
                shutil.rmtree(folder_of(follower))
                admin.add_copy("broker-a", number, members_of(follower)[number])
            follower.restart(timeout_ms=60_000)
        case _:
            raise ValueError(f"no fault {what!r}")
