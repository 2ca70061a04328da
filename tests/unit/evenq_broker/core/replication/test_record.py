"""The group record: what may stand in it, and that nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from evenq_broker.core.replication.record import (
    GroupRecord,
    MemberAddress,
    Pair,
    RecordRefused,
    first_record,
    record_fields,
    record_of,
)

A, B = Pair(0, "a" * 32), Pair(1, "b" * 32)
RECORD = GroupRecord(version=7, epoch=3, leader=1, isr=(A, B), min_isr=2, members=(0, 1, 2))


def test_a_record_is_the_same_after_json() -> None:
    assert record_of(json.loads(json.dumps(record_fields(RECORD)))) == RECORD


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 0}, "version is 0"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": True}, "epoch is True"),
        ({"epoch": 1 << 62}, "epoch is"),
        ({"epoch": 0}, "epoch 0 with leader 1"),
        ({"leader": -1}, "epoch 3 with leader -1"),
        ({"leader": 2}, "leader 2 is not in sync"),
        ({"isr": {}}, "at least one broker"),
        ({"isr": {"5": "a" * 32}}, "all of them members"),
        ({"isr": {"0": "A" * 32}}, "32 lower-case"),
        ({"isr": {"-1": "a" * 32}}, "broker id '-1'"),
        ({"isr": [1]}, "isr is"),
        ({"min_isr": 4}, "more than the 3 members"),
        ({"min_isr": 0}, "min_isr is 0"),
        ({"members": [0, 0, 1]}, "each broker id once"),
        ({"members": list(range(10))}, "at most 9"),
        ({"addresses": {"7": "db7:8083"}}, "all must be members"),
        ({"addresses": {"0": "db7"}}, "must be host:port"),
        ({"addresses": {"0": "db7:70000"}}, "must be host:port"),
        ({"addresses": ["db7:8083"]}, "addresses is"),
    ],
)
def test_what_is_no_sensible_record_is_refused_by_field(change: dict[str, object], said: str) -> None:
    with pytest.raises(RecordRefused, match=said):
        record_of(record_fields(RECORD) | change)


def test_an_election_keeps_the_in_sync_set_and_every_write_has_a_new_version() -> None:
    elected = RECORD.elected(0)
    assert (elected.version, elected.epoch, elected.leader, elected.isr) == (8, 4, 0, RECORD.isr)
    assert RECORD.renewed().version == RECORD.with_isr((A,)).version == 8


def test_a_new_group_has_one_copy_in_sync_and_no_leader() -> None:
    record = first_record(A, members=(2, 0, 1), min_isr=2)
    assert (record.epoch, record.isr, record.members) == (0, (A,), (0, 1, 2))
    assert record.store_of(0) == A.store_id
    assert record.store_of(1) == ""


def test_who_is_added_is_not_in_sync_and_who_is_removed_leaves_nothing_behind() -> None:
    more = RECORD.with_member(5, "db5:8083")
    assert (more.version, more.members, more.isr) == (8, (0, 1, 2, 5), RECORD.isr)
    assert more.addresses == (MemberAddress(5, "db5:8083"),)
    assert record_of(json.loads(json.dumps(record_fields(more)))) == more
    less = more.without_member(5).without_member(0)
    assert (less.members, less.isr, less.addresses) == ((1, 2), (B,), ())


def test_a_record_of_a_release_that_could_not_add_copies_is_read() -> None:
    fields = record_fields(RECORD)
    assert "addresses" not in fields
    assert record_of(fields).addresses == ()
