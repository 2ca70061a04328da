"""Decoded parts of stored messages: user properties for filters, the message group for ordered groups.

A stored message is the wire message in two parts (`core.state.frames`): `head`, a v2 `Message` without its system
properties, and `system`, these. Protobuf decodes a small head in a microsecond. Of a large one it gets only the part
before the body (`core.delivery.properties`), so that no body is copied. Calls parse filters with `message_filter`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.delivery import filters
from evenq_broker.core.delivery.filters import MessageFilter
from evenq_broker.core.delivery.properties import without_body

_SMALL = 8 << 10
"""Bytes of a head that are decoded unchanged; copying them costs less than looking for the body."""


def user_properties(head: bytes) -> MutableMapping[str, str]:
    """Returns all of them, decoded for the caller alone."""
    return definition_pb2.Message.FromString(head if len(head) <= _SMALL else without_body(head)).user_properties


def message_group_of(system: bytes) -> str:
    """Returns the message group in stored system properties; "" if there is none."""
    return definition_pb2.SystemProperties.FromString(system).message_group


def message_filter(expression: str, *, is_sql: bool) -> MessageFilter:
    """Returns the filter of a request, from a cache. Raises IllegalFilterExpression (wire contract 5.4)."""
    return filters.message_filter(expression, is_sql=is_sql, user_properties=user_properties)
