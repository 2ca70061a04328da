"""What a push consumer was given shortly before its broker died comes again soon; what it has had for long stays its own."""

from __future__ import annotations

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.unanswered import hold_by_time

KEY = (1, 2, 0)
DAY_MS, WINDOW_MS, SOON_MS = 86_400_000, 20_000, 60_000
END_MS = 1_000_000
"""Of the process that gave the messages."""


def test_what_was_given_shortly_before_the_end_is_held_by_time_and_may_still_be_acknowledged() -> None:
    progress = Progress()
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    given = [("old", END_MS - WINDOW_MS - 1), ("new", END_MS - WINDOW_MS), ("new", END_MS), ("", END_MS)]
    for offset, (client, at_ms) in enumerate(given):
        lasts_ms = DAY_MS if client else 30_000  # the last one is a simple consumer's
        progress.deliver(queue, [offset], offset + 1, deadline_ms=at_ms + lasts_ms, client_id=client)
    now_ms = END_MS + 5_000
    changed = hold_by_time(
        progress, given_from_ms=END_MS - WINDOW_MS, held_ms=DAY_MS, until_ms=now_ms + SOON_MS, now_ms=now_ms
    )
    assert list(changed) == [(queue, 1), (queue, 2)]
    progress.check()
    assert progress.clients() == {"old", "new"}
    assert progress.ack(queue, 1, 1, expires_ms=now_ms + SOON_MS, now_ms=now_ms).name == "DONE"
    assert [one.ready for one in progress.expire(END_MS + 30_000)] == [[3]], "the simple consumer's, at its own time"
    assert [sorted(one.ready) for one in progress.expire(now_ms + SOON_MS)] == [[2, 3]]
    assert queue.pending[0].client_id == "old"
    progress.check()


def test_it_comes_again_sooner_if_its_client_is_gone() -> None:
    progress = Progress()
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    progress.deliver(queue, [0], 1, deadline_ms=END_MS + DAY_MS, client_id="gone")
    now_ms = END_MS + 5_000
    assert list(
        hold_by_time(
            progress, given_from_ms=END_MS - WINDOW_MS, held_ms=DAY_MS, until_ms=now_ms + SOON_MS, now_ms=now_ms
        )
    )
    assert progress.release("gone", now_ms + 10) == [(queue, 0)]
    assert progress.expire(now_ms + 10) == [queue]
    progress.check()
