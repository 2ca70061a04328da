"""What a new owner makes of what its broker knows, and how a process queue shows it."""

from __future__ import annotations

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.calls import FINISHED
from evenq.client.core.reading.process_queue import PastDeliveries, ProcessQueue
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int, attempt: int = 1) -> ReceivedMessage:
    return received_message(offset, message_id=str(offset), queue=QUEUE, delivery_attempt=attempt)


@pytest.mark.parametrize(
    ("offset", "given", "most", "number", "apart"),
    [
        (3, 1, 5, 4, True),  # counted three times
        (3, 7, 5, 7, True),  # its copy knows more
        (5, 1, 5, 2, False),  # may have been delivered
        (5, 4, 5, 5, True),  # this is the last one, and being in hand does not use it up
        (5, 5, 5, 5, True),
        (5, 1, 1, 1, True),
        (8, 1, 5, None, False),  # no member had it
        (8, 5, 5, None, False),
    ],
)
def test_which_delivery_comes_next(offset: int, given: int, most: int, number: int | None, apart: bool) -> None:
    past = PastDeliveries(8, {3: 3, 6: FINISHED}, most)
    assert past.attempt(offset, given) == (number, apart)


def test_finished_ones_are_left_out_and_progress_goes_past_them() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, past=PastDeliveries(2, {0: FINISHED, 3: FINISHED}, 5))
    process.put([message(offset) for offset in range(4)], 4, now_ms=0)
    process.check()
    chunk = process.take(9, now_ms=0)
    assert [(one.queue_offset, one.delivery_attempt) for one in chunk] == [(1, 2), (2, 1)]
    assert process.to_count(chunk, attempts_max=5) == {1: 2}
    for one in chunk:
        process.finish(one.queue_offset)
    assert process.committable == 4


@pytest.mark.parametrize("ordered", [False, True])
def test_what_may_have_ended_a_process_comes_alone_and_only_when_nothing_like_it_runs(ordered: bool) -> None:
    past = PastDeliveries(0, {0: 2, 1: 2}, 5)
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=ordered, past=past)
    process.put([message(offset) for offset in range(4)], 4, now_ms=0)
    process.check()
    assert [one.queue_offset for one in process.take(9, now_ms=0, careful=False)] == ([] if ordered else [2, 3])
    first = process.take(9, now_ms=0)
    assert [(one.queue_offset, one.delivery_attempt) for one in first] == [(0, 3)]
    assert process.careful(first[0])
    assert process.to_count(first, attempts_max=5) == {0: 3}
    process.check()
    if ordered:
        process.suspend(first, resume_ms=5)
    else:
        process.fail(first[0].queue_offset, retry_ms=5)
    process.check()
    (again,) = process.take(1, now_ms=5, careful=ordered)
    if not ordered:
        assert (again.queue_offset, again.delivery_attempt) == (0, 4), (
            "it failed and ended nothing: it need not be alone"
        )


def test_what_was_not_run_after_all_keeps_its_number() -> None:
    for ordered in (False, True):
        process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=ordered)
        process.put([message(0, 2), message(1)], 2, now_ms=0)
        chunk = process.take(9, now_ms=0)
        process.put_back(chunk, retry_ms=50)
        process.check()
        assert process.due_ms() == (50 if ordered else 0)
        again = process.take(1, now_ms=50)
        assert [(one.queue_offset, one.delivery_attempt) for one in again] == [(0, 2)]


def test_what_was_not_run_of_a_queue_that_moves_away_holds_nobody_up() -> None:
    for ordered in (False, True):
        process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=ordered)
        process.put([message(0, 2)], 1, now_ms=0)
        chunk = process.take(9, now_ms=0)
        process.drop()
        process.put_back(chunk, retry_ms=50)
        assert not process.busy
        assert process.committable == 0


def test_all_deliveries_are_used_up_only_if_they_were_from_this_queue() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, past=PastDeliveries(0, {0: 3}, 3))
    process.put([message(0), message(1, 4)], 2, now_ms=0)
    (one,) = process.take(1, now_ms=0)
    (two,) = process.take(1, now_ms=0)
    assert process.used_up(one, attempts_max=3)
    assert not process.used_up(two, attempts_max=3), "an operator lowered the limit: what comes still runs once"


def test_a_leaving_owner_tells_how_far_listeners_were() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    process.put([message(offset) for offset in range(4)], 4, now_ms=0)
    assert process.given_until == 0
    one, two = process.take(2, now_ms=0)
    process.finish(two.queue_offset)
    assert process.given_until == 2
    process.finish(one.queue_offset)
    assert process.given_until == 0
