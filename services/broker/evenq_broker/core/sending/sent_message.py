"""A message as a producer sent it, as far as the core needs it: fields to read and to change, and its bytes.

A decoded `Message` of `apache.rocketmq.v2` fits; `rpc` decodes it and passes it in. So the core checks and stores
messages without importing protobuf, and no field is copied on the way. The names are the protocol's.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Literal, Protocol

from evenq.wire.convert import SecondsAndNanos, TimeField


class SentTime(SecondsAndNanos, TimeField, Protocol):
    """A time that is read and filled in place."""

    seconds: int
    nanos: int


class TopicName(Protocol):
    """The topic that a message names."""

    name: str
    resource_namespace: str


class BodyDigest(Protocol):
    """Digest of the body, as the producer made it."""

    @property
    def type(self) -> int: ...
    @property
    def checksum(self) -> str: ...


OptionalField = Literal[
    "tag",
    "body_digest",
    "born_timestamp",
    "store_timestamp",
    "delivery_timestamp",
    "receipt_handle",
    "invisible_duration",
    "delivery_attempt",
    "message_group",
    "orphaned_transaction_recovery_duration",
    "dead_letter_queue",
    "lite_topic",
    "priority",
]
DeliveryField = Literal[
    "store_timestamp", "invisible_duration", "dead_letter_queue", "receipt_handle", "delivery_attempt"
]


class SentProperties(Protocol):
    """System properties: the fields that the protocol defines."""

    tag: str
    message_id: str
    queue_id: int
    message_group: str
    lite_topic: str
    priority: int

    @property
    def keys(self) -> MutableSequence[str]: ...
    @property
    def body_digest(self) -> BodyDigest: ...
    @property
    def body_encoding(self) -> int: ...
    @property
    def message_type(self) -> int: ...
    @property
    def born_timestamp(self) -> SentTime: ...
    @property
    def delivery_timestamp(self) -> SentTime: ...
    @property
    def orphaned_transaction_recovery_duration(self) -> SecondsAndNanos: ...

    def HasField(self, field_name: OptionalField, /) -> bool: ...  # noqa: N802  protobuf's name
    def ClearField(self, field_name: DeliveryField, /) -> None: ...  # noqa: N802  protobuf's name
    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name


class SentMessage(Protocol):
    body: bytes

    @property
    def topic(self) -> TopicName: ...
    @property
    def user_properties(self) -> MutableMapping[str, str]: ...
    @property
    def system_properties(self) -> SentProperties: ...

    def ClearField(self, field_name: Literal["system_properties"], /) -> None: ...  # noqa: N802  protobuf's name
    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name


EmptyMessage = Callable[[], SentMessage]  # makes a message without any field
