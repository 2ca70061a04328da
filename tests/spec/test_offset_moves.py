"""Offsets do not go back by themselves, and a reset is what it says: D6, OF-1, OF-2, OF-9 with an operator in between."""

from evenq_broker.core.delivery.progress import Progress, QueueProgress, SettleStatus
from evenq_broker.core.groups.resets import Fences

from evenq.model import MessageQueue

GROUP, OTHER, TOPIC, QUEUE = 1, 2, 1, 0


def begun(progress: Progress, offset: int) -> QueueProgress:
    progress.commit(GROUP, TOPIC, QUEUE, offset)
    queue = progress.queue(GROUP, TOPIC, QUEUE)
    assert queue is not None
    return queue


def test_d6_only_an_explicit_reset_goes_back() -> None:
    progress = Progress()
    begun(progress, 10)
    assert not progress.commit(GROUP, TOPIC, QUEUE, 3)
    assert progress.committed(GROUP, TOPIC, QUEUE) == 10
    assert progress.commit(GROUP, TOPIC, QUEUE, 3, allow_backward=True)
    assert progress.committed(GROUP, TOPIC, QUEUE) == 3


def test_of_1_a_reset_of_one_group_leaves_the_others_alone() -> None:
    progress = Progress()
    begun(progress, 10)
    progress.commit(OTHER, TOPIC, QUEUE, 8)
    progress.commit(GROUP, TOPIC, QUEUE, 0, allow_backward=True)
    assert progress.committed(OTHER, TOPIC, QUEUE) == 8


def test_of_2_a_commit_that_rides_with_a_pull_cannot_undo_a_reset() -> None:
    fences, queue = Fences(), MessageQueue("t", "a", 0)
    fences.put("g", queue, "member", 3, now_ms=0)
    fences.read("g", queue, "member", 10)  # a pull on its way: it names the old place
    assert fences.ignores("g", queue, "member", now_ms=1)
    fences.read("g", queue, "member", 3)
    assert not fences.ignores("g", queue, "member", now_ms=1)


def test_of_9_the_place_of_a_reset_is_the_next_message_to_read() -> None:
    progress = Progress()
    queue = begun(progress, 10)
    progress.commit(GROUP, TOPIC, QUEUE, 4, allow_backward=True)
    assert queue.next == 4
    progress.deliver(queue, [4, 5], 6, deadline_ms=100, client_id="c")
    first = queue.pending[4].number
    assert progress.ack(queue, 4, first, expires_ms=100, now_ms=1) is SettleStatus.DONE
    assert queue.committed == 5
