"""Group record: the one linearizable, compare-and-set record of a broker group, and the rules of its content.

Every replica reads it; the leader (in-sync changes, renewals) and candidates (elections) write it. Always true of an
accepted one: each in-sync broker is a member, has one store, and the minimum fits the members. `version` grows with
each write, also with renewals, so a reader sees life without comparing clocks. Pure; coordinators keep it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

NO_LEADER = -1
MEMBERS_MAX = 9
NUMBER_MAX = 1 << 62
STORE_ID = re.compile(r"[0-9a-f]{32}")
UNCLEAN_MAX = 4
"""Unclean elections that a record keeps, the newest ones: the whole record must fit into its place of storage."""
REASON_MAX = 200  # characters of an election's reason
ADDRESS = re.compile(r"[^\s,=;]{1,255}:[0-9]{1,5}")


class RecordRefused(ValueError):
    """Error for a group record that breaks a rule of its format; names the field, its value and the limit."""


class Pair(NamedTuple):
    """Member of an in-sync set: a broker AND its store. A broker whose disk was replaced is another pair."""

    broker_id: int
    store_id: str


class MemberAddress(NamedTuple):
    """Address at which the other copies reach a member that was added while the group ran."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElection:
    """Facts about an operator's decision to let a copy lead that may lack committed records (R20, D12)."""

    epoch: int
    """The epoch that it began; what lower epochs committed may be lost."""
    broker_id: int
    store_id: str
    time_ms: int
    """Ms since the epoch of time, by that copy's clock: for people."""
    log_end: int
    """End of its log: what was committed behind it is lost."""
    lost: tuple[Pair, ...]
    """Pairs that were in sync before, and may never lead again with these stores."""
    reason: str
    """The operator's reason: one line of at most `REASON_MAX` characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One state of the group."""

    version: int  # 1 for the first; each write adds 1
    epoch: int
    """Number of the leadership; 0 before the first election."""
    leader: int  # broker id; `NO_LEADER` before the first election
    isr: tuple[Pair, ...]
    """The in-sync set, ascending by broker id: each of them holds every committed record durably."""
    min_isr: int  # nothing commits on fewer copies
    members: tuple[int, ...]  # broker ids of the group, ascending
    addresses: tuple[MemberAddress, ...] = ()
    """Of members that were added while the group ran, ascending; they win over the settings of each copy."""
    unclean: tuple[UncleanElection, ...] = ()  # the last `UNCLEAN_MAX` of them, ascending by epoch

    def store_of(self, broker_id: int) -> str:
        """Returns the store that is in sync for the broker; empty: the broker is not in sync."""
        for pair in self.isr:
            if pair.broker_id == broker_id:
                return pair.store_id
        return ""

    def address_of(self, broker_id: int) -> str:
        """Returns the address of the broker in the record; empty: the settings have it."""
        return next((one.address for one in self.addresses if one.broker_id == broker_id), "")

    def elected(self, broker_id: int) -> GroupRecord:
        """Returns the record that makes the broker leader of the next epoch. The in-sync set stays (R1)."""
        return replace(self, version=self.version + 1, epoch=self.epoch + 1, leader=broker_id)

    def elected_unclean(self, election: UncleanElection) -> GroupRecord:
        """Returns the record in which a copy leads by an operator's command. It alone is in sync: the others that were
        have logs of another history now (R20).
        """
        pair, unclean = Pair(election.broker_id, election.store_id), (*self.unclean, election)
        return replace(self.elected(pair.broker_id), isr=(pair,), unclean=unclean[-UNCLEAN_MAX:])

    def with_isr(self, isr: tuple[Pair, ...]) -> GroupRecord:
        """Returns the record with another in-sync set."""
        return replace(self, version=self.version + 1, isr=tuple(sorted(isr)))

    def with_member(self, broker_id: int, address: str) -> GroupRecord:
        """Returns the record with one more member, which is not in sync (R15)."""
        return replace(
            self,
            version=self.version + 1,
            members=tuple(sorted({*self.members, broker_id})),
            addresses=tuple(sorted((*self.addresses, MemberAddress(broker_id, address)))),
        )

    def without_member(self, broker_id: int) -> GroupRecord:
        """Returns the record without a member: in one write it is neither in sync nor of the group (R16)."""
        return replace(
            self,
            version=self.version + 1,
            isr=tuple(pair for pair in self.isr if pair.broker_id != broker_id),
            members=tuple(member for member in self.members if member != broker_id),
            addresses=tuple(one for one in self.addresses if one.broker_id != broker_id),
        )

    def with_minimum(self, min_isr: int) -> GroupRecord:
        """Returns the record with another minimum of copies in sync (R18)."""
        return replace(self, version=self.version + 1, min_isr=min_isr)

    def renewed(self) -> GroupRecord:
        """Returns the same record with the next version: a sign of life."""
        return replace(self, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it was read, and its token for a compare-and-set, which has a meaning only for the coordinator."""

    record: GroupRecord
    token: str


def first_record(pair: Pair, *, members: tuple[int, ...], min_isr: int, epoch: int = 0) -> GroupRecord:
    """Returns the record that the first broker of a new group writes. Only its own store is in sync, so nothing commits
    before others were admitted, unless one is enough. `epoch`: of the last record of a log that was written without
    copies; this broker counts as its leader, in a start that has ended. Raises RecordRefused.
    """
    leader = pair.broker_id if epoch else NO_LEADER
    record = GroupRecord(
        version=1, epoch=epoch, leader=leader, isr=(pair,), min_isr=min_isr, members=tuple(sorted(members))
    )
    _check(record)
    return record


def restored_record(pair: Pair, *, members: tuple[int, ...], min_isr: int, epoch: int) -> GroupRecord:
    """Returns the first record of a new group whose log was restored from a backup. The writer leads immediately, in an
    epoch above all of the old group's. Only its store is in sync. Raises RecordRefused.
    """
    return replace(first_record(pair, members=members, min_isr=min_isr), epoch=epoch, leader=pair.broker_id)


def record_fields(record: GroupRecord) -> dict[str, object]:
    """Returns the record as plain values, for JSON and annotations."""
    addresses = {str(one.broker_id): one.address for one in record.addresses}
    return {
        "version": record.version,
        "epoch": record.epoch,
        "leader": record.leader,
        "isr": {str(pair.broker_id): pair.store_id for pair in record.isr},
        "min_isr": record.min_isr,
        "members": list(record.members),
    } | _rare_fields(record, addresses)


def _rare_fields(record: GroupRecord, addresses: dict[str, str]) -> dict[str, object]:
    """Returns the fields that most records do not have, and older programs do not know."""
    unclean = [
        {
            "epoch": one.epoch,
            "broker_id": one.broker_id,
            "store_id": one.store_id,
            "time_ms": one.time_ms,
            "log_end": one.log_end,
            "lost": {str(pair.broker_id): pair.store_id for pair in one.lost},
            "reason": one.reason,
        }
        for one in record.unclean
    ]
    # Left out, not empty: a group that never used them can go back to an earlier release (decisions 65, 79).
    return ({"addresses": addresses} if addresses else {}) | ({"unclean": unclean} if unclean else {})


def record_of(fields: object) -> GroupRecord:
    """Reads `record_fields`. Raises RecordRefused for anything that is not a whole, sensible record."""
    if not isinstance(fields, Mapping):
        raise RecordRefused(f"a group record is an object, not {type(fields).__name__}")
    isr, members = fields.get("isr"), fields.get("members")
    if not isinstance(isr, Mapping) or len(isr) > MEMBERS_MAX:
        raise RecordRefused(f"isr is {isr!r}: it maps at most {MEMBERS_MAX} broker ids to store ids")
    if not isinstance(members, list) or len(members) > MEMBERS_MAX:
        raise RecordRefused(f"members is {members!r}: it lists at most {MEMBERS_MAX} broker ids")
    addresses = fields.get("addresses", {})
    if not isinstance(addresses, Mapping) or len(addresses) > MEMBERS_MAX:
        raise RecordRefused(f"addresses is {addresses!r}: it maps at most {MEMBERS_MAX} broker ids to host:port")
    record = GroupRecord(
        version=_number(fields, "version", 1),
        epoch=_number(fields, "epoch", 0),
        leader=_number(fields, "leader", NO_LEADER),
        isr=tuple(sorted(Pair(_broker_id(key), _store_id(store)) for key, store in isr.items())),
        min_isr=_number(fields, "min_isr", 1),
        members=tuple(sorted(_broker_id(member) for member in members)),
        addresses=tuple(sorted(MemberAddress(_broker_id(key), _address(value)) for key, value in addresses.items())),
        unclean=_unclean(fields.get("unclean", [])),
    )
    _check(record)
    return record


def _unclean(entries: object) -> tuple[UncleanElection, ...]:
    if not isinstance(entries, list) or len(entries) > UNCLEAN_MAX:
        raise RecordRefused(f"unclean is {str(entries)[:200]}: it lists at most {UNCLEAN_MAX} unclean elections")
    return tuple(map(_unclean_election, entries))


def _unclean_election(fields: object) -> UncleanElection:
    lost = fields.get("lost") if isinstance(fields, Mapping) else None
    if not isinstance(fields, Mapping) or not isinstance(lost, Mapping) or len(lost) > MEMBERS_MAX:
        raise RecordRefused(f"unclean election {str(fields)[:200]}: it is an object with the pairs that were lost")
    reason = fields.get("reason")
    if not isinstance(reason, str) or len(reason) > REASON_MAX:
        raise RecordRefused(f"reason {str(reason)[:80]!r} of an unclean election: at most {REASON_MAX} characters")
    return UncleanElection(
        epoch=_number(fields, "epoch", 1),
        broker_id=_broker_id(fields.get("broker_id")),
        store_id=_store_id(fields.get("store_id")),
        time_ms=_number(fields, "time_ms", 0),
        log_end=_number(fields, "log_end", 0),
        lost=tuple(sorted(Pair(_broker_id(key), _store_id(store)) for key, store in lost.items())),
        reason=reason,
    )


def address_fault(address: object) -> str:
    """Returns what is wrong with the address of a member, as a sentence; empty: nothing."""
    if isinstance(address, str) and ADDRESS.fullmatch(address) and 0 < int(address.rpartition(":")[2]) < 65_536:
        return ""
    return f"address {str(address)[:80]!r}: it must be host:port, as in db4:8083, of at most 255 characters"


def _address(value: object) -> str:
    fault = address_fault(value)
    if fault:
        raise RecordRefused(fault)
    return str(value)


def _number(fields: Mapping[object, object], name: str, least: int) -> int:
    value = fields.get(name)
    # A JSON `true` is an int for Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < NUMBER_MAX:
        raise RecordRefused(f"{name} is {value!r}: it must be a whole number from {least}")
    return value


def _broker_id(value: object) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RecordRefused(f"broker id {value!r}: it must be a whole number from 0 to 999999999")
    return int(text)


def _store_id(value: object) -> str:
    if not isinstance(value, str) or not STORE_ID.fullmatch(value):
        raise RecordRefused(f"store id {value!r}: it must be 32 lower-case hexadecimal digits")
    return value


def _check(record: GroupRecord) -> None:
    members = set(record.members)
    brokers = [pair.broker_id for pair in record.isr]
    if not members or len(members) != len(record.members):
        raise RecordRefused(f"members {list(record.members)}: each broker id once, and at least one")
    # With an empty in-sync set no copy would have the committed records: no rule could ever elect one again (R1, R2).
    if not brokers or len(set(brokers)) != len(brokers) or not members.issuperset(brokers):
        raise RecordRefused(f"isr of {brokers}: it needs at least one broker, each once, all of them members")
    if not members.issuperset(one.broker_id for one in record.addresses):
        raise RecordRefused(f"addresses of {[one.broker_id for one in record.addresses]}: all must be members")
    # Refused here, where every write passes: such a group could never commit again.
    if record.min_isr > len(members):
        raise RecordRefused(f"min_isr is {record.min_isr}, more than the {len(members)} members")
    if record.leader != NO_LEADER and record.leader not in brokers:
        raise RecordRefused(f"leader {record.leader} is not in sync; in sync are {brokers}")
    epochs = [one.epoch for one in record.unclean]
    if epochs != sorted(set(epochs)) or any(epoch > record.epoch for epoch in epochs):
        raise RecordRefused(f"unclean elections of epochs {epochs} in epoch {record.epoch}: they ascend up to it")
    if (record.leader == NO_LEADER) != (record.epoch == 0):
        raise RecordRefused(f"epoch {record.epoch} with leader {record.leader}: epoch 0 has no leader, every other has")
