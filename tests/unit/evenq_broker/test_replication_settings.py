"""Settings of a broker group that only together make sense."""

from typing import Any

import pytest
from evenq_broker.replication_settings import ReplicationSettings

GROUP: dict[str, Any] = {"members": "0=db1:8083, 1=db2:8084", "record": "file:/r"}


def test_one_copy_needs_no_other_setting() -> None:
    assert ReplicationSettings().problem(has_folder=False) == ""
    assert ReplicationSettings().addresses == {}


def test_members_are_addresses_by_broker_id() -> None:
    settings = ReplicationSettings(**GROUP)
    assert settings.addresses == {0: "db1:8083", 1: "db2:8084"}
    assert settings.problem(has_folder=True) == ""


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ("db1:8083", "write id=host:port"),
        ("x=db1:8083", "write id=host:port"),
        ("0=db1", "write id=host:port"),
        ("0=a:1,0=b:1", "names broker 0 twice"),
    ],
)
def test_members_that_are_not_addresses_are_refused(members: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _ = ReplicationSettings(members=members).addresses


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"broker_id": 2}, "broker_id = 2 is not among"),
        ({"min_in_sync": 3}, "min_in_sync = 3 is more than the 2 brokers"),
        ({"record": "r"}, "must say where the group record is kept"),
        ({"renew_ms": 6_000}, "suspect_ms = 6000 must be more than replication.renew_ms = 6000"),
    ],
)
def test_settings_that_contradict_each_other_are_named(change: dict[str, Any], problem: str) -> None:
    assert problem in ReplicationSettings(**{**GROUP, **change}).problem(has_folder=True)


def test_copies_need_a_data_folder() -> None:
    assert "set store.path" in ReplicationSettings(**GROUP).problem(has_folder=False)


def test_only_the_copy_that_founds_a_group_brings_its_data() -> None:
    ok = ReplicationSettings(**GROUP, from_one_copy=True)
    assert ok.problem(has_folder=True) == ""
    other = ok.model_copy(update={"broker_id": 1})
    assert "the lowest of members: broker 0, not 1" in other.problem(has_folder=True)
