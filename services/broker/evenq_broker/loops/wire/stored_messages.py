"""What is read of stored messages, decoded: user properties for filters, the message group for ordered groups.

A stored message is the wire message in two parts (`core.state.frames`): `head`, a v2 `Message` without its system
properties, and `system`, these. protobuf decodes a small head in a microsecond; of a large one only what is before the
body is handed to it (`core.delivery.properties`), so that no body is copied. `message_filter` is what the calls parse
filters with.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.delivery import filters
from evenq_broker.core.delivery.filters import MessageFilter
from evenq_broker.core.delivery.properties import without_body

__all__ = ["message_filter", "message_group_of", "user_properties"]

_SMALL = 8 << 10
"""Bytes of a head that are decoded as they are; copying this much costs less than looking for the body."""


def user_properties(head: bytes) -> MutableMapping[str, str]:
    """All of them, decoded for the caller alone."""
    return definition_pb2.Message.FromString(head if len(head) <= _SMALL else without_body(head)).user_properties


def message_group_of(system: bytes) -> str:
    """The message group in stored system properties; "" if there is none."""
    return definition_pb2.SystemProperties.FromString(system).message_group


def message_filter(expression: str, *, is_sql: bool) -> MessageFilter:
    """The filter of a request, from a cache. Raises IllegalFilterExpression (wire contract 5.4)."""
    return filters.message_filter(expression, is_sql=is_sql, user_properties=user_properties)
