"""Whatever listeners do, a commit never passes an unfinished message, and every message is finished once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evenq_proofs.received import received_message
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return received_message(offset, body=b"12345", message_id=str(offset), queue=QUEUE)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_order_of_endings_keeps_the_commit_at_the_smallest_unfinished(data: st.DataObject) -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    running: list[int] = []
    finished: set[int] = set()
    end = now_ms = last = 0
    for _ in range(data.draw(st.integers(1, 40))):
        now_ms += 10
        match data.draw(st.sampled_from(["put", "take", "finish", "fail", "drop"])):
            case "put" if not process.dropped:
                gaps = data.draw(st.lists(st.integers(1, 3), max_size=5))
                offsets = [process.next + sum(gaps[: index + 1]) - 1 for index in range(len(gaps))]
                process.put([message(offset) for offset in offsets], process.next + sum(gaps), now_ms=now_ms)
                end = process.next
            case "take":
                running += [m.queue_offset for m in process.take(data.draw(st.integers(1, 4)), now_ms=now_ms)]
            case "finish" if running:
                offset = running.pop(data.draw(st.integers(0, len(running) - 1)))
                process.finish(QueueOffset(offset))
                assert offset not in finished
                finished.add(offset)
            case "fail" if running:
                if data.draw(st.booleans()):
                    process.doubt(running[0], 0)
                process.fail(QueueOffset(running.pop(0)), retry_ms=now_ms + data.draw(st.integers(0, 30)))
            case "drop" if data.draw(st.booleans()):
                process.drop()
            case _:
                pass
        process.check()
        assert process.committable >= last, "progress never goes back"
        last = process.committable
        assert all(offset >= last for offset in running)
    assert process.committable <= end


def test_failed_messages_come_again_when_due_and_count_their_attempts() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    process.put([message(0), message(1)], 2, now_ms=0)
    (first,) = process.take(1, now_ms=0)
    process.fail(first.queue_offset, retry_ms=100)
    assert [m.queue_offset for m in process.take(5, now_ms=99)] == [1]
    assert process.due_ms() == 100
    assert [(m.queue_offset, m.delivery_attempt) for m in process.take(5, now_ms=100)] == [(0, 2)]


def test_an_overlapping_answer_adds_nothing_twice() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    process.put([message(0), message(1)], 2, now_ms=0)
    process.put([message(1), message(2)], 3, now_ms=0)
    process.check()
    assert process.count == 3
    assert [m.queue_offset for m in process.take(9, now_ms=0)] == [0, 1, 2], "a listener has each once"


def test_a_message_cannot_end_twice() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    process.put([message(0)], 1, now_ms=0)
    process.take(1, now_ms=0)
    process.finish(QueueOffset(0))
    with pytest.raises(InvalidTransition):
        process.finish(QueueOffset(0))


def test_an_ordered_queue_gives_one_chunk_at_a_time_and_a_failed_one_again_before_all_others() -> None:
    """OC-11, OC-12, OC-15."""
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=True)
    process.put([message(offset) for offset in range(4)], 4, now_ms=0)
    first = process.take(2, now_ms=0)
    assert [taken.queue_offset for taken in first] == [0, 1]
    assert process.take(2, now_ms=0) == []
    assert process.due_ms() is None
    process.suspend(first, resume_ms=50)
    process.check()
    assert process.due_ms() == 50
    assert process.take(2, now_ms=49) == []
    assert [taken.queue_offset for taken in process.take(2, now_ms=50)] == [0], "a message that failed comes alone"
    process.finish(QueueOffset(0))
    assert [taken.queue_offset for taken in process.take(2, now_ms=50)] == [1]
    process.finish(QueueOffset(1))
    assert [taken.queue_offset for taken in process.take(2, now_ms=50)] == [2, 3]
    process.check()


def test_a_dropped_ordered_queue_keeps_only_what_runs() -> None:
    """OC-13."""
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=True)
    process.put([message(offset) for offset in range(4)], 4, now_ms=0)
    process.take(1, now_ms=0)
    process.drop()
    assert process.busy
    process.finish(QueueOffset(0))
    assert not process.busy
    assert process.committable == 1


def test_an_overdue_message_leaves_whatever_its_listener_still_does() -> None:
    """CC-12."""
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    process.put([message(offset) for offset in range(3)], 3, now_ms=0)
    process.take(1, now_ms=0)
    process.take(1, now_ms=5)
    assert process.overdue(now_ms=100, timeout_ms=100, count=9) == []
    assert [late.queue_offset for late in process.overdue(now_ms=101, timeout_ms=100, count=9)] == [0]
    assert len(process.overdue(now_ms=1_000, timeout_ms=100, count=1)) == 1
    process.expire(QueueOffset(0))
    process.check()
    assert process.committable == 1
    process.fail(QueueOffset(0), retry_ms=7)
    process.finish(QueueOffset(1))
    process.check()
    assert process.committable == 2


def test_a_message_that_was_delivered_before_shares_its_chunk_with_no_other() -> None:
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)
    again = [replace(message(offset), delivery_attempt=2) for offset in (1, 2)]
    process.put([message(0), *again, message(3), message(4)], 5, now_ms=0)
    chunks = [[taken.queue_offset for taken in process.take(9, now_ms=0)] for _ in range(4)]
    assert chunks == [[0], [1], [2], [3, 4]]
