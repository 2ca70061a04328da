"""The group record: the one linearizable, compare-and-set record of a broker group, and what may stand in it.

Read by every replica, written by the leader (in-sync changes, renewals) and by candidates (elections). Always true of
one that was accepted: each in-sync broker is a member, has one store, and the minimum fits the members. `version`
grows with each write, renewals too, so a reader sees life without comparing clocks. Pure; coordinators keep it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

__all__ = ["NO_LEADER", "GroupRecord", "Pair", "RecordRefused", "Seen", "first_record", "record_fields", "record_of"]

NO_LEADER = -1
MEMBERS_MAX = 9
NUMBER_MAX = 1 << 62
STORE_ID = re.compile(r"[0-9a-f]{32}")


class RecordRefused(ValueError):
    """A group record breaks a rule of its format; says which field, its value and the limit."""


class Pair(NamedTuple):
    """What is in sync: a broker AND its store. A broker whose disk was replaced is another pair."""

    broker_id: int
    store_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One state of the group."""

    version: int
    """1 for the first; each write adds 1."""
    epoch: int
    """Number of the leadership; 0 before the first election."""
    leader: int
    """Broker id; `NO_LEADER` before the first election."""
    isr: tuple[Pair, ...]
    """The in-sync set, ascending by broker id: each of them holds every committed record durably."""
    min_isr: int
    """Nothing commits on fewer copies."""
    members: tuple[int, ...]
    """Broker ids of the group, ascending."""

    def store_of(self, broker_id: int) -> str:
        """Store that is in sync for the broker; empty: the broker is not in sync."""
        for pair in self.isr:
            if pair.broker_id == broker_id:
                return pair.store_id
        return ""

    def elected(self, broker_id: int) -> GroupRecord:
        """The record that makes the broker leader of the next epoch. The in-sync set stays (R1)."""
        return replace(self, version=self.version + 1, epoch=self.epoch + 1, leader=broker_id)

    def with_isr(self, isr: tuple[Pair, ...]) -> GroupRecord:
        """The record with another in-sync set."""
        return replace(self, version=self.version + 1, isr=tuple(sorted(isr)))

    def renewed(self) -> GroupRecord:
        """The same once more: a sign of life."""
        return replace(self, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it was read, and the token that a compare-and-set compares. The token means something to the
    coordinator only.
    """

    record: GroupRecord
    token: str


def first_record(pair: Pair, *, members: tuple[int, ...], min_isr: int) -> GroupRecord:
    """What the first broker of a new group writes if there is no record. Only its own, empty store is in sync, so
    nothing commits before others were admitted. Raises RecordRefused.
    """
    record = GroupRecord(
        version=1, epoch=0, leader=NO_LEADER, isr=(pair,), min_isr=min_isr, members=tuple(sorted(members))
    )
    _check(record)
    return record


def record_fields(record: GroupRecord) -> dict[str, object]:
    """The record as plain values, for JSON and annotations."""
    return {
        "version": record.version,
        "epoch": record.epoch,
        "leader": record.leader,
        "isr": {str(pair.broker_id): pair.store_id for pair in record.isr},
        "min_isr": record.min_isr,
        "members": list(record.members),
    }


def record_of(fields: object) -> GroupRecord:
    """The reverse. Raises RecordRefused for anything that is not a whole, sensible record."""
    if not isinstance(fields, Mapping):
        raise RecordRefused(f"a group record is an object, not {type(fields).__name__}")
    isr, members = fields.get("isr"), fields.get("members")
    if not isinstance(isr, Mapping) or len(isr) > MEMBERS_MAX:
        raise RecordRefused(f"isr is {isr!r}: it maps at most {MEMBERS_MAX} broker ids to store ids")
    if not isinstance(members, list) or len(members) > MEMBERS_MAX:
        raise RecordRefused(f"members is {members!r}: it lists at most {MEMBERS_MAX} broker ids")
    record = GroupRecord(
        version=_number(fields, "version", 1),
        epoch=_number(fields, "epoch", 0),
        leader=_number(fields, "leader", NO_LEADER),
        isr=tuple(sorted(Pair(_broker_id(key), _store_id(store)) for key, store in isr.items())),
        min_isr=_number(fields, "min_isr", 1),
        members=tuple(sorted(_broker_id(member) for member in members)),
    )
    _check(record)
    return record


def _number(fields: Mapping[object, object], name: str, least: int) -> int:
    value = fields.get(name)
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
    if not brokers or len(set(brokers)) != len(brokers) or not members.issuperset(brokers):
        raise RecordRefused(f"isr of {brokers}: it needs at least one broker, each once, all of them members")
    if record.min_isr > len(members):
        raise RecordRefused(f"min_isr is {record.min_isr}, more than the {len(members)} members")
    if record.leader != NO_LEADER and record.leader not in brokers:
        raise RecordRefused(f"leader {record.leader} is not in sync; in sync are {brokers}")
    if (record.leader == NO_LEADER) != (record.epoch == 0):
        raise RecordRefused(f"epoch {record.epoch} with leader {record.leader}: epoch 0 has no leader, every other has")
