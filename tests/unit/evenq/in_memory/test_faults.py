"""Plans of faults: their order, their topics and their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evenq.errors import BadRequest
from evenq.in_memory.faults import FaultKind, SendFaults


def kinds(faults: SendFaults, *topics: str) -> list[FaultKind | None]:
    taken = [faults.take(topic) for topic in topics]
    return [None if fault is None else fault.kind for fault in taken]


def test_plans_are_taken_in_their_order_each_as_often_as_it_says() -> None:
    faults = SendFaults()
    faults.fail_sends(2)
    faults.drop()
    assert faults.pending == 3
    assert kinds(faults, *"abcd") == [FaultKind.REFUSED, FaultKind.REFUSED, FaultKind.DROPPED, None]
    assert faults.pending == 0


def test_a_plan_for_a_topic_leaves_others_to_later_plans() -> None:
    faults = SendFaults()
    faults.duplicate(topic="a")
    faults.delay(5)
    assert kinds(faults, "b", "a", "b") == [FaultKind.DELAYED, FaultKind.DUPLICATED, None]
    faults.lose_answers(3)
    faults.clear()
    assert kinds(faults, "a") == [None]


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (lambda faults: faults.drop(0), "count is 0, the range is 1 to 1000000"),
        (lambda faults: faults.duplicate("1"), "count is '1'"),
        (lambda faults: faults.delay(0), "delay_ms is 0, the range is 1 to 86400000"),
        (lambda faults: faults.fail_sends(attempts=0), "attempts is 0"),
        (lambda faults: faults.fail_sends(error=ValueError("x")), "give an error of evenq.errors"),
    ],
)
def test_numbers_out_of_their_range_are_refused(plan: Callable[[SendFaults], None], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        plan(SendFaults())
