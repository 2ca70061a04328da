"""Where the record of a group stands, as something that is broken together with the group: Leases, or an etcd of three.

Each broker reaches the place through proxies of its own. A place is killed and started as a whole (`kill`, `start`); an
etcd can also lose or pause some of its members (`take`), which `mend` brings back.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import sys
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from evenq.runtime.clock import SystemClock
from evenq.runtime.closing import Closing
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node
from evenq_proofs.cluster_binaries import Program
from evenq_proofs.etcd import Etcd
from evenq_proofs.group_faults.proxy import FaultProxy, ProxyLoop
from evenq_proofs.lease_api import kubeconfig_of, writes_of

RECORDS: Final = ("lease", "etcd")
ANNOTATION: Final = "evenq.io/group-record"
PACKAGES: Final = str(Path(__file__).resolve().parents[2])
"""Where the process of the Leases finds this package."""
MEMBERS: Final = 3
"""Of an etcd."""
READ_S: Final = 0.5
ELECTED: Final = re.compile(r"replica \S+: elected, was ")
LEADS: Final = re.compile(r"replica \S+: starting, was elected")


class Election(NamedTuple):
    """Who was elected when, ms of the stage's clock; before anybody was told, so that no answer of it is earlier."""

    epoch: int
    leader: int
    at_ms: int


class Place(Closing):
    """See the module."""

    proxies: Mapping[int, Sequence[FaultProxy]]
    """What each broker reaches it by."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """True while all of it runs."""

    @abstractmethod
    def start(self) -> None:
        """Start what does not run; does not wait."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9 of all of it."""

    @abstractmethod
    def setting(self, broker: int) -> str:
        """`replication.record` of a broker."""

    def environment(self, broker: int) -> dict[str, str]:
        """Variables that a broker needs for it."""
        del broker
        return {}

    @abstractmethod
    def record(self) -> Mapping[str, Any] | None:
        """The newest record known; None: there is none yet. No fault hides it from this call."""

    @abstractmethod
    def elections(self, brokers: Sequence[Node], clock: SystemClock) -> list[Election]:
        """All that there were, ascending."""

    def take(self, members: Sequence[int], how: str) -> None:
        """Of a place of several members: kill or pause some, or cut them off from all brokers."""
        raise NotImplementedError(f"{type(self).__name__} has no members: {how} {members}")

    def mend(self) -> None:
        """What `take` took comes back."""
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.mend()


class LeasePlace(Place):
    """A process that keeps Leases in a file, so the brokers' own code for Kubernetes is what runs."""

    def __init__(self, folder: Path, group: str, brokers: Sequence[int], ports: FreePorts, loop: ProxyLoop) -> None:
        self._folder, self._group, port = folder, group, ports.take()
        self._path = folder / "leases.json"
        self._program = Program(
            [sys.executable, "-m", "evenq_proofs.lease_api", str(port), str(self._path)],
            log_path=folder / "place.log",
            environment={"PYTHONPATH": os.pathsep.join([PACKAGES, os.environ.get("PYTHONPATH", "")])},
        )
        self.proxies = {broker: (loop.proxy(port),) for broker in brokers}
        self.start()

    @property
    def running(self) -> bool:
        """See Place."""
        return self._program.running

    def start(self) -> None:
        """See Place."""
        if not self._program.running:
            self._program.start()

    def kill(self) -> None:
        """See Place."""
        self._program.kill()

    def close(self) -> None:
        """Idempotent."""
        self.kill()

    def setting(self, broker: int) -> str:
        """See Place."""
        del broker
        return f"lease:{self._group}"

    def environment(self, broker: int) -> dict[str, str]:
        """See Place."""
        config = kubeconfig_of(self._folder / f"kubeconfig-{broker}", self.proxies[broker][0].port)
        return {"KUBECONFIG": str(config)}

    def record(self) -> Mapping[str, Any] | None:
        """See Place; it is read from the disk of the place."""
        try:
            leases = json.loads(self._path.read_bytes())["leases"]
        except OSError:
            return None
        return next(filter(None, map(_record_of_lease, leases.values())), None)

    def elections(self, brokers: Sequence[Node], clock: SystemClock) -> list[Election]:
        """See Place."""
        del brokers, clock
        elections: list[Election] = []
        for line in writes_of(self._path).read_text(encoding="utf-8").splitlines():
            try:
                write = json.loads(line)
            except ValueError:
                continue
            record = _record_of_lease(write["lease"]) or {"leader": -1}
            if record["leader"] < 0:
                continue
            known = elections[-1] if elections else Election(0, -1, 0)
            if record["epoch"] == known.epoch and record["leader"] != known.leader:
                elections.pop()  # a kill of the place has undone that write
            elif record["epoch"] <= known.epoch:
                continue
            elections.append(Election(record["epoch"], record["leader"], write["at_ms"]))
        return elections


