"""The arguments of `send`, `send_async`, `send_oneway` and `request`: a `Message`, or its topic, body and fields.

Both producers pass what they do not recognise as a `Message` to `message_of`. Both forms make the same checks, because
the second one creates a `Message`, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from datetime import datetime, timedelta
from typing import Any, TypedDict

from evenq.client.codecs.codec import Codec
from evenq.errors import BadRequest, Unsupported
from evenq.model import Message


class MessageFields(TypedDict, total=False):
    """Fields of a `Message` beside its topic and body, with the same meaning."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    message_group: str | None
    delivery_ms: int | datetime | None
    delay: timedelta | int | None
    delay_level: int
    priority: int | None
    lite_topic: str | None
    message_id: str


_NAMES = tuple(item.name for item in dataclass_fields(Message))


def message_of(first: object, body: bytes | None, given: Mapping[str, Any], encoder: Codec[Any] | None) -> Message:
    """Returns the message of a call. `first`: a message or a topic; None: the topic is in `given`. `given`: other
    keyword arguments, with `value` if the encoder makes the body.

    Raises BadRequest, Unsupported for a value without an encoder, and what `Message` and the encoder raise.
    """
    if isinstance(first, Message):
        own = ["body"] if body is not None else [name for name in given if name not in {"message", "topic"}]
        if own or given:
            raise BadRequest(
                f"the call has a message and {', '.join(own or given)}, too; give all fields to evenq.Message(...), or "
                "the topic instead of the message"
            )
        return first
    values = dict(given)
    topic = values.pop("topic", None) if first is None else first
    if not isinstance(topic, str):
        raise BadRequest(
            f"the first argument is {topic!r:.80} ({type(topic).__name__}); give evenq.Message(...), or a topic and a "
            "body, as in send('orders', b'...')"
        )
    for name in values:
        if name != "value" and name not in _NAMES:
            raise BadRequest(f"a message has no field {name!r:.80}; its fields are {', '.join(_NAMES)}")
    if "value" in values:
        body = _encoded(topic, values.pop("value"), body, encoder)
    if body is None:
        raise BadRequest(f"the message for {topic!r:.80} has no body; give it, as in send({topic!r:.80}, b'...')")
    return Message(topic=topic, body=body, **values)


def _encoded(topic: str, value: object, body: bytes | None, encoder: Codec[Any] | None) -> bytes:
    if body is not None:
        raise BadRequest("the call has a body and a value; give one of them: the encoder makes the body of a value")
    if encoder is None:
        raise Unsupported(
            "this producer has no encoder for a value; create it with one, as in Producer(encoder=evenq.JsonCodec()), "
            "or give the body as bytes"
        )
    return encoder.encode(value, topic)
