"""Elections as the logs of brokers tell them, where the record's place keeps no list of its writes."""

from __future__ import annotations

import datetime as dt
import json

from evenq_proofs.group_faults.places import elections_of_logs
from evenq_proofs.group_faults.shapes import SHAPES

from evenq.runtime.clock import SystemClock

BEGUN = dt.datetime.now(tz=dt.UTC)


def line(after_ms: int, event: str, epoch: int = 0) -> str:
    """One line of a log."""
    time = BEGUN + dt.timedelta(milliseconds=after_ms)
    return json.dumps({"time": time.isoformat(timespec="milliseconds"), "event": event, "epoch": epoch})


def test_an_election_is_of_the_moment_before_its_broker_does_anything() -> None:
    first = [line(0, "replica broker-a: elected, was fetching"), line(40, "replica broker-a: starting, was elected", 3)]
    second = [line(900, "replica broker-a: elected, was fetching", 3), "{torn", line(990, "replica broker-a: starting, was elected", 4)]  # fmt: skip
    elections = elections_of_logs(["\n".join(first), "\n".join(second)], SystemClock())
    assert [(one.epoch, one.leader) for one in elections] == [(3, 0), (4, 1)]
    assert abs(elections[1].at_ms - elections[0].at_ms - 900) <= 2


def test_who_died_before_it_led_was_not_elected() -> None:
    log = [line(0, "replica broker-a: elected, was fetching"), line(9, "replica broker-a: truncating, was offline")]
    assert elections_of_logs(["\n".join(log)], SystemClock()) == []


def test_only_a_place_of_members_loses_some() -> None:
    assert [name for name, shape in SHAPES.items() if "lease" not in shape.records] == [
        "member-killed", "member-paused", "member-cut", "most-members-paused",
    ]  # fmt: skip
