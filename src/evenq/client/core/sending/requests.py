"""Requests and replies: which properties a request carries, and how its reply is made from them.

A reply is an ordinary message to the topic that the request names, so every SDK can answer: topic, tag and correlation
id are read from three properties and given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evenq.errors import BadRequest
from evenq.model import Message, ReceivedMessage

__all__ = ["CORRELATION", "REPLY_TAG", "REPLY_TOPIC", "reply_to", "stamped"]

REPLY_TOPIC = "evenq-reply-topic"
REPLY_TAG = "evenq-reply-tag"
CORRELATION = "evenq-correlation-id"


def stamped(message: Message, *, topic: str, tag: str, correlation: str) -> Message:
    """The message as a request."""
    reply_properties = {REPLY_TOPIC: topic, REPLY_TAG: tag, CORRELATION: correlation}
    return replace(message, properties={**message.properties, **reply_properties})


def reply_to(request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None) -> Message:
    """The reply to a request: send it with any producer. Raises BadRequest for a message that asks for none."""
    request_properties = request.properties
    if not {REPLY_TOPIC, REPLY_TAG, CORRELATION} <= request_properties.keys():
        raise BadRequest(f"message {request.message_id} asks for no reply; it was not sent with `request`")
    return Message(
        topic=request_properties[REPLY_TOPIC],
        body=body,
        tag=request_properties[REPLY_TAG],
        properties={**(properties or {}), CORRELATION: request_properties[CORRELATION]},
    )
