"""The parts of an AsyncAPI document that subscribers and publishers contribute: a channel for each topic."""

from __future__ import annotations

from typing import Any

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from evenq.faststream.configs import EvenqPublisherSpecificationConfig, EvenqSubscriberSpecificationConfig


class EvenqSubscriberSpecification(SubscriberSpecification[Any, EvenqSubscriberSpecificationConfig]):
    """Channels and operations of a subscriber. AsyncAPI has no binding for RocketMQ, so they carry none."""

    @property
    def topics(self) -> list[str]:
        """The topics, with the prefixes of the routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.reading.topics]

    @property
    def channel_labels(self) -> list[str]:
        return self.topics

    @property
    def described(self) -> str | None:
        """The subscriber's description, then its group and filter, if it has them."""
        reading = self.config.reading
        group = reading.group or self._outer_config.group
        facts = [f"consumer group `{group}`"] if group else []
        if reading.filter.tags is not None:
            facts.append(f"filter `{reading.filter.expression}`")
        text = ", ".join(facts)
        parts = (self.description, f"{text[0].upper()}{text[1:]}." if text else None)
        return "\n\n".join(part for part in parts if part) or None

    def get_schema(self) -> dict[str, SubscriberSpec]:
        topics, payloads, channels = self.topics, self.get_payloads(), {}
        for topic in topics:
            name = self._channel_key(topic, split=len(topics) > 1)
            message = Message(title=f"{name}:Message", payload=resolve_payloads(payloads))
            channels[name] = SubscriberSpec(
                address=topic,
                description=self.described,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return channels


class EvenqPublisherSpecification(PublisherSpecification[Any, EvenqPublisherSpecificationConfig]):
    """Channel and operation of a publisher."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        }
