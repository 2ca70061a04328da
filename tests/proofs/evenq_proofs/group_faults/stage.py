"""A broker group of three processes with a proxy in each way between them, and between each and the record's place.

The place is one of `places`. Clients reach the brokers directly. Broker `a` reaches broker `b` by `links[a, b]`, and the
place by `place.proxies[a]`.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from evenq.runtime.clock import SystemClock
from evenq.runtime.closing import Closing
from evenq.testing import LocalCluster
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node
from evenq_proofs.group_faults.places import Election, place_of
from evenq_proofs.group_faults.proxy import FaultProxy, ProxyLoop
from evenq_proofs.waiting import until

BROKERS: Final = range(3)
GROUP: Final = "broker-a"
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

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        *,
        mode: str = "sync",
        record: str = "lease",
        ready_ms_max: int = 60_000,
    ) -> None:
        """`record`: where the group record stands, one of `places.RECORDS`."""
        self.folder = folder
        self.clock = SystemClock()
        self._ready_ms_max = ready_ms_max
        self._stack = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._build(rng, mode, record)
        except BaseException:
            self._stack.close()
            raise

    def _build(self, rng: random.Random, mode: str, record: str) -> None:
        ports = self._stack.enter_context(FreePorts())
        loop = self._stack.enter_context(ProxyLoop(rng))
        self.place = self._stack.enter_context(place_of(record, self.folder, GROUP, BROKERS, ports=ports, loop=loop))
        own = [ports.take() for _ in BROKERS]
        self.links = {(a, b): loop.proxy(own[b]) for a in BROKERS for b in BROKERS if a != b}

        def members(broker: int) -> dict[str, str]:
            ports_of = {b: own[b] if b == broker else self.links[broker, b].port for b in BROKERS}
            return {
                **SETTINGS,
                "REPLICATION__MODE": mode,
                "REPLICATION__MEMBERS": ",".join(f"{b}=127.0.0.1:{port}" for b, port in ports_of.items()),
                "REPLICATION__RECORD": self.place.setting(broker),
            }

        self.cluster = LocalCluster(
            replicas=len(BROKERS), nameservers=0, rebalancer=False, folder=self.folder / "cluster",
            broker_settings=members, ready_ms_max=self._ready_ms_max,
        )  # fmt: skip
        for broker, node in enumerate(self.cluster.brokers):
            node.environment.update(self.place.environment(broker))
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
        """The record as its place has it now; no fault hides it."""
        record = self.place.record()
        if record is None:
            return GroupState(0, -1, frozenset())
        return GroupState(record["epoch"], record["leader"], frozenset(map(int, record["isr"])))

    def elections(self) -> list[Election]:
        """All that there were, ascending."""
        return self.place.elections(self.brokers, self.clock)

    def followers(self) -> list[int]:
        """All but the leader, ascending."""
        leader = self.state().leader
        return [broker for broker in BROKERS if broker != leader]

    def is_whole(self) -> bool:
        """All three run, are in sync, and say so themselves: of one that was just started anew the record may still say
        it although its log has not been matched with its leader's.
        """
        alive = all(node.alive for node in self.brokers)
        return alive and len(self.state().in_sync) == len(BROKERS) and all(node._ready() for node in self.brokers)

    def wait_in_sync(self, *, within_s: float = 90.0) -> None:
        """Until the group is whole. Raises AssertionError with the ends of their logs."""
        try:
            until(self.is_whole, "all copies in sync", seconds=within_s)
        except AssertionError as error:
            logs = "\n".join(f"--- {node.name}\n{node.log_text()[-3_000:]}" for node in self.brokers)
            raise AssertionError(f"{error}; {self.state()}\n{logs}") from error

    # -- its network --------------------------------------------------------------------------------------------------

    def between(self, one: int, other: int) -> list[FaultProxy]:
        """What connects two brokers: who dials whom decides nothing."""
        return [self.links[one, other], self.links[other, one]]

    def mend(self) -> None:
        """Every proxy passes everything again, and the place is whole; connections that stand stay."""
        for proxy in self.links.values():
            proxy.mend()
        self.place.mend()

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
