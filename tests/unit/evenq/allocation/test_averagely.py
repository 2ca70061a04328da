"""AVG beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from evenq.allocation import Averagely
from evenq.model import MessageQueue


def test_the_callers_lists_stay_as_they_are() -> None:
    queues, ids = [MessageQueue("T", "b", index) for index in range(4)], ["a", "b"]
    mine = Averagely().allocate("g", "a", queues, ids)
    mine.clear()
    assert len(queues) == 4
    assert ids == ["a", "b"]


def test_tuples_do_as_well_as_lists() -> None:
    queues = tuple(MessageQueue("T", "b", index) for index in range(3))
    assert Averagely().allocate("g", "b", queues, ("a", "b")) == [queues[2]]
