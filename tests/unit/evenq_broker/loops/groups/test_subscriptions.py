"""The warning about different filters in one group: at once, then rarely, and its end."""

import asyncio
import logging
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, MemberTable, Protocol
from evenq_broker.loops.groups.subscriptions import SubscriptionReports

from evenq.model import FilterExpression, Subscription
from evenq.runtime.clock import FakeClock


def join(members: MemberTable, client_id: str, tags: str) -> None:
    result = Member(
        client_id=client_id, protocol=Protocol.V2, subscriptions=(Subscription("t", FilterExpression(tags)),)
    )
    members.join("g", result, now_ms=0, lease_ms=1_000_000)


async def _story(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    clock, members = FakeClock(), MemberTable()
    reports = SubscriptionReports(members, clock)
    join(members, "a", "x")
    reports.look("g")
    join(members, "b", "y")
    for _ in range(61):
        reports.look("g")
        await clock.advance(1_000)
    members.leave("g", "a")
    reports.look("g")
    join(members, "a", "x")
    reports.look("g")
    return [(record.levelname, getattr(record, "filters", None)) for record in caplog.records]


def test_a_difference_is_told_at_once_then_rarely_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq_broker.loops.groups.subscriptions")
    both = {"x": ["a"], "y": ["b"]}
    assert asyncio.run(_story(caplog)) == [("WARNING", both), ("WARNING", both), ("INFO", None), ("WARNING", both)]


def test_a_large_group_is_looked_at_once_for_many_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq_broker.loops.groups.subscriptions")
    members = MemberTable()
    reports = SubscriptionReports(members, FakeClock())
    for number in range(1_000):
        join(members, f"c{number:04}", "x")
        reports.look("g")
    join(members, "z", "y")
    reports.look("g")
    assert not caplog.records
    reports.look_late()
    [record] = caplog.records
    assert getattr(record, "filters", None) == {"x": ["c0000", "c0001", "c0002"], "y": ["z"]}
    for number in range(1_000):
        members.leave("g", f"c{number:04}")
        reports.look("g")
    reports.look_late()
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    join(members, "a", "x")
    reports.look("g")
    assert len(caplog.records) == 3, "it is small again, and looked at at once"
