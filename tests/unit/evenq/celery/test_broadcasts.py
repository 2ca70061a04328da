"""Bindings of queues that end with their process."""

from __future__ import annotations

import pytest

from evenq.celery.broadcasts import TAGS_MAX, Binding, TransientQueue
from evenq.celery.names import broadcast_tag


@pytest.mark.parametrize(
    ("binding", "exchange", "routing_key", "wanted"),
    [
        (Binding("celery.pidbox", "fanout", ""), "celery.pidbox", "anything", True),
        (Binding("celery.pidbox", "fanout", ""), "other", "anything", False),
        (Binding("reply", "direct", "me"), "reply", "me", True),
        (Binding("reply", "direct", "me"), "reply", "you", False),
        (Binding("celeryev", "topic", "worker.#"), "celeryev", "worker.heartbeat", True),
        (Binding("celeryev", "topic", "worker.#"), "celeryev", "task.sent", False),
        (Binding("celeryev", "topic", "*.heartbeat"), "celeryev", "worker.heartbeat", True),
        (Binding("celeryev", "topic", "#"), "celeryev", "task.sent", True),
    ],
)
def test_a_binding_chooses_messages(binding: Binding, exchange: str, routing_key: str, wanted: bool) -> None:
    assert binding.matches(exchange, routing_key) is wanted


def test_the_tag_of_a_binding_is_that_of_the_publisher() -> None:
    assert Binding("x", "fanout", "any").tag == broadcast_tag("x", None)
    assert Binding("x", "topic", "any").tag == broadcast_tag("x", None)
    assert Binding("x", "direct", "me").tag == broadcast_tag("x", "me")


def test_a_queue_is_bound_to_the_default_exchange_by_its_name() -> None:
    queue = TransientQueue("me", 0)
    assert queue.wants({"properties": {"delivery_info": {"exchange": "", "routing_key": "me"}}})
    assert queue.wants({"properties": {"delivery_info": {"exchange": None, "routing_key": "me"}}})
    assert not queue.wants({"properties": {"delivery_info": {"exchange": "", "routing_key": "you"}}})
    assert queue.filter().expression == broadcast_tag("", "me")


def test_a_queue_with_many_bindings_reads_everything() -> None:
    queue = TransientQueue("me", 0)
    for number in range(TAGS_MAX - 1):
        queue.bindings.add(Binding("x", "direct", str(number)))
    assert queue.filter().expression.count(" || ") == TAGS_MAX - 1
    queue.bindings.add(Binding("x", "direct", "one more"))
    assert queue.filter().expression == "*"
