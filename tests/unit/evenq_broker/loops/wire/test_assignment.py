"""Decisions and answers of the rebalancer."""

from __future__ import annotations

from typing import Any

from evenq_broker.loops.wire.assignment import DecisionNews, assignment_of, owners_of

from evenq.model import Generation, MessageQueue
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2

OK = definition_pb2.Status(code=definition_pb2.OK)


def news(**fields: Any) -> DecisionNews:
    return DecisionNews(assignment_pb2.Decision(**fields).SerializeToString())


def test_a_sign_of_life_is_no_decision() -> None:
    life = news()
    assert (life.leader, life.group, life.mode, life.holds_any, life.shares()) == ("", "", None, False, {})
    assert news(leader="h:1").leader == "h:1"


def test_what_waits_is_kept_encoded_unless_it_is_too_much() -> None:
    place = assignment_pb2.HeldPlace(client_id="x", place="web")
    decision = news(group="g", topic="t", generation=common_pb2.Generation(epoch=1, counter=2), held=[place])
    holds = decision.holds(1_000)
    assert (holds.topic, holds.generation, holds.waits) == ("t", Generation(1, 2), True)
    assert [one.client_id for one in assignment_pb2.TopicHolds.FromString(holds.encoded).places] == ["x"]
    small = decision.holds(8)
    assert (small.waits, list(assignment_pb2.TopicHolds.FromString(small.encoded).places)) == (False, [])


def test_a_member_that_the_leader_does_not_know_has_no_answer() -> None:
    response = assignment_pb2.AssignmentResponse(status=OK, strategy="AVG")
    assert assignment_of(response.SerializeToString()) is None
    response.known = True
    response.queues.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=3))
    response.queues.add()
    answer = assignment_of(response.SerializeToString())
    assert answer is not None
    assert (answer.queues, answer.strategy) == ((MessageQueue("t", "a", 3),), "AVG")


def test_owners_are_those_of_this_broker_and_topic_and_no_empty_ones() -> None:
    response = assignment_pb2.ExplainResponse(status=OK)
    for topic, broker, queue_id, owner in (
        ("t", "a", 0, "x"), ("t", "a", 1, ""), ("t", "b", 2, "y"), ("u", "a", 3, "z"),
    ):  # fmt: skip
        row = response.queues.add(owner=owner)
        row.queue.topic, row.queue.broker_name, row.queue.queue_id = topic, broker, queue_id
    assert owners_of(response.SerializeToString(), "t", "a") == {0: "x"}
