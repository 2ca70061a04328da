"""Changes of a running group: one more copy, one copy less, or another minimum of copies in sync.

Each is one compare-and-set of the group record by the leader (R15 to R18 in `docs/internals/replication.md`), and the
only change of the record at that time. None can make a copy count that lacks a committed record: an added copy is not
in sync, and is admitted as every copy is (R8). `Copies.why_not_changed` decides whether a change is allowed. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from evenq_broker.core.replication.record import GroupRecord


@dataclass(frozen=True, slots=True)
class AddCopy:
    """New member, which the others reach at `address`."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class RemoveCopy:
    broker_id: int


@dataclass(frozen=True, slots=True)
class SetMinimum:
    """New minimum of copies in sync."""

    copies: int


CopyChange: TypeAlias = AddCopy | RemoveCopy | SetMinimum


def changed(record: GroupRecord, change: CopyChange) -> GroupRecord:
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
    """Returns True if the record is as the change would make it."""
    match change:
        case AddCopy(broker_id, address):
            return broker_id in record.members and record.address_of(broker_id) == address
        case RemoveCopy(broker_id):
            return broker_id not in record.members
        case SetMinimum(copies):
            return record.min_isr == copies
        case _:
            assert_never(change)
