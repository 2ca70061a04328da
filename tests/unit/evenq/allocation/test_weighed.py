"""STICKY by weights and capacities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.allocation import Context
from evenq.allocation.weighed import FLOOR, SLACK, weighed
from evenq.errors import BadRequest
from evenq.model import MessageQueue


def q(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", f"b{index % 3}", index) for index in range(count)]


def owners_of(shares: dict[str, list[MessageQueue]]) -> dict[MessageQueue, str]:
    return {queue: own for own, share in shares.items() for queue in share}


WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(WEIGHTS, st.integers(1, 8), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_level_above_the_slack_is_one_that_no_single_queue_could_lower(weights, member_count, rnd) -> None:
    queues, ids = q(len(weights)), [f"c{index}" for index in range(member_count)]
    fields = dict(zip(queues, map(float, weights), strict=True))
    start = {queue: rnd.choice([*ids, "gone"]) for queue in queues}
    shares = weighed(queues, ids, Context(owners=start, weight_of_queue=fields))
    assert sorted(owners_of(shares)) == sorted(queues)
    least = FLOOR * sum(weights) / len(weights) or 1.0
    weigh = {queue: max(weight, least) for queue, weight in fields.items()}
    level = {own: sum(weigh[queue] for queue in share) for own, share in shares.items()}
    highest, lowest = max(level, key=level.__getitem__), min(level.values())
    if level[highest] > sum(weigh.values()) / member_count * (1 + SLACK) + 1e-6:
        assert all(lowest + weigh[queue] >= level[highest] - 1e-6 for queue in shares[highest])


@settings(max_examples=100, deadline=None)
@given(WEIGHTS, st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=8), st.integers(1, 5), st.data())
@pytest.mark.slow
def test_a_budget_is_kept_and_what_was_decided_once_is_decided_again(weights, capacities, budget, data) -> None:
    queues, ids = q(len(weights)), [f"c{index}" for index in range(len(capacities))]
    facts = {
        "weight_of_queue": dict(zip(queues, map(float, weights), strict=True)),
        "capacity_of_member": dict(zip(ids, capacities, strict=True)),
    }
    start = {queue: data.draw(st.sampled_from([*ids, "gone"])) for queue in queues}
    limited = owners_of(weighed(queues, ids, Context(owners=start, moves_max=budget, **facts)))
    assert sum(owner in ids and limited[queue] != owner for queue, owner in start.items()) <= budget
    settled = owners_of(weighed(queues, ids, Context(owners=start, **facts)))
    assert owners_of(weighed(queues, ids, Context(owners=settled, **facts))) == settled


def test_capacities_alone_divide_counts() -> None:
    shares = weighed(q(12), ["a", "b", "c"], Context(capacity_of_member={"a": 2.0}))
    assert [len(shares[own]) for own in ("a", "b", "c")] == [6, 3, 3]


def test_the_busy_queue_stays_and_the_quiet_ones_go() -> None:
    queues = q(5)
    context = Context(owners=dict.fromkeys(queues, "a"), weight_of_queue={queues[0]: 1000.0})
    shares = weighed(queues, ["a", "b"], context)
    assert shares["a"] == [queues[0]]


def test_a_level_within_the_slack_moves_nothing() -> None:
    queues = q(40)
    owners = {queue: "ab"[queue.queue_id % 2] for queue in queues}
    weights = {queue: 1.05 if queue.queue_id % 2 else 1.0 for queue in queues}
    assert owners_of(weighed(queues, ["a", "b"], Context(owners=owners, weight_of_queue=weights))) == owners


def test_a_newcomer_gets_its_part_although_all_others_are_within_the_slack() -> None:
    queues = q(400)
    owners = {queue: f"c{queue.queue_id % 40}" for queue in queues}
    weights = {queue: 1.0 + queue.queue_id / 1e6 for queue in queues}
    ids = sorted({*owners.values(), "new"})
    shares = weighed(queues, ids, Context(owners=owners, weight_of_queue=weights))
    moves = {queue: own for queue, own in owners_of(shares).items() if owners[queue] != own}
    assert set(moves.values()) == {"new"}
    assert 8 <= len(moves) <= 10  # 400 / 41 is the mean


def test_queues_without_lag_do_not_pile_up() -> None:
    queues = q(30)
    shares = weighed(queues, ["a", "b", "c"], Context(weight_of_queue=dict.fromkeys(queues, 0.0)))
    assert {len(share) for share in shares.values()} == {10}


def test_zones_are_kept_where_the_level_stays_even() -> None:
    queues = q(9)
    zones = {f"b{index}": f"z{index}" for index in range(3)}
    weights = {queue: 1.0 + queue.queue_id / 100 for queue in queues}
    context = Context(weight_of_queue=weights, zone_of_broker=zones, zone_of_member={"x": "z1", "y": "z2", "w": "z0"})
    shares = weighed(queues, ["w", "x", "y"], context)
    assert {own: {queue.broker_name for queue in share} for own, share in shares.items()} == {
        "w": {"b0"},
        "x": {"b1"},
        "y": {"b2"},
    }


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight) -> None:
    with pytest.raises(BadRequest, match=r"weight of queue T@b0:0 is .*, it must be 0 or more"):
        weighed(q(1), ["a"], Context(weight_of_queue={q(1)[0]: weight}))


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, math.inf])
def test_a_capacity_that_is_none_is_refused(capacity) -> None:
    with pytest.raises(BadRequest, match=r"capacity of member 'a' is .*, it must be above 0"):
        weighed(q(1), ["a"], Context(capacity_of_member={"a": capacity}))
