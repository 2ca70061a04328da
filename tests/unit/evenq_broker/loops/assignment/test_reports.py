"""What a broker reports, and how much work that is."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.assignment.local import Answer
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.assignment import reports as module
from evenq_broker.loops.assignment.reports import BrokerReports, ReportedHolds
from evenq_broker.loops.wire.assignment import DecisionNews

from evenq.model import Generation, MessageQueue
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2


def report(data: bytes) -> assignment_pb2.BrokerReport:
    return assignment_pb2.BrokerReport.FromString(data)


def encode(facts: BrokerReports) -> int:
    """All slices; how many it took."""
    facts.prepare()
    slices = 1
    while facts.encode_some():
        slices += 1
    return slices


async def stocked(stage: Any, *, groups: int, queues: int) -> Any:
    """A broker with groups of one member that holds all queues."""
    broker = await stage.broker("a")
    for number in range(groups):
        group = f"g{number}"
        broker.membership.members.join(group, Member(client_id="x", protocol=Protocol.EVENQ), now_ms=0, lease_ms=10**6)
        for queue_id in range(queues):
            broker.membership.locks.acquire(group, "x", MessageQueue("t", "a", queue_id), Generation(1, 2))
    return broker


async def test_only_named_groups_are_looked_at_again_and_only_changed_ones_told(stage: Any) -> None:
    broker = await stocked(stage, groups=3, queues=1)
    facts = BrokerReports(broker.kernel, membership=broker.membership)
    encode(facts)
    assert {group.group for group in report(facts.everything(0)).groups} == {"g0", "g1", "g2"}
    for group in ("g0", "g1"):
        broker.membership.members.join(group, Member(client_id="y", protocol=Protocol.EVENQ), now_ms=0, lease_ms=10**6)
    facts.changed(group="g1")
    facts.changed(group="g2")
    assert [group.group for group in report(facts.changes(1)).groups] == ["g1"], "g0 was not named, g2 is the same"
    assert facts.changes(2) == b""
    facts.changed()
    assert [group.group for group in report(facts.changes(3)).groups] == ["g0"]
    broker.membership.members.leave("g2", "x")
    facts.changed(group="g2")
    assert list(report(facts.changes(4)).groups_gone) == ["g2"]
    assert facts.changes(5) == b""


async def test_holders_are_encoded_in_slices_and_again_only_where_they_changed(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 10)
    broker = await stocked(stage, groups=5, queues=12)
    facts = BrokerReports(broker.kernel, membership=broker.membership)
    assert encode(facts) > 5
    assert sum(len(group.held) for group in report(facts.everything(0)).groups) == 60
    assert encode(facts) == 1
    broker.membership.answers.keep("g0", "t", "x", Answer((MessageQueue("t", "b", 3),), "STICKY", 1, 9))
    broker.membership.answers.keep("g1", "t", "x", Answer((MessageQueue("t", "b", 3),), "AVG"))
    encode(facts)
    reported = {group.group: group.held for group in report(facts.everything(0)).groups}
    assert (reported["g0"][12].queue.broker_name, reported["g0"][12].generation.counter) == ("b", 9)
    assert len(reported["g1"]) == 12, "what was computed here is not a decision"


async def test_what_finds_no_room_in_the_first_report_follows_at_once(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 20)
    broker = await stocked(stage, groups=4, queues=12)
    facts = BrokerReports(broker.kernel, membership=broker.membership)
    encode(facts)
    first = report(facts.everything(0))
    assert len(first.groups) == 4, "all members at once"
    reported = {group.group for group in first.groups if group.held}
    assert len(reported) == 1
    rounds = 0
    while facts.next_ms() == 0:
        more = report(facts.changes(rounds))
        reported |= {group.group for group in more.groups if group.held}
        rounds += 1
        assert rounds < 10
    assert reported == {"g0", "g1", "g2", "g3"}
    assert facts.changes(99) == b""


async def test_a_large_report_is_followed_by_silence_that_grows_with_it(stage: Any) -> None:
    broker = await stocked(stage, groups=1, queues=1_000)
    facts = BrokerReports(broker.kernel, membership=broker.membership)
    encode(facts)
    facts.everything(0)
    assert facts.silence_ms == 1_001 // module.ROWS_PER_MS
    facts.changed(group="nobody")
    facts.changes(1)
    assert facts.silence_ms == 0


def decision(counter: int, *ids: str, group: str = "g", topic: str = "t") -> DecisionNews:
    response = assignment_pb2.Decision(
        group=group, topic=topic, generation=common_pb2.Generation(epoch=1, counter=counter)
    )
    for own in ids:
        response.held.add(client_id=own, place="web").queues.add(broker_name="b", queue_ids=[1])
    return DecisionNews(response.SerializeToString())


def kept(holds: ReportedHolds, group: str = "g") -> list[tuple[str, int, list[str]]]:
    return [
        (response.topic, response.generation.counter, [place.client_id for place in response.places])
        for response in (assignment_pb2.TopicHolds.FromString(one.encoded) for one in holds.of_group(group))
    ]


def test_the_newest_decision_counts_whatever_comes_last() -> None:
    holds = ReportedHolds()
    holds.decided(decision(3, "x", "y"))
    holds.decided(decision(2, "z"))
    assert kept(holds) == [("t", 3, ["x", "y"])]
    holds.decided(decision(5, "y"))
    holds.decided(decision(4))
    assert kept(holds) == [("t", 5, ["y"])]


def test_that_nothing_waits_any_more_is_kept_too_but_only_where_something_did() -> None:
    holds = ReportedHolds()
    holds.decided(decision(1, topic="quiet"))
    holds.decided(decision(2, "x"))
    holds.decided(decision(3))
    assert kept(holds) == [("t", 3, [])]
    holds.decided(decision(2, "x"))
    assert kept(holds) == [("t", 3, [])]


def test_a_group_that_is_gone_is_forgotten() -> None:
    holds = ReportedHolds()
    for group in ("g", "h"):
        holds.decided(decision(1, "x", group=group))
    holds.forget("g")
    holds.forget("never")
    assert (kept(holds), len(kept(holds, "h"))) == ([], 1)


def test_topics_are_limited_and_those_where_nothing_waits_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_TOPICS_MAX", 2)
    holds = ReportedHolds()
    for topic in ("t", "u", "v"):
        holds.decided(decision(1, "x", topic=topic))
    assert [topic for topic, _, _ in kept(holds)] == ["t", "u"]
    holds.decided(decision(2, topic="t"))
    holds.decided(decision(3, "x", topic="v"))
    assert [topic for topic, _, _ in kept(holds)] == ["u", "v"]


def test_what_is_too_big_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 50)
    holds = ReportedHolds()
    holds.decided(decision(1, "x"))
    holds.decided(decision(2, "x" * 50))
    assert kept(holds) == [("t", 2, [])]
