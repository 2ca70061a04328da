"""Messages as a consumer gets them, for tests that look at some of the fields."""

from __future__ import annotations

from typing import Any

from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


def received_message(offset: int = 0, *, queue: MessageQueue | None = None, **fields: Any) -> ReceivedMessage:
    """Of queue 0 of topic `t` at broker `b`, with the id `m<offset>` and the body `x`, unless `fields` differ."""
    values: dict[str, Any] = {
        "topic": "t", "body": b"x", "message_id": f"m{offset}", "tag": None, "keys": (), "properties": {},
        "message_group": None, "queue": queue or MessageQueue("t", "b", 0), "queue_offset": QueueOffset(offset),
        "born_ms": 0, "store_ms": 0,
    }  # fmt: skip
    return ReceivedMessage(**{**values, **fields})
