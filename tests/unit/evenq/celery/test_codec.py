"""Messages of kombu as messages of evenq."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenq.celery.codec import decoded, encoded, eta_ms, priority_of, task_message
from evenq.errors import MessageCorrupted
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

NOW_MS = 1_800_000_000_000
SOON = "2027-01-15T08:00:10+00:00"
SOON_MS = NOW_MS + 10_000


def payload(priority: Any = 0, **headers: Any) -> dict[str, Any]:
    return {
        "body": "W10=",
        "headers": {"task": "shop.pay", "id": "12", **headers},
        "properties": {"priority": priority, "delivery_info": {"exchange": "", "routing_key": "celery"}},
    }


def received(body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t", body=body, message_id="m", tag=None, keys=(), properties={}, message_group=None,
        queue=MessageQueue("t", "broker-a", 0), queue_offset=QueueOffset(0), born_ms=0, store_ms=0,
    )  # fmt: skip


def test_a_message_comes_back_as_it_was() -> None:
    assert decoded(received(encoded(payload()))) == payload()


@pytest.mark.parametrize("body", [b"hello", b"[]", b"{}", b'{"properties": 3}', b"\xff"])
def test_a_body_of_another_program_is_refused(body: bytes) -> None:
    with pytest.raises(MessageCorrupted, match="is not a message of kombu"):
        decoded(received(body))


def test_task_and_id_are_tag_and_key() -> None:
    message = task_message("t", payload(), now_ms=NOW_MS, delays=True, prioritized=False)
    assert (message.tag, tuple(message.keys), message.delivery_ms, message.priority) == (
        "shop.pay",
        ("12",),
        None,
        None,
    )
    odd = task_message("t", payload(task="a|b", id=" "), now_ms=NOW_MS, delays=True, prioritized=False)
    assert (odd.tag, tuple(odd.keys)) == (None, ())


def test_an_eta_is_a_delivery_time_where_the_topic_takes_one() -> None:
    eta = payload(eta=SOON)
    assert task_message("t", eta, now_ms=NOW_MS, delays=True, prioritized=False).delivery_ms == SOON_MS
    assert task_message("t", eta, now_ms=NOW_MS, delays=False, prioritized=False).delivery_ms is None
    assert task_message("t", eta, now_ms=SOON_MS, delays=True, prioritized=False).delivery_ms is None
    ordered = task_message("t", payload(priority=7, eta=SOON), now_ms=NOW_MS, delays=True, prioritized=True)
    assert (ordered.delivery_ms, ordered.priority) == (None, 7)


@pytest.mark.parametrize("eta", [None, 3, "soon", "2027-01-15T08:00:10"])
def test_a_time_that_is_not_certain_is_left_to_the_worker(eta: object) -> None:
    assert eta_ms({"eta": eta}) is None


@pytest.mark.parametrize(("given", "found"), [(3, 3), ("9", 9), (-1, 0), (None, 0), ("high", 0), (10_000, 4_095)])
def test_priorities(given: object, found: int) -> None:
    assert priority_of(payload(priority=given)) == found
    assert priority_of({}) == 0


def test_a_property_that_is_not_of_amqp_is_dropped_if_json_cannot_hold_it() -> None:
    """A handler of `before_task_publish` that sends the task again passes all that it received, with the signal."""
    properties = {"priority": 3, "correlation_id": "c", "delivery_info": {"routing_key": "q"}}
    extended = {**properties, "own": 1}
    assert json.loads(encoded({"body": "b", "properties": extended}))["properties"] == extended
    extended["signal"] = object()
    assert json.loads(encoded({"body": "b", "properties": extended}))["properties"] == properties


def test_a_header_that_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(TypeError):
        encoded({"body": "b", "headers": {"h": object()}, "properties": {}})
