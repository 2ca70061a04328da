"""Marks of messages."""

from __future__ import annotations

import pytest
from evenq_broker.rpc.delivery.member_progress import MARKS_MAX, mark_of, marks_asked

from evenq.errors import BadRequest


def test_a_mark_changes_with_the_moment_and_with_every_part() -> None:
    marks = {
        mark_of(1_000, b"a", b"b"),
        mark_of(1_001, b"a", b"b"),
        mark_of(1_000, b"c", b"b"),
        mark_of(1_000, b"a", b"c"),
    }
    assert len(marks) == 4
    assert mark_of(1_000, b"a", b"b").startswith("3e8.")


def test_marks_are_asked_for_each_queue_or_for_none_and_not_for_too_many() -> None:
    assert marks_asked([], 3) == [0, 0, 0]
    assert marks_asked([4, 0], 2) == [4, 0]
    assert len(marks_asked([1] * MARKS_MAX + [0] * 9, MARKS_MAX + 9)) == MARKS_MAX + 9
    with pytest.raises(BadRequest, match="2 mark_at for 3 queues"):
        marks_asked([1, 2], 3)
    with pytest.raises(BadRequest, match=f"the limit is {MARKS_MAX}"):
        marks_asked([1] * (MARKS_MAX + 1), MARKS_MAX + 1)
