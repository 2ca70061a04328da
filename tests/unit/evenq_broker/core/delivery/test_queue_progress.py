"""`committed` is the smallest unfinished offset, whatever was finished in which order."""

import pytest
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import Pending, QueueProgress
from evenq_broker.core.delivery.unanswered import hold_by_time
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible
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


STEP_NAMES = (
    "deliver", "again", "ack", "finish", "give_back", "nack", "suspend", "hold_on", "expire", "release", "set_aside",
    "commit", "reset", "hold_by_time", "replay",
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(STEP_NAMES), st.integers(0, 12), st.integers(1, 4)), max_size=40), st.data())
def test_the_number_of_messages_that_clients_have_is_that_of_a_walk(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    progress, now_ms = Progress(), 1_000
    progress.start(1, 2, 3, 0)
    progress.on_over = lambda _queue, offset, _entry: now_ms + 50 if offset % 2 else 0
    queue = progress.queue(1, 2, 3)
    assert queue is not None
    for name, offset, number in steps:
        now_ms += 30
        entry = queue.pending.get(offset)
        client, until_ms = "c" * (number % 2), now_ms + 100 * number
        match name:
            case "deliver":
                fresh = list(range(queue.next, queue.next + number))
                progress.deliver(queue, fresh, queue.next + number, deadline_ms=until_ms, client_id=client)
            case "again":
                progress.take_ready(queue, number, deadline_ms=until_ms, client_id=client, max_attempts=2)
            case "ack":
                progress.ack(queue, offset, number, expires_ms=until_ms, now_ms=now_ms)
            case "finish":
                progress.finish(queue, offset)
            case "give_back":
                progress.give_back(queue, offset, entry.number if entry else 1)
            case "nack" | "suspend":
                progress.change_invisible(
                    queue, offset, entry.number if entry else 1, now_ms=now_ms,
                    deadline_ms=now_ms + 100 * (number - 1), uncounted=name == "suspend", given_back=number == 3,
                )  # fmt: skip
            case "hold_on":
                progress.hold_on(queue, offset, number, now_ms=now_ms, deadline_ms=until_ms)
            case "expire":
                now_ms += 100
                progress.expire(now_ms)
            case "release":
                progress.release("c", now_ms + 10)
            case "set_aside":
                progress.set_aside(queue, [queue.next, queue.next + 1])
            case "commit":
                progress.commit(1, 2, 3, min(offset, queue.next))
            case "reset":
                progress.commit(1, 2, 3, offset, allow_backward=True)
            case "hold_by_time":
                list(hold_by_time(progress, given_from_ms=0, held_ms=500, until_ms=now_ms + 5, now_ms=now_ms))
            case "replay":
                state = list(progress.dump())
                progress = Progress()
                for op in state:
                    assert isinstance(op, Acked | Committed | Delivered | Invisible)
                    progress.apply(op)
                if entry is not None:
                    progress.apply(Invisible(1, 2, 3, offset, entry.number, entry.attempt, until_ms))
                queue = progress.queue(1, 2, 3)
                assert queue is not None
        progress.check()
        low = data.draw(st.integers(0, 15))
        high = data.draw(st.integers(low, 20))
        walked = sum(entry.running and low <= at < high for at, entry in queue.pending.items())
        assert queue.inflight(low, high) == walked


def test_the_number_of_messages_that_clients_have_costs_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics read it for each group on each queue, which may have 20,000 unfinished messages."""
    progress = Progress(inflight_max=20_000)
    progress.start(1, 1, 0, 0)
    queue = progress.queue(1, 1, 0)
    assert queue is not None
    progress.deliver(queue, list(range(20_000)), 20_000, deadline_ms=10, client_id="")
    looked: list[int] = []
    monkeypatch.setattr(Pending, "running", property(lambda entry: looked.append(1) or True))
    assert (queue.inflight(0, 20_000), len(looked)) == (20_000, 0)
    assert (queue.inflight(0, 19_990), len(looked)) == (19_990, 10), "taken ahead of their commit"
