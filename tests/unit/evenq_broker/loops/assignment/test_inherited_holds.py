"""What waits for successors, kept for the next leader."""

from __future__ import annotations

import pytest
from evenq_broker.loops.assignment import inherited_holds as module
from evenq_broker.loops.assignment.inherited_holds import ReportedHolds
from evenq_broker.loops.wire.assignment import DecisionNews

from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2


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
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    holds = ReportedHolds()
    for topic in ("t", "u", "v"):
        holds.decided(decision(1, "x", topic=topic))
    assert [topic for topic, _, _ in kept(holds)] == ["t", "u"]
    holds.decided(decision(2, topic="t"))
    holds.decided(decision(3, "x", topic="v"))
    assert [topic for topic, _, _ in kept(holds)] == ["u", "v"]


def test_what_is_too_big_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 50)
    holds = ReportedHolds()
    holds.decided(decision(1, "x"))
    holds.decided(decision(2, "x" * 50))
    assert kept(holds) == [("t", 2, [])]
