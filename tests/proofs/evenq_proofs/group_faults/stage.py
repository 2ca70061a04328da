"""A broker group of three processes with a proxy in each way between them, and between each and the record's place.

The place is a process that keeps Leases (`lease_api`), so the brokers' own code for Kubernetes is what runs. Clients
reach the brokers directly. Broker `a` reaches broker `b` by `links[a, b]` and the place by `places[a]`.
"""

from __future__ import annotations

import json
import os
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from evenq.runtime.clock import SystemClock
from evenq.runtime.closing import Closing
from evenq.testing import LocalCluster
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node
from evenq_proofs.cluster_binaries import Program, wait_for
from evenq_proofs.group_faults.proxy import FaultProxy, ProxyLoop
from evenq_proofs.lease_api import kubeconfig_of, writes_of

__all__ = ["BROKERS", "GROUP", "GroupState", "Stage"]

BROKERS: Final = range(3)
GROUP: Final = "broker-a"
ANNOTATION: Final = "evenq.io/group-record"
PACKAGES: Final = str(Path(__file__).resolve().parents[2])
"""Where the process of the place finds this package."""
SETTINGS: Final = {
    "REPLICATION__RENEW_MS": "300", "REPLICATION__SUSPECT_MS": "1500", "REPLICATION__LAG_MS": "1000",
    "DRAIN_MS": "3000", "STORE__SEGMENT_BYTES": "1048576", "STORE__SNAPSHOT_LOG_BYTES": "524288",
    "STORE__DISK_FREE_MIN_BYTES": "0", "STORE__DISK_USED_MAX_RATIO": "1", "DEFAULT_GROUP_MAX_ATTEMPTS": "1000",
    "DEFAULT_START_FROM": "FIRST",
}  # fmt: skip


class GroupState(NamedTuple):
    """What the group record says."""

    epoch: int
    leader: int
    """Broker id; -1: no copy has led yet."""
    in_sync: frozenset[int]


class Stage(Closing):
    """A running one. Everything that it starts ends with `close`."""

    def __init__(self, folder: Path, rng: random.Random, *, mode: str = "sync", ready_ms_max: int = 60_000) -> None:
        self.folder = folder
        self.clock = SystemClock()
        self._ready_ms_max = ready_ms_max
        self._stack = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._build(rng, mode)
        except BaseException:
            self._stack.close()
            raise

    def _build(self, rng: random.Random, mode: str) -> None:
        ports = self._stack.enter_context(FreePorts())
        loop = self._stack.enter_context(ProxyLoop(rng))
        self._record, place_port = self.folder / "leases.json", ports.take()
        command = [sys.executable, "-m", "evenq_proofs.lease_api", str(place_port), str(self._record)]
        self.place = Program(
            command, log_path=self.folder / "place.log",
            environment={"PYTHONPATH": os.pathsep.join([PACKAGES, os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
        self._stack.callback(self.place.kill)
        self.place.start()
        own = [ports.take() for _ in BROKERS]
        self.links = {(a, b): loop.proxy(own[b]) for a in BROKERS for b in BROKERS if a != b}
        self.places = {a: loop.proxy(place_port) for a in BROKERS}

        def members(broker: int) -> dict[str, str]:
            ports_of = {b: own[b] if b == broker else self.links[broker, b].port for b in BROKERS}
            return {
                **SETTINGS,
                "REPLICATION__MODE": mode,
                "REPLICATION__MEMBERS": ",".join(f"{b}=127.0.0.1:{port}" for b, port in ports_of.items()),
                "REPLICATION__RECORD": f"lease:{GROUP}",
            }

        self.cluster = LocalCluster(
            replicas=len(BROKERS), nameservers=0, rebalancer=False, folder=self.folder / "cluster",
            broker_settings=members, ready_ms_max=self._ready_ms_max,
        )  # fmt: skip
        for broker, node in enumerate(self.cluster.brokers):
            config = kubeconfig_of(self.folder / f"kubeconfig-{broker}", self.places[broker].port)
            node.environment["KUBECONFIG"] = str(config)
        self._stack.callback(self.cluster.kill)
        self.cluster.start()

    # -- who is who ---------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[Node]:
        """By their ids."""
        return self.cluster.brokers

    def folder_of(self, broker: int) -> Path:
        """Its data."""
        return self.folder / "cluster" / self.brokers[broker].name

    def state(self) -> GroupState:
        """The record as its place has it now; it is read from the disk of the place, so no fault hides it."""
        try:
            leases = json.loads(self._record.read_bytes())["leases"]
        except OSError:
            return GroupState(0, -1, frozenset())
        for record in filter(None, map(_record_of, leases.values())):
            return GroupState(record["epoch"], record["leader"], frozenset(map(int, record["isr"])))
        return GroupState(0, -1, frozenset())

    def elections(self) -> list[tuple[int, int, int]]:
        """Epoch, leader, and when it was written to the record, ms of `clock`, before it was reported."""
        found: list[tuple[int, int, int]] = []
        for line in writes_of(self._record).read_text(encoding="utf-8").splitlines():
            try:
                write = json.loads(line)
            except ValueError:
                continue
            record = _record_of(write["lease"]) or {"leader": -1}
            if record["leader"] < 0:
                continue
            known = found[-1] if found else (0, -1, 0)
            if record["epoch"] == known[0] and record["leader"] != known[1]:
                found.pop()  # a kill of the place has undone that write
            elif record["epoch"] <= known[0]:
                continue
            found.append((record["epoch"], record["leader"], write["at_ms"]))
        return found

    def followers(self) -> list[int]:
        """All but the leader, ascending."""
        leader = self.state().leader
        return [broker for broker in BROKERS if broker != leader]

    def wait_in_sync(self, *, within_s: float = 90.0) -> None:
        """Until all three are. Raises AssertionError with the ends of their logs."""
        try:
            wait_for(lambda: len(self.state().in_sync) == len(BROKERS), "all copies in sync", seconds=within_s)
        except AssertionError as error:
            logs = "\n".join(f"--- {node.name}\n{node.log_text()[-3_000:]}" for node in self.brokers)
            raise AssertionError(f"{error}; {self.state()}\n{logs}") from error

    # -- its network --------------------------------------------------------------------------------------------------

    def between(self, one: int, other: int) -> list[FaultProxy]:
        """What connects two brokers: who dials whom decides nothing."""
        return [self.links[one, other], self.links[other, one]]

    def mend(self) -> None:
        """Every proxy passes everything again; connections that stand stay."""
        for proxy in (*self.links.values(), *self.places.values()):
            proxy.mend()

    # -- the end ------------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Brokers that ended by themselves, and stack traces in logs."""
        found = [f"{node.name} {node.end_text}: {node.log_text()[-2_000:]}" for node in self.brokers if not node.alive]
        return found + [f"a stack trace in {node.log_path}" for node in self.brokers if "Traceback" in node.log_text()]

    def stop(self) -> None:
        """All brokers end in order, the leader last, so that all copies have the same end."""
        leader = self.state().leader
        for broker in (*self.followers(), leader):
            self.brokers[broker].stop(timeout_ms=60_000)

    def close(self) -> None:
        """End everything. Idempotent."""
        self._stack.close()


def _record_of(lease: dict[str, Any]) -> dict[str, Any] | None:
    """The group record of a Lease; None: it has none yet."""
    record: dict[str, Any] | None = json.loads(lease["metadata"].get("annotations", {}).get(ANNOTATION, "null"))
    return record
