"""What is noted of a batch, and compared at the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark_evenq.plan.marks import Place, compared
from pyspark_evenq.plan.offsets import OffsetMark, StreamOffset

from evenq.model.queue import MessageQueue

A, B = (MessageQueue("flights", "broker-a", number) for number in (0, 1))
OLD = OffsetMark(5, "64.aa")


class Broker:
    """Tells these marks, and nothing of other places."""

    def __init__(self, result: Mapping[Place, str]) -> None:
        self.told = result
        self.asked: list[Place] = []

    def __call__(self, places: Sequence[Place]) -> Mapping[Place, str]:
        self.asked += places
        return {place: self.told[place] for place in places if place in self.told}


def test_only_queues_that_are_read_are_asked_for_and_others_keep_theirs() -> None:
    start = StreamOffset(ends={A: 5, B: 5}, marks={A: OLD, B: OLD})
    broker = Broker({(A, 5): "64.aa", (A, 7): "65.bb"})
    noted, others = compared(start, StreamOffset(ends={A: 7, B: 5}), broker)
    assert (noted, others) == ({A: OffsetMark(7, "65.bb"), B: OLD}, {})
    assert broker.asked == [(A, 5), (A, 7)]


def test_another_message_at_the_place_is_told_with_what_was_noted() -> None:
    start = StreamOffset(ends={A: 5}, marks={A: OLD})
    _, others = compared(start, StreamOffset(ends={A: 7}), Broker({(A, 5): "66.aa", (A, 7): "67.bb"}))
    assert others == {A: OLD}
    assert OLD.store_ms == 100


def test_without_an_answer_the_older_mark_stays_and_without_a_message_nothing_is_compared() -> None:
    start = StreamOffset(ends={A: 5, B: 5}, marks={A: OLD, B: OLD})
    noted, others = compared(start, StreamOffset(ends={A: 7, B: 7}), Broker({(B, 5): "", (B, 7): "65.bb"}))
    assert (noted, others) == ({A: OLD, B: OffsetMark(7, "65.bb")}, {})


def test_a_queue_that_begins_anew_or_has_left_is_not_compared() -> None:
    start = StreamOffset(ends={A: 5, B: 5}, marks={A: OLD, B: OLD})
    broker = Broker({(A, 5): "66.aa", (A, 3): "65.bb"})
    assert compared(start, StreamOffset(ends={A: 3}, starts={A: 1}), broker) == ({A: OffsetMark(3, "65.bb")}, {})


def test_where_a_queue_begins_is_noted_although_nothing_was_read_yet() -> None:
    broker = Broker({(A, 5): "64.aa", (B, 3): "64.cc"})
    end = StreamOffset(ends={A: 5, B: 3}, starts={A: 5, B: 1})
    assert compared(StreamOffset(ends={A: 5, B: 1}), end, broker) == (
        {A: OffsetMark(5, "64.aa"), B: OffsetMark(3, "64.cc")},
        {},
    )


def test_the_offset_in_the_checkpoint_holds_them() -> None:
    offset = StreamOffset(ends={A: 5}, marks={A: OLD})
    assert offset.to_json()["mark"] == {"flights": {"broker-a": {"0": [5, "64.aa"]}}}
    assert StreamOffset.from_json(offset.to_json()) == offset
