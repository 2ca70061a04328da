"""What would change if."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evenq_rebalancer.core.decisions import decide
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import named
from evenq_rebalancer.core.simulate import Wish, simulate

from evenq.errors import BadRequest
from evenq.model import Generation, MessageQueue


def by(name):
    return named(name, ())


def now(ids="abc", count=8, strategy="AVG", brokers=("b",)):
    inputs = Inputs(
        strategy=strategy,
        mode=None,
        queues=tuple(MessageQueue("T", broker, index) for broker in brokers for index in range(count)),
        members=tuple(MemberFact(client_id=own) for own in ids),
    )
    return decide(group="g", topic="T", inputs=inputs, before=None, generation=Generation(1, 1), now_ms=1, by=by)


def owners(result):
    return "".join(holding.owner[:1] for holding in result.holdings)


def test_nothing_asked_changes_nothing() -> None:
    result = simulate(now(), Wish(), now_ms=2, by=by)
    assert result.moves == 0
    assert (result.queues_per_member_min, result.queues_per_member_max) == (2, 3)
    assert all(holding.owner == holding.previous_owner for holding in result.holdings)


def test_fewer_and_more_members() -> None:
    fewer = simulate(now(), Wish(members=2), now_ms=2, by=by)
    assert owners(fewer) == "aaaabbbb"
    assert fewer.moves == 3
    more = simulate(now(), Wish(members=4), now_ms=2, by=by)
    assert owners(more) == "aabbcc~~"
    assert [holding.previous_owner for holding in more.holdings] == list("aaabbbcc")
    assert more.moves == 5


def test_other_queues_and_strategies() -> None:
    wider = simulate(now(brokers=("b1", "b2"), count=2), Wish(queues=3), now_ms=2, by=by)
    assert [(row.queue.broker_name, row.queue.queue_id) for row in wider.holdings] == [
        (broker, index) for broker in ("b1", "b2") for index in range(3)
    ]
    assert owners(simulate(now(), Wish(strategy="AVG_BY_CIRCLE"), now_ms=2, by=by)) == "abcabcab"


def test_the_decision_itself_stays() -> None:
    decision = now()
    simulate(decision, Wish(members=9, queues=40, strategy="CONSISTENT_HASH"), now_ms=2, by=by)
    assert decision == now()


@pytest.mark.parametrize("asked", [{"members": -1}, {"members": 1_001}, {"queues": -1}, {"queues": 4_097}])
def test_numbers_out_of_range_are_refused(asked) -> None:
    with pytest.raises(BadRequest, match="the range is 0"):
        simulate(now(), Wish(**asked), now_ms=2, by=by)


def test_too_many_queues_in_all_are_refused() -> None:
    with pytest.raises(BadRequest, match="the limit is 100000"):
        simulate(now(brokers=[f"b{number}" for number in range(30)], count=1), Wish(queues=4_096), now_ms=2, by=by)


def own(ids="ab", strategy="AVG", **more):
    members = tuple(MemberFact(client_id=own, owns=True, strategy=strategy) for own in ids)
    return replace(now("", strategy="", **more), inputs=replace(now("", strategy="", **more).inputs, members=members))


def test_members_that_divide_by_themselves_are_compared_with_what_they_have() -> None:
    result = simulate(own(), Wish(members=4), now_ms=2, by=by)
    assert (result.topic_queues, result.strategy) == (8, "AVG")
    assert owners(result) == "aabb~~~~"
    assert [holding.previous_owner for holding in result.holdings] == list("aaaabbbb")
    assert (result.moves, result.queues_per_member_min, result.queues_per_member_max) == (6, 2, 2)
    assert simulate(own(), Wish(strategy="STICKY"), now_ms=2, by=by).moves == 0, "it begins at who has what"
    assert simulate(own(strategy="AVG_BY_CIRCLE"), Wish(queues=8), now_ms=2, by=by).moves == 0


@pytest.mark.parametrize("strategies", [("AVG", "AVG_BY_CIRCLE"), ("CONFIG", "CONFIG")])
def test_a_division_that_cannot_be_computed_here_is_refused_with_its_name(strategies) -> None:
    decision = own()
    members = tuple(replace(one, strategy=name) for one, name in zip(decision.inputs.members, strategies, strict=True))
    decision = replace(decision, inputs=replace(decision.inputs, members=members))
    with pytest.raises(BadRequest, match=f"divide the queues by themselves.*{strategies[0]}"):
        simulate(decision, Wish(members=3), now_ms=2, by=by)


def test_where_every_member_reads_every_broker_the_queues_are_counted_all_the_same() -> None:
    result = simulate(now("abc", strategy=""), Wish(members=2), now_ms=2, by=by)
    assert (result.topic_queues, result.strategy, result.moves) == (8, "ALL_BROKERS", 0)
    assert (result.queues_per_member_min, result.queues_per_member_max) == (8, 8)
    named = simulate(now("abc", strategy=""), Wish(strategy="AVG"), now_ms=2, by=by)
    assert {holding.previous_owner for holding in named.holdings} == {"*"}
