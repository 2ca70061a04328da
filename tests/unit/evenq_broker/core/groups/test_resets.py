"""Whose commits do not count after a reset, and where a reset may go."""

import pytest
from evenq_broker.core.delivery import counts
from evenq_broker.core.delivery.counts import FINISHED
from evenq_broker.core.delivery.progress import Progress, SettleStatus
from evenq_broker.core.groups.resets import FENCE_MS, Fences, within
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible

from evenq.model import MessageQueue

QUEUE = MessageQueue("t", "a", 0)


def test_a_member_is_ignored_until_it_reads_at_the_new_place() -> None:
    fences = Fences()
    fence = fences.put("g", QUEUE, "one", 10, now_ms=0)
    assert fences.ignores("g", QUEUE, "one", now_ms=1)
    assert not fences.ignores("g", QUEUE, "two", now_ms=1)
    assert not fences.ignores("other", QUEUE, "one", now_ms=1)
    assert fences.of("g", "one") == [QUEUE]
    fences.read("g", QUEUE, "one", 11)
    assert fences.holds("g", QUEUE, fence, now_ms=1)
    fences.read("g", QUEUE, "one", 10)
    assert not fences.ignores("g", QUEUE, "one", now_ms=1)
    assert not fences.holds("g", QUEUE, fence, now_ms=1)
    assert len(fences) == 0


def test_another_member_that_reads_the_queue_has_begun_by_itself() -> None:
    fences = Fences()
    fences.put("g", QUEUE, "one", 10, now_ms=0)
    fences.read("g", QUEUE, "two", 3)
    assert len(fences) == 0


def test_fences_end_with_their_group() -> None:
    fences = Fences()
    fences.put("g", QUEUE, "one", 10, now_ms=0)
    fences.put("other", QUEUE, "one", 10, now_ms=0)
    fences.forget_group("g")
    assert not fences.ignores("g", QUEUE, "one", now_ms=1)
    assert fences.ignores("other", QUEUE, "one", now_ms=1)


def test_fences_end_with_their_topic() -> None:
    fences = Fences()
    fences.put("g", QUEUE, "one", 10, now_ms=0)
    fences.put("g", MessageQueue("u", "a", 0), "one", 10, now_ms=0)
    fences.forget_topic("t")
    assert not fences.ignores("g", QUEUE, "one", now_ms=1)
    assert fences.of("g", "one") == [MessageQueue("u", "a", 0)]


def test_a_fence_ends_by_time_and_an_old_one_is_thrown_out() -> None:
    fences = Fences()
    old = fences.put("g", QUEUE, "one", 10, now_ms=0)
    assert not fences.ignores("g", QUEUE, "one", now_ms=FENCE_MS)
    assert not fences.holds("g", QUEUE, old, now_ms=FENCE_MS)
    fences.put("g", MessageQueue("t", "a", 1), "one", 10, now_ms=FENCE_MS)
    assert len(fences) == 1


def test_a_later_reset_takes_the_place_of_an_earlier_one() -> None:
    fences = Fences()
    first = fences.put("g", QUEUE, "one", 10, now_ms=0)
    fences.put("g", QUEUE, "one", 5, now_ms=0)
    assert not fences.holds("g", QUEUE, first, now_ms=0)
    fences.read("g", QUEUE, "one", 10)
    assert fences.ignores("g", QUEUE, "one", now_ms=0)


@pytest.mark.parametrize(
    ("wanted", "given", "said"), [(3, 5, "gone"), (5, 5, ""), (9, 9, ""), (10, 9, "not there yet")]
)
def test_a_place_is_moved_into_what_the_queue_holds(wanted: int, given: int, said: str) -> None:
    offset, note = within(wanted, 5, 9)
    assert offset == given
    assert said in note
    assert bool(said) == bool(note)


@pytest.mark.parametrize("target", [0, 2, 3, 7])
def test_a_reset_forgets_what_is_in_flight_in_both_directions(target: int) -> None:
    progress = Progress()
    progress.commit(1, 1, 0, 2)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    progress.deliver(queue, [2, 3, 4], 5, deadline_ms=1_000, client_id="c")
    assert progress.commit(1, 1, 0, target, allow_backward=True)
    assert progress.queue(1, 1, 0) is queue, "who waits for the disk must see it"
    assert (queue.committed, queue.next, queue.pending, queue.ready) == (target, target, {}, [])
    assert not progress.commit(1, 1, 0, target, allow_backward=True)
    assert progress.expire(2_000) == []
    progress.check()


def test_a_reset_to_the_present_offset_forgets_delivery_counts_also_in_a_replay() -> None:
    progress, later = Progress(), Progress()
    start = progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    queue.handed, queue.passed, first = 5, (0, 3), queue.first
    counted = counts.count(queue, {0: 3, 1: FINISHED}, given_until=5)
    assert progress.commit(1, 1, 0, 0, allow_backward=True), "it is to be recorded"
    assert start is not None
    assert counted is not None
    later.apply(start)
    counts.apply(later, counted)
    later.apply(Committed(1, 1, 0, 0, reset=True))
    for one in (progress, later):
        found = one.queue(1, 1, 0)
        assert found is not None
        assert counts.known(found) == (0, [])
        one.check()
    assert (queue.handed, queue.passed) == (0, (0, 0))
    assert queue.first > first


def test_a_reset_that_changes_nothing_on_disk_still_ends_what_was_begun_before_it() -> None:
    progress = Progress()
    progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    queue.handed, queue.passed, first = 5, (0, 3), queue.first
    assert not progress.commit(1, 1, 0, 0, allow_backward=True)
    assert (queue.handed, queue.passed) == (0, (0, 0))
    assert queue.first > first, "a message that is being sent back is not counted as finished after it"


def test_handles_from_before_a_reset_are_over_also_after_a_restart() -> None:
    progress = Progress()
    progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    progress.deliver(queue, [0], 1, deadline_ms=1_000, client_id="")
    old = queue.pending[0].number
    progress.commit(1, 1, 0, 0, allow_backward=True)
    progress.deliver(queue, [0], 1, deadline_ms=2_000, client_id="")
    later = Progress()
    for op in progress.dump():
        assert isinstance(op, Acked | Committed | Delivered | Invisible)
        later.apply(op)
    for one in (progress, later):
        found = one.queue(1, 1, 0)
        assert found is not None
        assert one.ack(found, 0, old, expires_ms=9_000, now_ms=10) is SettleStatus.INVALID
        assert one.ack(found, 0, found.pending[0].number, expires_ms=2_000, now_ms=10) is SettleStatus.DONE