class EtcdPlace(Place):
    """Three members of etcd, each reached by each broker through a proxy."""

    def __init__(self, folder: Path, group: str, brokers: Sequence[int], loop: ProxyLoop) -> None:
        self._key = f"evenq/groups/{group}"
        self._etcd = Etcd(folder / "etcd", members=MEMBERS)
        self._taken: set[int] = set()
        self._known: dict[str, Any] | None = None
        ports = [int(url.rpartition(":")[2]) for url in self._etcd.urls]
        self.proxies = {broker: tuple(loop.proxy(port) for port in ports) for broker in brokers}

    @property
    def running(self) -> bool:
        """See Place."""
        return not self._taken and all(member.running for member in self._etcd.members)

    def start(self) -> None:
        """See Place."""
        for number, member in enumerate(self._etcd.members):
            if not member.running:
                member.start()
            elif number in self._taken:
                member.resume()
        self._taken.clear()

    def kill(self) -> None:
        """See Place."""
        for member in self._etcd.members:
            member.kill()

    def close(self) -> None:
        """Idempotent."""
        self._etcd.close()

    def setting(self, broker: int) -> str:
        """See Place."""
        endpoints = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies[broker])
        return f"etcd:{endpoints}/{self._key}"

    def take(self, members: Sequence[int], how: str) -> None:
        """See Place."""
        for number in members:
            member = self._etcd.members[number]
            if how == "cut":
                for proxies in self.proxies.values():
                    proxies[number].hold()
            elif how == "paused" and member.running:
                member.pause()
                self._taken.add(number)
            elif how == "killed":
                member.kill()

    def mend(self) -> None:
        """See Place."""
        super().mend()
        self.start()

    def record(self) -> Mapping[str, Any] | None:
        """See Place. Each member tells what it has, without asking the others; the newest counts, and it is kept while
        none answers.
        """
        for number, member in enumerate(self._etcd.members):
            if member.running and number not in self._taken:
                record = self._of_member(number)
                if record is not None and (self._known is None or record["version"] > self._known["version"]):
                    self._known = record
        return self._known

    def _of_member(self, number: int) -> dict[str, Any] | None:
        body = json.dumps({"key": base64.b64encode(self._key.encode()).decode(), "serializable": True}).encode()
        request = urllib.request.Request(f"{self._etcd.urls[number]}/v3/kv/range", body)
        with suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=READ_S) as response:
            values = [pair["value"] for pair in json.load(response).get("kvs", ())]
            return dict(json.loads(base64.b64decode(values[0]))) if values else None
        return None

    def elections(self, brokers: Sequence[Node], clock: SystemClock) -> list[Election]:
        """See Place."""
        return elections_of_logs([node.log_text() for node in brokers], clock)


def elections_of_logs(logs: Sequence[str], clock: SystemClock) -> list[Election]:
    """From what brokers log, by broker id: a broker says that it is elected when it hears so, before it does anything,
    and its epoch when it begins to lead. Whoever died between the two answered nobody.
    """
    offset_ms = clock.monotonic_ms() - clock.now_ms()
    elections: list[Election] = []
    for broker, log in enumerate(logs):
        elected_ms: int | None = None
        for line in log.splitlines():
            try:
                fields = json.loads(line)
                event = str(fields["event"])
            except (ValueError, TypeError, KeyError):
                continue  # a line that a kill tore
            if ELECTED.match(event):
                elected_ms = int(dt.datetime.fromisoformat(fields["time"]).timestamp() * 1_000) + offset_ms
            elif LEADS.match(event) and elected_ms is not None:
                elections.append(Election(fields["epoch"], broker, elected_ms))
                elected_ms = None
    return sorted(elections)


def place_of(
    record: str, folder: Path, group: str, brokers: Sequence[int], *, ports: FreePorts, loop: ProxyLoop
) -> Place:
    """One of `RECORDS`, started."""
    if record == "etcd":
        return EtcdPlace(folder, group, brokers, loop)
    return LeasePlace(folder, group, brokers, ports, loop)


def _record_of_lease(lease: dict[str, Any]) -> dict[str, Any] | None:
    """The group record of a Lease; None: it has none yet."""
    record: dict[str, Any] | None = json.loads(lease["metadata"].get("annotations", {}).get(ANNOTATION, "null"))
    return record
