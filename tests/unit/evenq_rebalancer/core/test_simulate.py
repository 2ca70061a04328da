"""What would change if."""

from __future__ import annotations

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
