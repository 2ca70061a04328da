"""What a copy says last."""

from __future__ import annotations

from evenq_broker.core.replication.disk_messages import copy_ends, lead_elsewhere

from evenq.errors import StoreCorrupted, StoreError, StorePoisoned


def test_a_broken_disk_says_what_the_group_does_and_what_is_to_be_done() -> None:
    error = copy_ends(StorePoisoned("fsync failed: Input/output error"), "broker-a", 2)
    assert isinstance(error, StorePoisoned)
    text = str(error)
    assert text.startswith("copy 2 of broker-a ends: fsync failed: Input/output error. ")
    for part in ("one in sync leads", "`evenq cluster show`", "an empty folder"):
        assert part in text


def test_damage_that_ends_a_copy_says_what_to_do_with_it() -> None:
    error = copy_ends(StoreCorrupted("commitlog/0 is damaged", log_offset=7), "broker-a", 2)
    assert isinstance(error, StoreCorrupted)
    assert error.log_offset == 7
    text = str(error)
    assert text.startswith("copy 2 of broker-a ends: commitlog/0 is damaged. ")
    for part in ("`evenq cluster show`", "start this one again", "an empty folder"):
        assert part in text


def test_another_error_stays_as_it_is() -> None:
    error = StoreError("the folder is of another broker")
    assert copy_ends(error, "broker-a", 2) is error


def test_a_full_leader_names_the_command() -> None:
    assert "`evenq broker move-leader broker-a`" in lead_elsewhere("broker-a")
