"""Settings of brokers, subscribers and publishers, in the form that FastStream composes for nested routers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from evenq.client.options import PushOptions
from evenq.faststream.commands import PublishFields
from evenq.model import FilterExpression, MessageModel, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientArguments:
    """Arguments of every client of a broker; see `evenq.aio.Producer`."""

    endpoint: str = ""
    credentials: Credentials | None = None
    tls: Tls | bool | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns them by name."""
        return {"endpoint": self.endpoint, "credentials": self.credentials, "tls": self.tls}


@dataclass(kw_only=True)
class EvenqBrokerConfig(BrokerConfig):
    """Settings of a broker, or of a router."""

    access: ClientArguments = field(default_factory=ClientArguments)
    group: str = ""
    """Consumer group of subscribers that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Topics and manner of a subscriber's reading; the fields are arguments of `EvenqBroker.subscriber`."""

    topics: Sequence[str]
    group: str
    filter: FilterExpression
    ordered: bool | None
    model: MessageModel
    start_from: StartFrom | str | None
    start_timestamp_ms: int | str
    strategy: str
    batch: bool
    max_records: int
    max_workers: int
    options: PushOptions | None


@dataclass(kw_only=True)
class EvenqSubscriberConfig(SubscriberUsecaseConfig):
    """Settings of a subscriber."""

    reading: Reading

    @property
    def ack_policy(self) -> AckPolicy:
        """That of the subscriber, or of the broker; NACK_ON_ERROR if none is set: a failed message is redelivered."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class EvenqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Facts of a subscriber for AsyncAPI."""

    reading: Reading


@dataclass(kw_only=True)
class EvenqPublisherConfig(PublisherUsecaseConfig):
    """Settings of a publisher."""

    topic: str
    headers: dict[str, str]
    reply_to: str
    fields: PublishFields
    batch: bool


@dataclass(kw_only=True)
class EvenqPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Facts of a publisher for AsyncAPI."""

    topic: str
