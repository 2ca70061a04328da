"""`committed` is the smallest unfinished offset, whatever was finished in which order."""

from evenq_broker.core.queue_progress import Pending, QueueProgress
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
