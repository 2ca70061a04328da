"""The trace context of stored messages, with what a span says about them (`core.diagnosis.message_spans`).

The context is a W3C `traceparent`, in the user property of that name or else in the protocol's field (decision 134).
Nearly all messages have none, so two searches in their bytes come first: decoding each would cost ten times as much.
"""

from __future__ import annotations

import re

from evenq.model.span_attributes import BODY_SIZE, KEYS, MESSAGE_GROUP, TAG, TYPE
from evenq.store import StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.delivery.properties import without_body
from evenq_broker.core.diagnosis.message_spans import AttributeValue, TracedMessage
from evenq_broker.loops.wire.stored_messages import user_properties

TRACEPARENT = "traceparent"
_IN_PROPERTIES = b"\x0btraceparent\x12"  # length of the key, the key, field 2 of the map's entry
_IN_SYSTEM = b"\x92\x01"  # field 18 of SystemProperties, length-delimited
_CONTEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_BODY_TAG_BYTES = 1


def traced_message(stored: StoredMessage, topic: str) -> TracedMessage | None:
    """Returns the message of this topic if its context is sampled; otherwise None."""
    if _IN_PROPERTIES not in stored.head and _IN_SYSTEM not in stored.system:
        return None
    system = definition_pb2.SystemProperties.FromString(stored.system)
    text = user_properties(stored.head).get(TRACEPARENT) or system.trace_context
    parsed = _CONTEXT.fullmatch(text)
    if parsed is None or parsed[1] == "ff" or not int(parsed[4], 16) & _SAMPLED:
        return None
    trace_id, parent_id = int(parsed[2], 16), int(parsed[3], 16)
    if not trace_id or not parent_id:
        return None
    return TracedMessage(
        trace_id=trace_id,
        parent_id=parent_id,
        topic=topic,
        queue_id=stored.queue_id,
        message_id=system.message_id,
        store_ms=stored.store_ms,
        attributes=_attributes(stored.head, system),
    )


def _attributes(head: bytes, system: definition_pb2.SystemProperties) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {BODY_SIZE: _body_bytes(head)}
    if system.message_type != definition_pb2.MESSAGE_TYPE_UNSPECIFIED:
        attributes[TYPE] = definition_pb2.MessageType.Name(system.message_type).lower()
    if system.tag:
        attributes[TAG] = system.tag
    if system.keys:
        attributes[KEYS] = tuple(system.keys)
    if system.message_group:
        attributes[MESSAGE_GROUP] = system.message_group
    return attributes


def _body_bytes(head: bytes) -> int:
    """Returns the size of the body, the last field of a head, without decoding it."""
    at = len(without_body(head)) + _BODY_TAG_BYTES
    while at < len(head) and head[at] & 0x80:  # its length
        at += 1
    return max(0, len(head) - at - 1)
