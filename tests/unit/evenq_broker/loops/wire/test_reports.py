"""A report that is put together from encoded parts is the report that protobuf would have written."""

from __future__ import annotations

from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.wire.assignment import DecisionNews, TopicMode
from evenq_broker.loops.wire.reports import (
    ReportHead,
    generation_field,
    group_field,
    group_head,
    held_field,
    holder_field,
    holds_field,
    lag_field,
    member_field,
)

from evenq.model import (
    NO_GENERATION,
    BalancePolicy,
    Generation,
    GroupConfig,
    MessageQueue,
    MessageType,
    Permission,
    QueueCounts,
)
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2

QUEUES = [MessageQueue("t", "a", number) for number in range(3)]


def counted(queues: int) -> QueueCounts:
    return QueueCounts(
        broker_name="a",
        read_queues=queues,
        write_queues=4,
        permission=Permission.READ_WRITE,
        message_type=MessageType.MIXED,
    )


def report(*parts: bytes) -> assignment_pb2.BrokerReport:
    return assignment_pb2.BrokerReport.FromString(b"".join(parts))


def group(*parts: bytes) -> assignment_pb2.GroupFacts:
    (one,) = report(group_field(b"".join(parts))).groups
    return one


def test_a_full_report_names_the_broker_its_zone_and_all_that_live() -> None:
    head = ReportHead("a", "z1", full=True, brokers=("a", "b"))
    assert head.empty
    said = report(head.encoded())
    assert (said.broker_name, said.zone, said.full, list(said.brokers)) == ("a", "z1", True, ["a", "b"])


def test_a_topic_is_said_once_until_it_changes() -> None:
    counts = counted(4)
    first = ReportHead("a", "", full=False)
    known = first.topic("t", counts, None)
    assert [entry.name for entry in report(first.encoded()).topics] == ["t"]
    assert not first.empty
    again = ReportHead("a", "", full=False)
    assert again.topic("t", counts, known) == known
    assert again.empty
    assert again.topic("t", counted(8), known) != known
    assert len(report(again.encoded()).topics) == 1


def test_what_is_gone_makes_a_report() -> None:
    for said in ("topic_gone", "group_gone"):
        head = ReportHead("a", "", full=False)
        getattr(head, said)("x")
        assert not head.empty
        gone = report(head.encoded())
        assert [list(gone.topics_gone), list(gone.groups_gone)] == [
            ["x"] * (said == "topic_gone"),
            ["x"] * (said == "group_gone"),
        ]


def test_a_group_has_its_settings_and_only_a_balance_that_is_not_the_usual_one() -> None:
    plain = group(
        group_head("g", GroupConfig(name="g", group_id=1, ordered=True, strategy="AVG"), [TopicMode(topic="t")])
    )
    assert (plain.group, plain.ordered, plain.strategy, [mode.topic for mode in plain.modes]) == (
        "g",
        True,
        "AVG",
        ["t"],
    )
    assert not plain.HasField("balance")
    held = group(group_head("g", GroupConfig(name="g", group_id=1, balance=BalancePolicy(hold_ms=5_000)), []))
    assert held.balance.hold_ms == 5_000
    unknown = group(group_head("g", None, []))
    assert (unknown.group, unknown.ordered, unknown.strategy) == ("g", False, "")


def test_members_and_what_they_hold_stand_in_their_group() -> None:
    by_x = holder_field("x") + generation_field(Generation(3, 9))
    facts = group(
        group_head("g", None, []),
        member_field(Member(client_id="x", protocol=Protocol.EVENQ, zone="z1")),
        member_field(Member(client_id="y", protocol=Protocol.V2)),
        held_field(QUEUES[0], by_x),
        held_field(QUEUES[1], by_x),
        held_field(QUEUES[2], holder_field("y") + generation_field(NO_GENERATION)),
    )
    assert [(one.client_id, one.zone) for one in facts.members] == [("x", "z1"), ("y", "")]
    assert [(one.queue.queue_id, one.holder, one.generation.counter) for one in facts.held] == [
        (0, "x", 9), (1, "x", 9), (2, "y", 0),
    ]  # fmt: skip
    assert (facts.held[0].queue.topic, facts.held[0].queue.broker_name, facts.held[0].generation.epoch) == ("t", "a", 3)
    assert not facts.held[2].HasField("generation"), "no decision gave it"


def test_what_waits_for_successors_goes_back_as_the_decision_had_it() -> None:
    place = assignment_pb2.HeldPlace(client_id="x", place="web-1")
    decision = assignment_pb2.Decision(
        group="g", topic="t", generation=common_pb2.Generation(epoch=1, counter=2), held=[place]
    )
    holds = DecisionNews(decision.SerializeToString()).holds(1_000)
    (back,) = group(group_head("g", None, []), holds_field(holds)).holds
    assert (back.topic, back.generation.counter, list(back.places)) == ("t", 2, [place])


def test_lags_of_several_groups_follow_the_head() -> None:
    said = report(
        ReportHead("a", "", full=False).encoded(),
        lag_field("g", [(QUEUES[0], 5), (QUEUES[2], 0)]),
        lag_field("h", []),
    )
    assert [(one.group, [(queue.queue.queue_id, queue.lag) for queue in one.queues]) for one in said.lags] == [
        ("g", [(0, 5), (2, 0)]), ("h", []),
    ]  # fmt: skip
