"""The mirror of progress."""

from __future__ import annotations

import threading

from pyspark_evenq.member.committer import Committer
from pyspark_evenq.plan.offsets import Positions

from evenq.errors import ConnectionFailed
from evenq.model.queue import MessageQueue

QUEUE, OTHER = (MessageQueue("flights", "broker-a", number) for number in (0, 1))
LONG = 20_000


class Broker:
    """Takes progress, or fails as often as set up."""

    def __init__(self, *, failures: int = 0, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or ConnectionFailed("no server there")
        self.sent: list[dict[MessageQueue, int]] = []
        self.arrived = threading.Event()

    def __call__(self, positions: Positions) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        self.sent.append(dict(positions))
        self.arrived.set()


def test_progress_is_sent_without_being_asked_for() -> None:
    broker = Broker()
    committer = Committer(broker, interval_ms=10)
    committer.offer({QUEUE: 5})
    assert broker.arrived.wait(60)
    assert broker.sent == [{QUEUE: 5}]
    committer.close(timeout_ms=LONG)


def test_only_the_newest_offset_of_a_queue_is_sent_and_never_an_older_or_equal_one() -> None:
    broker = Broker()
    committer = Committer(broker, interval_ms=3_600_000)
    committer.offer({QUEUE: 1})
    assert broker.arrived.wait(60)  # the first goes at once, the next within the interval
    for offset in (5, 9, 7):
        committer.offer({QUEUE: offset, OTHER: 2})
    assert committer.flush(timeout_ms=LONG)
    committer.offer({QUEUE: 9})
    assert committer.flush(timeout_ms=LONG)
    assert broker.sent == [{QUEUE: 1}, {QUEUE: 9, OTHER: 2}]
    committer.close(timeout_ms=LONG)


def test_a_failure_is_counted_and_tried_again_and_never_raised() -> None:
    for error in (ConnectionFailed("away"), ValueError("a bug of ours")):
        broker = Broker(failures=2, error=error)
        committer = Committer(broker, interval_ms=1)
        committer.offer({QUEUE: 5})
        assert committer.flush(timeout_ms=LONG)
        assert committer.failures == 2
        assert broker.sent == [{QUEUE: 5}]
        committer.close(timeout_ms=LONG)


def test_a_flush_ends_in_time_when_the_broker_stays_away() -> None:
    committer = Committer(Broker(failures=1 << 30), interval_ms=1)
    committer.offer({QUEUE: 5})
    assert not committer.flush(timeout_ms=50)
    assert not committer.close(timeout_ms=1)


def test_without_progress_there_is_no_thread() -> None:
    before = threading.active_count()
    committer = Committer(Broker(), interval_ms=1)
    committer.offer({})
    assert committer.close(timeout_ms=LONG)
    assert threading.active_count() == before


def test_what_was_offered_of_a_queue_that_is_forgotten_is_not_sent_again() -> None:
    """Its topic was made anew while the old progress was on its way."""
    failing, go = threading.Event(), threading.Event()
    sent: list[dict[MessageQueue, int]] = []

    def send(positions: Positions) -> None:
        if not failing.is_set():
            failing.set()
            assert go.wait(60)
            raise ConnectionFailed("no server there")
        sent.append(dict(positions))

    committer = Committer(send, interval_ms=1)
    committer.offer({QUEUE: 9, OTHER: 2})
    assert failing.wait(60)
    committer.forget([QUEUE])
    go.set()
    assert committer.flush(timeout_ms=LONG)
    committer.offer({QUEUE: 4})
    assert committer.flush(timeout_ms=LONG)
    assert sent == [{OTHER: 2}, {QUEUE: 4}]
    committer.close(timeout_ms=LONG)
