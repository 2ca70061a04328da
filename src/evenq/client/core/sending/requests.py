"""Properties of requests, and replies made from them.

A reply is an ordinary message to the topic that the request names, so every SDK can answer. Topic, tag and correlation
id are read from three properties of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evenq.errors import BadRequest
from evenq.model import Message, ReceivedMessage

REPLY_TOPIC = "evenq-reply-topic"
REPLY_TAG = "evenq-reply-tag"
CORRELATION = "evenq-correlation-id"


def stamped(message: Message, *, topic: str, tag: str, correlation: str) -> Message:
    """Returns the message as a request."""
    reply_properties = {REPLY_TOPIC: topic, REPLY_TAG: tag, CORRELATION: correlation}
    return replace(message, properties={**message.properties, **reply_properties})


def expects_reply(message: ReceivedMessage) -> bool:
    """Returns whether the message was sent with `request`."""
    return {REPLY_TOPIC, REPLY_TAG, CORRELATION} <= message.properties.keys()


def reply_to(request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None) -> Message:
    """Returns the reply to a request, to be sent with any producer. Raises BadRequest if it is not a request."""
    request_properties = request.properties
    if not expects_reply(request):
        raise BadRequest(f"message {request.message_id} does not expect a reply; it was not sent with `request`")
    return Message(
        topic=request_properties[REPLY_TOPIC],
        body=body,
        tag=request_properties[REPLY_TAG],
        properties={**(properties or {}), CORRELATION: request_properties[CORRELATION]},
    )
