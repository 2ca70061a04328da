"""What a decision leaves undone is said: idle members (AL-9), queues without an owner, rooms that no member covers (AL-20)."""

from __future__ import annotations

from evenq_rebalancer.core.decisions import Decision, decide
from evenq_rebalancer.core.gaps import gaps, idle
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import named

from evenq.model import Generation, MessageModel, MessageQueue

ROOMS = tuple(MessageQueue("T", broker, number) for broker in ("r1@a", "r2@b") for number in range(4))


def decision(strategy: str, *ids: str, queues: tuple[MessageQueue, ...] = ROOMS, topic: str = "T") -> Decision:
    members = tuple(MemberFact(client_id=one, model=MessageModel.CLUSTERING, topics=()) for one in ids)
    return decide(
        group="g",
        topic=topic,
        inputs=Inputs(strategy=strategy, mode=None, queues=queues, members=members),
        before=None,
        generation=Generation(1, 1),
        now_ms=1,
        by=lambda name: named(name, ("r1",)),
    )


def test_al_20_rooms_that_nobody_covers_are_named() -> None:
    result = gaps(decision("MACHINE_ROOM", "c1", "c2"))
    assert result.startswith("MACHINE_ROOM gives 4 of 8 queues to no member (r2@b/0, r2@b/1, r2@b/2, r2@b/3)")
    assert "all of rooms r2 among them; run evenq group doctor g" in result


def test_many_queues_are_counted() -> None:
    many = tuple(MessageQueue("T", "r2@b", number) for number in range(9))
    assert "r2@b/4, 4 more)" in gaps(decision("MACHINE_ROOM", "c1", queues=many))


def test_al_9_members_without_a_queue_are_counted() -> None:
    assert idle(decision("AVG", *(f"c{number}" for number in range(10)))) == (
        "2 of 10 members have no queue, among them c8"
    )
    assert not idle(decision("AVG", "c1", "c2", queues=ROOMS[:1], topic="%RETRY%g")), "usual, and no one's mistake"


def test_a_division_that_covers_all_says_nothing() -> None:
    assert gaps(decision("AVG", "c1", "c2")) == idle(decision("AVG", "c1", "c2")) == ""
    assert gaps(decision("", "c1", "c2")) == idle(decision("", "c1", "c2")) == "", "everybody reads every broker"
    assert gaps(decision("AVG")) == "", "no one is there: the group sleeps"
