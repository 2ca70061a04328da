"""Settings of a broker group: the copies of a broker's log. A part of `BrokerSettings` (`evenq_broker.settings`)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from evenq_broker.core.replication.record import MEMBERS_MAX, address_fault

__all__ = ["ReplicationSettings"]

BROKER_ID_MAX = 999_999_999
"""Highest number of a copy that the group record holds."""


class ReplicationSettings(BaseModel, frozen=True, extra="forbid"):
    """Further copies of the broker's log on other machines. Brokers with one `broker_name` are one group."""

    members: str = Field(
        default="",
        description="Addresses of all brokers of the group, this one included, as `id=host:port`, "
        "comma-separated: where they reach each other, and where readers that take any copy reach followers. "
        "Empty = one copy; then those of these settings that say where or which copy this is are refused.",
    )
    broker_id: int = Field(default=0, ge=0, le=BROKER_ID_MAX, description="Number of this broker among `members`.")
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
        description="When a copy counts as having a record: sync = after it is synced to disk; memory = "
        "after it is written, which is faster, but loses records if all copies lose power at the same time.",
    )
    min_in_sync: int = Field(
        default=2,
        ge=1,
        le=9,
        description="Fewest copies in sync; while there are fewer, messages are refused. Read only when "
        "the group is created; change it later with `evenq broker set-min-in-sync GROUP N`.",
    )
    record: str = Field(
        default="",
        description="Where the group record is kept: `file:PATH` for brokers on one machine, "
        "`etcd:host:port[,host:port]/KEY`, or `lease:NAME` in Kubernetes.",
    )
    from_one_copy: bool = Field(
        default=False,
        description="The data folder of a broker without copies becomes the first copy of a new group (the lowest of "
        "`members`), with all its messages; the other `members` are added while it serves (`grow` of `evenq broker`). "
        "At those it says that the first copy may not have founded the group yet: with forward_clients they pass "
        "clients on to it from their start, and are ready for clients before they are in sync. It has no effect on any "
        "other folder, so it may stay.",
    )
    forward_clients: bool = Field(
        default=False,
        description="While this copy follows, it listens at its ports for clients and passes their connections on to "
        "the same ports of the leader's host in `members`, so a load balancer may choose any copy. A connection "
        "waits up to 10 s while no copy leads. All copies must have the same ports then, and each a host (an address) "
        "of its own.",
    )
    etcd_user: str = Field(default="", description="User name for etcd; empty = none.")
    etcd_password: Path | None = Field(default=None, description="File with the password for etcd.")
    etcd_ca: Path | None = Field(default=None, description="PEM file of the authority that signed etcd's certificate.")
    renew_ms: int = Field(default=2_000, ge=10, le=60_000, description="How often a leader gives a sign of life, ms.")
    suspect_ms: int = Field(
        default=6_000,
        ge=20,
        le=600_000,
        description="Another broker becomes leader when the leader gave no sign of life for this time, ms; "
        "more than renew_ms. Time in which the group record could not be reached does not count. Lower values shorten "
        "the pause after a crash; raise it if leaders change without a crash.",
    )
    lag_ms: int = Field(
        default=3_000,
        ge=10,
        le=600_000,
        description="A copy that is silent or behind for this time is no longer counted as in sync, ms.",
    )
    relief_ms: int = Field(
        default=60_000,
        ge=0,
        le=86_400_000,
        description="A leader that refuses messages because its disk is full lets a copy in sync with more room lead, "
        "if as many other copies as min_in_sync have room: at most once in this time, and once it has led for it, ms; "
        "0 = never.",
    )
    follower_reads: bool = Field(
        default=True,
        description="While this broker follows, it answers readers that take committed messages from any copy, at its "
        "address in `members`.",
    )
    far_behind_bytes: int = Field(
        default=0,
        ge=0,
        description="A reader that takes messages from any copy and is this far behind the end of the log is asked to "
        "read from a follower, bytes; 0 = 40 % of the machine's memory.",  # HA-9, LQ-69
    )

    def behind_bytes_max(self) -> int:
        """`far_behind_bytes`, or what it is by the machine."""
        return self.far_behind_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100

    @property
    def addresses(self) -> dict[int, str]:
        """Broker id -> where the others reach it. Raises ValueError."""
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
        """What is wrong with settings that only together are; empty: nothing. Raises ValueError."""
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
            return f"replication.record must say where the group record is kept: {places}"
        if self.record.startswith("file:") and self.record != "file:" and not Path(self.record[len("file:") :]).name:
            return f"replication.record = {self.record!r} names no file: write file: and its path"
        if self.etcd_password is not None and not self.etcd_user:
            return "replication.etcd_password is set without replication.etcd_user: etcd wants both, or neither"
        if not self.renew_ms < self.suspect_ms:
            return (
                f"replication.suspect_ms = {self.suspect_ms} must be more than replication.renew_ms = {self.renew_ms}"
            )
        return ""

    def port_problem(self, *, host: str, ports: dict[str, int]) -> str:
        """What is wrong with where the other copies reach this one, beside the other `ports` of this broker (setting ->
        port, on `host`); empty: nothing. Raises ValueError.
        """
        own = self.addresses.get(self.broker_id, "")
        port = self.port or int(own.rpartition(":")[2] or 0)
        if not own or self.host not in {"", host}:
            return ""
        taken = next((name for name, other in ports.items() if other == port), "")
        if not taken:
            return ""
        return f"port {port} is for the other copies (replication.members) and {taken} as well; choose another for one"

    def _problem_of_one(self) -> str:
        """A broker that is alone because its members were forgotten takes messages that no other copy gets."""
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
    """A host that two of them name; empty: none does."""
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
