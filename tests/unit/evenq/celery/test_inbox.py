"""Deliveries between the loop thread and the consuming thread."""

from __future__ import annotations

import select
import threading

import pytest

from evenq.celery.inbox import Inbox, KombuDelivery
from evenq.errors import Forbidden


def delivery(queue: str = "q", tag: str = "1") -> KombuDelivery:
    return KombuDelivery(queue, {}, tag)


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


def test_the_descriptor_is_readable_while_something_is_there() -> None:
    inbox = Inbox()
    assert not readable(inbox)
    inbox.put(delivery(tag="1"))
    inbox.put(delivery(tag="2"))
    assert readable(inbox)
    assert (inbox.take() or delivery()).tag == "1"
    assert readable(inbox)
    assert (inbox.take() or delivery()).tag == "2"
    assert inbox.take() is None
    assert not readable(inbox)
    inbox.put(delivery())
    assert readable(inbox)
    inbox.close()


def test_a_waiting_thread_wakes() -> None:
    inbox = Inbox()
    assert not inbox.wait(0)
    thread = threading.Thread(target=inbox.put, args=(delivery(),))
    thread.start()
    assert inbox.wait(60)
    thread.join()
    inbox.close()


def test_a_failure_is_raised_once_and_before_deliveries() -> None:
    inbox = Inbox()
    inbox.put(delivery())
    inbox.fail(Forbidden("not allowed"))
    assert inbox.wait(0)
    with pytest.raises(Forbidden):
        inbox.take()
    assert inbox.take() == delivery()
    inbox.fail(Forbidden("not allowed"))
    assert readable(inbox)
    inbox.close()


def test_deliveries_of_a_queue_are_counted_and_dropped() -> None:
    inbox = Inbox()
    for queue in ("a", "b", "a"):
        inbox.put(delivery(queue))
    assert (inbox.count("a"), inbox.count("b"), inbox.count("c")) == (2, 1, 0)
    assert inbox.drop("a") == [delivery("a"), delivery("a")]
    assert inbox.count("a") == 0
    assert inbox.take() == delivery("b")
    assert inbox.count("b") == 0
    inbox.close()


def test_a_closed_inbox_takes_nothing() -> None:
    inbox = Inbox()
    inbox.put(delivery())
    inbox.close()
    inbox.close()
    inbox.put(delivery())
    inbox.fail(Forbidden("not allowed"))
    assert inbox.take() is None
