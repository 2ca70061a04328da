"""What goes down the report streams with a decision."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.decisions import decide
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import named
from evenq_rebalancer.rpc import telling
from evenq_rebalancer.rpc.telling import DecisionEncoder

from evenq.model import Generation, MessageModel, MessageQueue
from evenq.wire.stubs.evenq.v1 import assignment_pb2


def decided(*ids: str, queues: int = 4, strategy: str = "AVG", mode=None, broadcasting: str = "", held=None):
    members = [MemberFact(client_id=own, topics=("T",)) for own in ids]
    if broadcasting:
        members.append(MemberFact(client_id=broadcasting, model=MessageModel.BROADCASTING))
    rows = tuple(MessageQueue("T", broker, number) for broker in ("b1", "b2") for number in range(queues // 2))
    inputs = Inputs(strategy=strategy, mode=mode, queues=rows, members=tuple(members), topic="T", held=held or {})
    return decide(
        group="g",
        topic="T",
        inputs=inputs,
        before=None,
        generation=Generation(7, 3),
        now_ms=1,
        by=lambda name: named(name, ()),
    )


def sent(decision) -> assignment_pb2.Decision:
    return assignment_pb2.Decision.FromString(DecisionEncoder().bytes_of(decision))


def shares(message) -> dict[str, list[tuple[str, list[int]]]]:
    return {
        member.client_id: [(part.broker_name, list(part.queue_ids)) for part in member.share.queues]
        for member in message.shares.members
    }


def test_each_member_finds_its_share_by_broker_and_who_has_none_is_named_too() -> None:
    message = sent(decided("a", "b", "c", queues=2))
    assert (message.group, message.topic, message.generation.counter) == ("g", "T", 3)
    assert shares(message) == {"a": [("b1", [0])], "b": [("b2", [0])], "c": []}
    assert {member.share.strategy for member in message.shares.members} == {"AVG"}


def test_broadcasting_members_are_not_among_those_that_share() -> None:
    assert list(shares(sent(decided("a", queues=2, broadcasting="z")))) == ["a"]


@pytest.mark.parametrize(
    "decision",
    [
        decided("a", "b", strategy=""),
        decided("a", "b", "c", mode=RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=2)),
    ],
    ids=["all brokers to everybody", "shared by several"],
)
def test_without_one_owner_each_members_must_ask(decision) -> None:
    assert not sent(decision).HasField("shares")


def test_too_many_queues_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "SHARED_QUEUES_MAX", 3)
    assert not sent(decided("a", queues=4)).HasField("shares")
    assert sent(decided("a", queues=2)).HasField("shares")


def test_the_bytes_are_made_once_for_all_streams_and_anew_for_the_next_decision(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(telling, "KEPT_MAX", 1)
    one, decision, after = DecisionEncoder(), decided("a"), decided("a", "b")
    assert one.bytes_of(decision) is one.bytes_of(decision)
    assert one.bytes_of(after) != one.bytes_of(decision)


def test_what_waits_for_successors_is_told_by_place_and_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Hold(client_id="x", place="instance web-0", until_ms=5, until_wall_ms=1_005)
    second = Hold(client_id="y", place="instance web-1", until_ms=6, until_wall_ms=1_006)
    held = {MessageQueue("T", "b1", 0): first, MessageQueue("T", "b1", 1): second, MessageQueue("T", "b2", 1): first}
    message = sent(decided("a", queues=4, held=held))
    assert [
        (place.client_id, place.place, place.until_wall_ms, [(q.broker_name, list(q.queue_ids)) for q in place.queues])
        for place in message.held
    ] == [
        ("x", "instance web-0", 1_005, [("b1", [0]), ("b2", [1])]),
        ("y", "instance web-1", 1_006, [("b1", [1])]),
    ]
    assert shares(message) == {"a": [("b2", [0])]}
    assert not sent(decided("a", strategy="", held=held)).held, "all members read all queues"
    monkeypatch.setattr(telling, "SHARED_QUEUES_MAX", 2)
    assert not sent(decided("a", queues=4, held=held)).held
