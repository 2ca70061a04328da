"""Fences around deliveries that are given back as they were; `test_progress` has those whose ack is stored."""

from __future__ import annotations

import pytest
from evenq_broker.core.delivery.fence import always, is_fenced
from evenq_broker.core.delivery.progress import READY, Progress, SettleStatus

KEY = (1, 2, 0)


def one_delivered(client: str = "") -> Progress:
    """A group that was given one message of a queue, until 1,000 ms."""
    progress = Progress()
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    progress.deliver(queue, [0], 1, deadline_ms=1_000, client_id=client)
    return progress


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("polled", [False, True])
def test_a_message_is_after_the_fence_what_it_was_before(ready: bool, polled: bool) -> None:
    progress = one_delivered()
    queue = progress.queue(*KEY)
    assert queue is not None
    if ready:
        progress.expire(1_000)
    running = queue.running
    entry = progress.fence.begin(queue, 0, always)
    progress.check()
    assert is_fenced(entry)
    if polled:  # a poll meanwhile throws away what the heap of ready messages has of it
        assert progress.take_ready(queue, 1, deadline_ms=9_000, client_id="", max_attempts=9) == ([], [])
    assert progress.fence.end(queue, 0, entry, stored=False) == (READY if ready else 1_000)
    progress.check()
    assert queue.running == running
    if not ready:
        assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=500) is SettleStatus.DONE
    else:
        assert progress.take_ready(queue, 1, deadline_ms=9_000, client_id="", max_attempts=9) == ([0], [])
    progress.check()


def test_the_end_of_its_client_shortens_a_delivery_that_continues_and_breaks_no_fence() -> None:
    progress = one_delivered(client="c")
    queue = progress.queue(*KEY)
    assert queue is not None
    entry = progress.fence.begin(queue, 0, always)
    assert progress.release("c", 300) == []
    assert is_fenced(entry)
    assert progress.fence.end(queue, 0, entry, stored=False) == 300
    progress.check()
