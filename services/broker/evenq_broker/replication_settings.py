"""Settings of a broker group: the copies of a broker's log. A part of `BrokerSettings` (`evenq_broker.settings`)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from evenq_broker.core.replication.record import MEMBERS_MAX, address_fault

BROKER_ID_MAX = 999_999_999
"""Highest number of a copy that the group record can store."""


class ReplicationSettings(BaseModel, frozen=True, extra="forbid"):
    """Copies of the broker's log on other machines. All copies have the same `broker_name` and form one group."""

    members: str = Field(
        default="",
        description="Addresses of all copies of the group, this one included, as `id=host:port`, comma-separated. The "
        "copies reach each other there, and readers that take any copy reach followers there. Empty = one copy; then "
        "broker_id, record, from_one_copy and forward_clients must not be set.",
    )
    broker_id: int = Field(default=0, ge=0, le=BROKER_ID_MAX, description="Number of this copy among `members`.")
    host: str = Field(
        default="",
        description="Address on which this broker listens for the other copies; empty = the address in `host`.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port on which this broker listens for the other copies; 0 = the port of its own entry "
        "in `members`.",
    )
    mode: Literal["sync", "memory"] = Field(
        default="sync",
        description="When a copy counts as having a record. sync = after the record is synced to disk. memory = after "
        "it is written, which is faster but loses records if all copies lose power at the same time.",
    )
    min_in_sync: int = Field(
        default=2,
        ge=1,
        le=9,
        description="Fewest copies in sync; with fewer, messages are refused. Read only when the group is created; "
        "change it later with `evenq broker set-min-in-sync GROUP N`.",
    )
    record: str = Field(
        default="",
        description="Where the group record is kept: `file:PATH` for brokers on one machine, "
        "`etcd:host:port[,host:port]/KEY`, or `lease:NAME` in Kubernetes.",
    )
    from_one_copy: bool = Field(
        default=False,
        description="The data folder of a broker without copies becomes the first copy of a new group (the lowest id "
        "of `members`), with all its messages. Add the other `members` by the command `broker grow` while it serves. "
        "Set it at those copies too: with forward_clients they forward clients to the first copy from the start, and "
        "are ready for clients before they are in sync. It has no effect on any other folder, so it may stay set.",
    )
    forward_clients: bool = Field(
        default=False,
        description="While this copy follows, it forwards connections of clients from its ports to the same ports of "
        "the leader's host in `members`. So a load balancer may choose any copy. A connection waits up to 10 s while "
        "no copy leads. All copies must have the same ports, and each its own host (an address).",
    )
    etcd_user: str = Field(default="", description="User name for etcd; empty = none.")
    etcd_password: Path | None = Field(default=None, description="File with the password for etcd.")
    etcd_ca: Path | None = Field(default=None, description="PEM file of the authority that signed etcd's certificate.")
    renew_ms: int = Field(
        default=2_000, ge=10, le=60_000, description="Interval between signs of life of a leader, ms."
    )
    suspect_ms: int = Field(
        default=6_000,
        ge=20,
        le=600_000,
        description="Another copy becomes leader when the leader has given no sign of life for this time, ms. Set it "
        "above renew_ms. Time without access to the group record does not count. Lower values shorten the pause after "
        "a crash; raise it if leaders change without a crash.",
    )
    lag_ms: int = Field(
        default=3_000,
        ge=10,
        le=600_000,
        description="A copy that is silent or behind for this time is no longer in sync, ms.",
    )
    relief_ms: int = Field(
        default=60_000,
        ge=0,
        le=86_400_000,
        description="A leader with a full disk hands over to a copy in sync with more free space. It does so at most "
        "once in this time, and not before it has led for this time, ms. At least min_in_sync other copies must have "
        "free space. 0 = never.",
    )
    follower_reads: bool = Field(
        default=True,
        description="While this copy follows, it answers readers that take committed messages from any copy, at its "
        "address in `members`.",
    )
    far_behind_bytes: int = Field(
        default=0,
        ge=0,
        description="The leader directs a reader to a follower if it takes messages from any copy and is this far "
        "behind the end of the log, bytes; 0 = 40 % of the machine's memory.",  # HA-9, LQ-69
    )

    def behind_bytes_max(self) -> int:
        """Returns `far_behind_bytes`, or its default for this machine."""
        return self.far_behind_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100

    @property
    def addresses(self) -> dict[int, str]:
        """Broker id -> address at which the other copies reach it. Raises ValueError."""
        addresses: dict[int, str] = {}
        for part in filter(None, (part.strip() for part in self.members.split(","))):
            number, equals, address = part.partition("=")
            if not equals or not number.strip().isdecimal() or not address.rpartition(":")[2].isdecimal():
                raise ValueError(f"replication.members holds {part!r}; write id=host:port, as in 0=broker-0:8083")
            if int(number) in addresses:
                raise ValueError(f"replication.members names broker {int(number)} twice; each id is one broker")
            addresses[int(number)] = address.strip()
        return addresses

    def problem(self, *, has_folder: bool) -> str:
        """Returns the fault in a combination of settings; empty: there is none. Raises ValueError."""
        addresses = self.addresses
        if not addresses:
            return self._problem_of_one()
        problem = _problem_of_members(addresses)
        if problem:
            return problem
        if self.broker_id not in addresses:
            return f"replication.broker_id = {self.broker_id} is not among replication.members ({self.members})"
        if self.min_in_sync > len(addresses):
            return f"replication.min_in_sync = {self.min_in_sync} is more than the {len(addresses)} brokers of members"
        if self.forward_clients and (host := _shared_host(addresses)):
            return (
                "replication.forward_clients leads clients to the same ports of the leader's host, and "
                f"replication.members has several copies at host {host}: give each a host (an address) of its own, "
                "or set it to false and give clients the addresses of all copies"
            )
        if not has_folder:
            return "replication needs a data folder: set store.path"
        if not self.record.startswith(("file:", "etcd:", "lease:")):
            places = "file:PATH, etcd:host:port/KEY or lease:NAME"
            return f"replication.record must name the place of the group record: {places}"
        if self.record.startswith("file:") and self.record != "file:" and not Path(self.record[len("file:") :]).name:
            return f"replication.record = {self.record!r} names no file: write file: and its path"
        if self.etcd_password is not None and not self.etcd_user:
            return "replication.etcd_password is set without replication.etcd_user: set both, or neither"
        if not self.renew_ms < self.suspect_ms:
            return (
                f"replication.suspect_ms = {self.suspect_ms} must be more than replication.renew_ms = {self.renew_ms}"
            )
        return ""

    def port_problem(self, *, host: str, ports: dict[str, int]) -> str:
        """Returns a conflict with `ports` (setting -> port on `host`), or an empty text. Raises ValueError."""
        own = self.addresses.get(self.broker_id, "")
        port = self.port or int(own.rpartition(":")[2] or 0)
        if not own or self.host not in {"", host}:
            return ""
        taken = next((name for name, other in ports.items() if other == port), "")
        if not taken:
            return ""
        return f"port {port} is set for the other copies (replication.members) and for {taken}; change one of them"

    def _problem_of_one(self) -> str:
        """A broker that is alone because `members` was forgotten would accept messages that no other copy gets."""
        meant = {
            "record": self.record,
            "broker_id": self.broker_id,
            "from_one_copy": self.from_one_copy,
            "forward_clients": self.forward_clients,
        }
        name = next((name for name, value in meant.items() if value), "")
        if not name:
            return ""
        return (
            f"replication.{name} is set and replication.members is empty, so this broker would be alone: name all "
            "copies there, this one included"
        )


def _shared_host(addresses: Mapping[int, str]) -> str:
    """Returns a host that two addresses share; empty: there is none."""
    hosts = Counter(address.rpartition(":")[0].strip("[]").lower() for address in addresses.values())
    host, count = hosts.most_common(1)[0]
    return host if count > 1 else ""


def _problem_of_members(addresses: Mapping[int, str]) -> str:
    if len(addresses) > MEMBERS_MAX:
        return f"replication.members names {len(addresses)} brokers; a group has {MEMBERS_MAX} at most"
    numbers: dict[str, int] = {}
    for number, address in addresses.items():
        if number > BROKER_ID_MAX:
            return f"replication.members names broker {number}; ids are from 0 to {BROKER_ID_MAX}"
        fault = address_fault(address)
        if fault:
            return f"replication.members, broker {number}: {fault}"
        if address in numbers:
            return (
                f"replication.members gives brokers {numbers[address]} and {number} the address {address}; each needs "
                "its own"
            )
        numbers[address] = number
    return ""
