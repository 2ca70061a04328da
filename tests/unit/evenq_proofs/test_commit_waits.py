"""Nothing is answered before its record is committed, and nothing at all by a deposed leader (R12)."""

from __future__ import annotations

import pytest
from evenq_proofs.commit_waits import CommitWaits, Waited

from evenq.errors import TooManyRequests


def test_tickets_are_answered_in_order_as_far_as_is_committed() -> None:
    waits = CommitWaits()
    waits.serve(3)
    assert [waits.park(number, epoch=3, end=number * 10) for number in (1, 2, 3)] == [None] * 3
    assert waits.committed(20) == Waited((1, 2), committed=True)
    assert len(waits) == 1


def test_a_deposed_leader_answers_unknown() -> None:
    waits = CommitWaits()
    waits.serve(3)
    waits.park(1, epoch=3, end=10)
    assert waits.stop() == Waited((1,), committed=False)
    assert waits.committed(10) == Waited((), committed=True)
    assert waits.park(2, epoch=3, end=20) == Waited((2,), committed=False)


def test_a_record_of_the_epoch_before_is_unknown_in_the_next() -> None:
    waits = CommitWaits()
    waits.serve(3)
    waits.park(1, epoch=3, end=10)
    assert waits.serve(5) == Waited((1,), committed=False)
    assert waits.park(2, epoch=3, end=20) == Waited((2,), committed=False)


def test_waits_are_bounded() -> None:
    waits = CommitWaits(waits_max=2)
    waits.serve(1)
    waits.park(1, epoch=1, end=1)
    waits.park(2, epoch=1, end=2)
    assert waits.room() == 0
    with pytest.raises(TooManyRequests, match="2 calls wait for replicas already"):
        waits.park(3, epoch=1, end=3)
