"""Changes of a running group: one more copy, one copy less, another minimum of copies in sync.

Each is one compare-and-set of the group record by the leader (R15 to R18 in `docs/internals/replication.md`), one at a
time with every other change of the record. Nothing here can make a copy count that lacks a committed record: who is
added is not in sync, and is admitted as every copy is (R8). Whether a change is allowed, `Rules.why_not_changed` says.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from evenq_broker.core.replication.record import GroupRecord

__all__ = ["AddCopy", "CopyChange", "RemoveCopy", "SetMinimum", "changed", "is_done"]


@dataclass(frozen=True, slots=True)
class AddCopy:
    """One more member, which the others reach at `address`."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class RemoveCopy:
    """One member less."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class SetMinimum:
    """Copies in sync that are needed from now on."""

    copies: int


CopyChange: TypeAlias = AddCopy | RemoveCopy | SetMinimum


def changed(record: GroupRecord, change: CopyChange) -> GroupRecord:
    """The record with the change."""
    match change:
        case AddCopy(broker_id, address):
            return record.with_member(broker_id, address)
        case RemoveCopy(broker_id):
            return record.without_member(broker_id)
        case SetMinimum(copies):
            return record.with_minimum(copies)
        case _:
            assert_never(change)


def is_done(record: GroupRecord, change: CopyChange) -> bool:
    """True if the record is as the change would make it."""
    match change:
        case AddCopy(broker_id, address):
            return broker_id in record.members and record.address_of(broker_id) == address
        case RemoveCopy(broker_id):
            return broker_id not in record.members
        case SetMinimum(copies):
            return record.min_isr == copies
        case _:
            assert_never(change)
