"""Messages of kombu as messages of evenq. Pure.

The body of an evenq message is kombu's message as JSON, so nothing of it is lost and consumers of other makes can read
it. Task id and task name are also its key and tag, by which `evenq message find` and filters find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.utils.json import dumps, loads

from evenq.errors import MessageCorrupted
from evenq.model import Message, ReceivedMessage

LABEL_BYTES_MAX = 128
"""Longest tag or key that is made of a task's name or id."""
PRIORITY_MAX = 4_095
PROPERTIES = frozenset(
    {
        "app_id",
        "body_encoding",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_info",
        "delivery_mode",
        "delivery_tag",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    }
)
"""Properties of AMQP 0-9-1 and those that kombu adds to them."""


def encoded(payload: Mapping[str, Any]) -> bytes:
    """Returns kombu's message as JSON.

    RabbitMQ's transport drops properties that AMQP does not have. Here they are kept if JSON has their values, as in
    other virtual transports; others are dropped: `before_task_publish` handlers of Celery that send a message again
    pass their `signal` as one. Raises TypeError for a header or a property of AMQP that JSON cannot hold.
    """
    try:
        text: str = dumps(payload)
    except TypeError:
        properties = {name: value for name, value in payload["properties"].items() if name in PROPERTIES}
        text = dumps({**payload, "properties": properties})
    return text.encode()


def decoded(message: ReceivedMessage) -> dict[str, Any]:
    """Returns kombu's message. Raises MessageCorrupted for another body."""
    try:
        payload = loads(message.body.decode())
        if isinstance(payload, dict) and isinstance(payload.get("properties"), dict):
            payload["properties"].setdefault("delivery_info", {})
            return payload
    except ValueError:
        pass
    raise MessageCorrupted(
        f"message {message.message_id} of topic {message.topic} is not a message of kombu; only programs that use "
        "Celery or kombu may send to this topic"
    )


def task_message(topic: str, payload: Mapping[str, Any], *, now_ms: int, delays: bool, prioritized: bool) -> Message:
    """Returns the message for a queue's topic.

    `delays`: the topic accepts delivery times, so the ETA of a task is one. `prioritized`: the topic has type PRIORITY.
    """
    headers = payload.get("headers") or {}
    task, task_id = _label(headers.get("task")), _label(headers.get("id"))
    due_ms = eta_ms(headers) if delays and not prioritized else None
    return Message(
        topic=topic,
        body=encoded(payload),
        tag=task,
        keys=() if task_id is None else (task_id,),
        delivery_ms=due_ms if due_ms is not None and due_ms > now_ms else None,
        priority=priority_of(payload) if prioritized else None,
    )


def eta_ms(headers: Mapping[str, Any]) -> int | None:
    """Returns when a task is due, ms since the epoch; None: immediately, or at a time without a time zone."""
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return None if due.utcoffset() is None else int(due.timestamp() * 1_000)


def priority_of(payload: Mapping[str, Any]) -> int:
    """Returns the priority of a message, the highest first; 0 if it has none."""
    try:
        return min(max(int(payload["properties"]["priority"]), 0), PRIORITY_MAX)
    except (KeyError, TypeError, ValueError):
        return 0


def _label(text: object) -> str | None:
    """Returns the text if it can be a tag or a key."""
    if not isinstance(text, str) or not text.strip() or "|" in text or not text.isprintable():
        return None
    return text if len(text.encode()) <= LABEL_BYTES_MAX else None
