"""When balance alone is worth a look, and a move."""

from __future__ import annotations

from evenq_rebalancer.core.pacing import imbalance, lag_weights, worth_looking, worth_moving

from evenq.model import MessageQueue

QUEUES = tuple(MessageQueue("T", "b", index) for index in range(4))
SHARES = {"a": QUEUES[:2], "b": QUEUES[2:]}


def test_a_queue_counts_once_and_once_more_for_each_thousand_messages() -> None:
    weights = lag_weights(QUEUES[:2], {QUEUES[0]: 2_500})
    assert weights == {QUEUES[0]: 3.5, QUEUES[1]: 1.0}


def test_small_lags_are_no_reason_to_look() -> None:
    weights = lag_weights(QUEUES, {QUEUES[0]: 90, QUEUES[3]: 10})
    assert not worth_looking(imbalance(SHARES, ["a", "b"], weights))


def test_one_busy_member_is_a_reason_to_look() -> None:
    weights = lag_weights(QUEUES, {QUEUES[0]: 3_000, QUEUES[1]: 3_000})
    now = imbalance(SHARES, ["a", "b"], weights)
    assert now == 8 / 5
    assert worth_looking(now)


def test_nobody_and_nothing_are_balanced() -> None:
    assert imbalance({}, [], {}) == 1.0
    assert imbalance({"a": ()}, ["a"], {}) == 1.0


def test_a_move_must_gain_a_tenth_of_what_is_too_much() -> None:
    assert worth_moving(1.6, 1.2)
    assert not worth_moving(1.6, 1.58)
    assert not worth_moving(1.2, 1.0), "not uneven enough to move anything"
    assert not worth_moving(3.0, 3.0), "one queue may be all the load; nothing helps"
