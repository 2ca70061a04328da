"""The pure heart, and strategies that misbehave."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import divided, named

from evenq.errors import BadRequest
from evenq.model import MessageQueue
from evenq.model.balance import BalancePolicy, Weight

QUEUES = tuple(MessageQueue("T", broker, index) for broker in ("b1", "b2") for index in range(3))


def inputs(ids="abc", strategy="AVG", **rest) -> Inputs:
    members = tuple(MemberFact(client_id=own) for own in ids)
    return Inputs(strategy=strategy, mode=None, queues=QUEUES, members=members, topic="T", **rest)


def by(name):
    return named(name, (), zones=True)


class Own:
    """A client's own strategy."""

    name = "OWN"

    def __init__(self, answer) -> None:
        self.answer = answer

    def divide(self, group, queues, ids):
        return self.answer(queues, ids)

    def allocate(self, group, own_id, queues, ids):
        return self.answer(queues, ids)[own_id]


def owned(answer, ids="abc"):
    return divided("g", inputs(ids, strategy="OWN"), lambda _: Own(answer))


def explode(queues, ids):
    raise RuntimeError("out of ideas")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (explode, "OWN failed with RuntimeError: out of ideas"),
        (lambda queues, ids: {ids[0]: [MessageQueue("U", "b1", 0)]}, "OWN.*U@b1:0"),
        (lambda queues, ids: {ids[0]: [queues[0]], ids[1]: [queues[0]]}, "OWN.*twice"),
        (lambda queues, ids: {ids[0]: [queues[0], queues[0]]}, "OWN.*twice"),
        (lambda queues, ids: {"stranger": [queues[0]]}, "OWN.*stranger"),
        (lambda queues, ids: None, "OWN"),
        (lambda queues, ids: {ids[0]: None}, "OWN"),
        (lambda queues, ids: {ids[0]: [7]}, "OWN"),
        (lambda queues, ids: {ids[0]: [[]]}, "OWN"),
    ],
)
def test_whatever_a_strategy_does_wrong_is_one_error_that_names_it(answer, words) -> None:
    with pytest.raises(BadRequest, match=words):
        owned(answer)


def test_queues_that_a_strategy_makes_anew_count_as_the_topics() -> None:
    division = owned(lambda queues, ids: {ids[0]: [MessageQueue(q.topic, q.broker_name, q.queue_id) for q in queues]})
    assert division.owners == ["a"] * 6
    assert division.shares["b"] == ()


def test_queues_that_a_strategy_leaves_out_have_no_owner() -> None:
    assert owned(lambda queues, ids: {ids[2]: queues[:1]}).owners == ["c", "", "", "", "", ""]


def test_held_queues_are_not_divided() -> None:
    hold = Hold(client_id="d", place="p", until_ms=1, until_wall_ms=1)
    division = divided("g", inputs("ab", held={QUEUES[0]: hold, QUEUES[5]: hold}), by)
    assert division.owners == ["", "a", "a", "b", "b", ""]
    everything = divided("g", inputs("ab", held=dict.fromkeys(QUEUES, hold)), by)
    assert everything.owners == [""] * 6


def test_a_strategy_that_gives_a_held_queue_is_wrong() -> None:
    hold = Hold(client_id="d", place="p", until_ms=1, until_wall_ms=1)
    with pytest.raises(BadRequest, match="OWN"):
        divided("g", inputs("ab", strategy="OWN", held={QUEUES[0]: hold}), lambda _: Own(lambda q, i: {"a": QUEUES}))


def test_sticky_keeps_previous_owners() -> None:
    before = dict(zip(QUEUES, "ccbbaa", strict=True))
    assert "".join(divided("g", inputs(strategy="STICKY"), by, owners=lambda: before).owners) == "ccbbaa"


def test_previous_owners_are_only_asked_for_where_they_count() -> None:
    def owners():
        raise AssertionError("AVG does not want to know")

    assert "".join(divided("g", inputs(), by, owners=owners).owners) == "aabbcc"


def test_members_with_more_capacity_get_more_if_the_policy_says_so() -> None:
    members = (MemberFact(client_id="a", capacity=2.0), MemberFact(client_id="b"))
    fields = {"mode": None, "queues": QUEUES, "members": members, "strategy": "STICKY"}
    assert sorted(divided("g", Inputs(**fields), by).owners) == ["a"] * 3 + ["b"] * 3
    weighed = Inputs(**fields, balance=BalancePolicy(weight=Weight.CAPACITY))
    assert sorted(divided("g", weighed, by).owners) == ["a"] * 4 + ["b"] * 2


def test_machine_room_takes_the_rooms_from_zones() -> None:
    members = (MemberFact(client_id="a", zone="z1"), MemberFact(client_id="b", zone="z2"))
    result = Inputs(
        strategy="MACHINE_ROOM_NEARBY-AVG",
        mode=None,
        queues=QUEUES,
        members=members,
        zones={"b1": "z2", "b2": "z1"},
    )
    assert divided("g", result, by).owners == ["b", "b", "b", "a", "a", "a"]
