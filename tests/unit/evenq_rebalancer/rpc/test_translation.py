"""What comes from outside is checked at the door."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.modes import RequestMode
from evenq_rebalancer.core.reports import GroupFact, HeldFact, LagFact, MemberFact, TopicFact
from evenq_rebalancer.rpc import translation as to

from evenq.errors import BadRequest, ClientIdRequired, IllegalGroup, IllegalTopic
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy, Weight
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, groups_pb2, registry_pb2

GARBAGE = ["", "a b", "a/b", "../etc", "\x00", "é", "x" * 128, "a\n"]


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_names_are_refused_with_the_code_of_their_kind(name) -> None:
    with pytest.raises(IllegalGroup):
        to.checked_pair(name, "T")
    with pytest.raises(IllegalTopic):
        to.checked_pair("g", name)


def test_a_question_needs_a_client_id_of_bounded_length() -> None:
    with pytest.raises(ClientIdRequired):
        to.question_of(assignment_pb2.AssignmentRequest(group="g", topic="T", client_id="  "))
    with pytest.raises(BadRequest, match="256 characters"):
        to.question_of(assignment_pb2.AssignmentRequest(group="g", topic="T", client_id="x" * 256))
    with pytest.raises(BadRequest, match="strategy name"):
        to.question_of(assignment_pb2.AssignmentRequest(group="g", topic="T", client_id="x", strategy="x" * 128))


def test_a_report_becomes_facts() -> None:
    message = assignment_pb2.BrokerReport(broker_name="room@b", full=True, groups_gone=["old"], topics_gone=["gone"])
    member = groups_pb2.Member(client_id="a", model=groups_pb2.BROADCASTING)
    for topic in ("U", "T", "U"):
        member.subscriptions.add(topic=topic)
    message.groups.add(group="g", ordered=True, strategy="AVG", members=[member])
    for topic, permission in (("T", definition_pb2.READ), ("W", definition_pb2.WRITE), ("U", 0)):
        message.topics.add(name=topic, read_queues=3, permission=permission)
    report = to.report_of(message)
    assert (report.broker_name, report.full) == ("room@b", True)
    assert report.groups == (
        GroupFact(
            group="g",
            ordered=True,
            strategy="AVG",
            members=(MemberFact(client_id="a", model=MessageModel.BROADCASTING, topics=("T", "U")),),
        ),
    )
    assert report.topics == (
        TopicFact(topic="T", read_queues=3),
        TopicFact(topic="W", read_queues=0),
        TopicFact(topic="U", read_queues=3),
    )
    assert (report.groups_gone, report.topics_gone) == (("old",), ("gone",))


@pytest.mark.parametrize(
    ("report", "error"),
    [
        ({"broker_name": ""}, BadRequest),
        ({"broker_name": "b", "groups": [assignment_pb2.GroupFacts(group="a b")]}, IllegalGroup),
        ({"broker_name": "b", "topics": [registry_pb2.TopicEntry(name="a b")]}, IllegalTopic),
        ({"broker_name": "b", "topics": [registry_pb2.TopicEntry(name="T", read_queues=-1)]}, BadRequest),
        ({"broker_name": "b", "topics": [registry_pb2.TopicEntry(name="T", read_queues=4_097)]}, BadRequest),
        (
            {"broker_name": "b", "groups": [assignment_pb2.GroupFacts(group="g", members=[groups_pb2.Member()])]},
            BadRequest,
        ),
    ],
)
def test_a_report_with_anything_illegal_is_refused_whole(report, error) -> None:
    with pytest.raises(error):
        to.report_of(assignment_pb2.BrokerReport(**report))


def test_bytes_that_are_no_message_are_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="the 3 bytes of the request are not a valid AssignmentRequest"):
        to.parse(assignment_pb2.AssignmentRequest, b"\xff\xff\xff")


def test_request_modes_are_known_ones() -> None:
    request = assignment_pb2.SetMessageRequestModeRequest(mode=assignment_pb2.POP, pop_share_queue_num=2)
    assert to.setting_of(request).mode is RequestMode.POP
    request.mode = 7
    with pytest.raises(BadRequest, match="request mode 7"):
        to.setting_of(request)


def test_places_policies_holders_and_lags_are_taken_in() -> None:
    message = assignment_pb2.BrokerReport(broker_name="b", zone="z1")
    facts = message.groups.add(group="g")
    facts.members.add(client_id="a", zone="z2", instance="web-0", address="10.0.0.1", capacity=2.5)
    facts.members.add(client_id="b")
    facts.balance.CopyFrom(groups_pb2.BalancePolicy(weight="LAG", moves_max=3, hold_ms=5_000, hold_lag_max=7))
    held = facts.held.add(holder="a")
    held.queue.topic, held.queue.broker_name, held.queue.queue_id = "T", "b", 1
    held.generation.epoch, held.generation.counter = 9, 2
    lag = message.lags.add(group="g").queues.add(lag=12)
    lag.queue.CopyFrom(held.queue)
    report, queue = to.report_of(message, address="10.0.0.9"), MessageQueue("T", "b", 1)
    (group,) = report.groups
    assert group.members == (
        MemberFact(client_id="a", zone="z2", instance="web-0", address="10.0.0.1", capacity=2.5),
        MemberFact(client_id="b"),
    )
    assert group.balance == BalancePolicy(weight=Weight.LAG, moves_max=3, hold_ms=5_000, hold_lag_max=7)
    assert tuple(group.held) == (HeldFact(queue=queue, holder="a", generation=Generation(9, 2)),)
    assert report.lags == (LagFact(group="g", lags=((queue, 12),)),)
    assert (report.zone, report.address) == ("z1", "10.0.0.9")


def test_a_weight_that_only_newer_brokers_know_weighs_nothing_and_no_policy_is_the_even_one() -> None:
    message = assignment_pb2.BrokerReport(broker_name="b")
    message.groups.add(group="g1").balance.weight = "MOON"
    message.groups.add(group="g2")
    assert [group.balance for group in to.report_of(message).groups] == [EVEN_BALANCE, EVEN_BALANCE]


@pytest.mark.parametrize(
    "member",
    [
        groups_pb2.Member(client_id="a", capacity=-1),
        groups_pb2.Member(client_id="a", capacity=float("nan")),
        groups_pb2.Member(client_id="a", capacity=float("inf")),
        groups_pb2.Member(client_id="a", zone="z" * 256),
        groups_pb2.Member(client_id="a", instance="i" * 256),
    ],
)
def test_labels_and_capacities_out_of_range_are_refused(member) -> None:
    message = assignment_pb2.BrokerReport(broker_name="b")
    message.groups.add(group="g", members=[member])
    with pytest.raises(BadRequest):
        to.report_of(message)


def test_a_policy_out_of_range_is_refused() -> None:
    message = assignment_pb2.BrokerReport(broker_name="b")
    message.groups.add(group="g").balance.hold_ms = -1
    with pytest.raises(BadRequest, match="hold"):
        to.report_of(message)


def test_holds_of_a_leader_before_are_taken_in_as_far_as_they_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    message = assignment_pb2.BrokerReport(broker_name="b")
    result = message.groups.add(group="g").holds.add(topic="T")
    result.generation.epoch, result.generation.counter = 9, 2
    for own, place in (("x", "instance web-0"), ("", "p"), ("y" * 256, "p"), ("z", "p" * 1_025), ("none", "p")):
        waiting = result.places.add(client_id=own, place=place, until_wall_ms=-5)
        if own != "none":
            waiting.queues.add(broker_name="b", queue_ids=[1, 2])
            waiting.queues.add(broker_name="b2", queue_ids=[0])

    def queues(report) -> list[int]:
        return [len(place.queues) for place in report.groups[0].holds[0].places]

    (holds,) = to.report_of(message).groups[0].holds
    assert (holds.topic, holds.generation) == ("T", Generation(9, 2))
    (place,) = holds.places
    assert (place.client_id, place.place, place.until_wall_ms) == ("x", "instance web-0", -5)
    assert place.queues == (MessageQueue("T", "b", 1), MessageQueue("T", "b", 2), MessageQueue("T", "b2", 0))
    result.places.add(client_id="w").queues.add(broker_name="b", queue_ids=[7])
    assert queues(to.report_of(message)) == [3, 1]
    monkeypatch.setattr(to, "HOLD_QUEUES_MAX", 2)
    assert queues(to.report_of(message)) == [2]
    monkeypatch.setattr(to, "HOLDS_MAX", 0)
    assert queues(to.report_of(message)) == []
    monkeypatch.setattr(to, "HOLD_TOPICS_MAX", 0)
    assert to.report_of(message).groups[0].holds == ()
    message.groups[0].holds[0].topic = "a b"
    monkeypatch.undo()
    with pytest.raises(IllegalTopic):
        to.report_of(message)
