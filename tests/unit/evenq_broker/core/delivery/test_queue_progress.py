"""`committed` is the smallest unfinished offset, whatever was finished in which order."""

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import Pending, QueueProgress
from hypothesis import given
from hypothesis import strategies as st


def progress(start: int, end: int) -> QueueProgress:
    queue = QueueProgress(1, 2, 3, start)
    queue.pending = {offset: Pending(1, 1, 100, "") for offset in range(start, end)}
    queue.next = end
    return queue


@given(st.permutations(range(5, 25)))
def test_committed_follows_the_smallest_unfinished_offset(order: list[int]) -> None:
    queue = progress(5, 25)
    for offset in order:
        del queue.pending[offset]
        queue.advance()
        assert queue.committed == min(queue.pending, default=queue.next)


def test_a_long_finished_stretch_is_passed_at_once() -> None:
    queue = progress(0, 100_000)
    for offset in range(99_999):
        del queue.pending[offset]
    queue.advance()
    assert queue.committed == 99_999


def test_a_delivery_is_told_to_the_journal_with_its_place_and_numbers() -> None:
    op = progress(7, 8).op(7, Pending(4, 3, 99, ""))
    assert (op.group_id, op.topic_id, op.queue_id, op.offset) == (1, 2, 3, 7)
    assert (op.number, op.attempt, op.deadline_ms) == (4, 3, 99)


def test_few_unfinished_among_many_finished_are_walked_not_searched() -> None:
    progress = Progress(inflight_max=10_000)
    progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    progress.deliver(queue, list(range(5_000)), 5_000, deadline_ms=10, client_id="")
    left = [7, 900, 901, 2_500, 4_999]
    for offset in range(4_999, -1, -1):
        if offset not in left:
            progress.finish(queue, offset)
    for offset, following in zip(left, [*left[1:], 5_000], strict=True):
        assert queue.committed == offset
        progress.finish(queue, offset)
        progress.check()
        assert queue.committed == following
    progress.set_aside(queue, [3, 4_000])
    assert queue.committed == 3
    progress.finish(queue, 3)
    assert queue.committed == 4_000
    progress.check()


def test_deliveries_that_end_in_the_same_ms_share_a_timer_and_all_come_again() -> None:
    progress = Progress()
    progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    for offset in range(10):
        progress.deliver(queue, [offset], offset + 1, deadline_ms=100 + offset // 5, client_id="")
    assert len(progress._deadlines.timers) == 2
    progress.check()
    progress.expire(100)
    assert sorted(queue.ready) == [0, 1, 2, 3, 4]
    progress.deliver(queue, [10], 11, deadline_ms=100, client_id="")  # its time is over already
    progress.expire(101)
    assert sorted(queue.ready) == list(range(11))
    progress.check()


def test_the_end_of_a_client_looks_only_where_it_holds_something() -> None:
    progress = Progress()
    for queue_id in range(3):
        progress.start(1, 1, queue_id, 0)
        queue = progress.queue(1, 1, queue_id)
        assert queue is not None
        progress.deliver(queue, [0], 1, deadline_ms=1_000, client_id=f"client{queue_id}")
    assert [queue.queue_id for queue, _ in progress.release("client1", 5)] == [1]
    assert progress.release("client1", 5) == []
    assert progress._held.clients() == ["client0", "client2"]
