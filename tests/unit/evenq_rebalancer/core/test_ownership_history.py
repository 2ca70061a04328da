"""Columns carried on from decision to decision."""

from __future__ import annotations

from evenq_rebalancer.core.ownership_history import Stamp, history_after
from evenq_rebalancer.core.sharing import Division

from evenq.model import Generation, MessageQueue

QUEUES = tuple(MessageQueue("T", "b", index) for index in range(4))


def division(owners, queues=QUEUES, one=True) -> Division:
    return Division({}, queues, list(owners), one_row_each=one)


def stamp(number: int) -> Stamp:
    return Stamp(number, f"reason {number}", Generation(1, number))


def test_a_queue_that_stays_keeps_its_stamp_and_one_that_moves_gets_the_new_one() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    second, moves = history_after(first, division("aabc"), stamp(2), waiting={})
    assert moves == 1
    assert [row.since_ms for row in second.stamps] == [1, 1, 1, 2]
    assert list(second.previous) == ["", "", "", "b"]
    assert history_after(second, division("aabc"), stamp(3), waiting={})[0].stamps is second.stamps


def test_other_queues_make_the_same_rows_the_long_way() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    wider = (*QUEUES, MessageQueue("T", "b", 4))
    second, moves = history_after(first, division("aabca", wider), stamp(2), waiting={})
    assert moves == 1
    assert [row.since_ms for row in second.stamps] == [1, 1, 1, 2, 2]
    assert list(second.previous) == ["", "", "", "b", ""]


def test_who_had_a_held_queue_is_still_who_had_it_before() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    held, moves = history_after(first, division(["a", "a", "", ""]), stamp(2), waiting={})
    assert (moves, held.previous[2]) == (0, "b")
    for queues in (QUEUES, QUEUES[1:]):
        owners = ["a", "a", "c", "b"][-len(queues) :]
        taken, moves = history_after(held, division(owners, queues), stamp(3), waiting={QUEUES[2]: 1, QUEUES[3]: 1})
        assert (moves, list(taken.previous)[-2:]) == (1, ["b", "b"]), "c followed b, and b came back"


def test_nobodys_queue_that_gets_an_owner_has_not_moved() -> None:
    first, _ = history_after(None, division(["", "", "", ""]), stamp(1), waiting={})
    assert history_after(first, division("aaaa"), stamp(2), waiting={})[1] == 0


def test_queues_with_several_owners_have_a_row_for_each() -> None:
    twice = [queue for queue in QUEUES for _ in range(2)]
    first, _ = history_after(None, division("abbccdda", twice, one=False), stamp(1), waiting={})
    second, _ = history_after(first, division("abbccdde", twice, one=False), stamp(2), waiting={})
    assert [row.since_ms for row in second.stamps] == [1] * 7 + [2]
    assert second.previous[7] == "a"
