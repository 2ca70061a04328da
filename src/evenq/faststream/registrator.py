"""The decorators `subscriber` and `publisher`, which brokers and routers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from evenq.client.options import PushOptions
from evenq.faststream.commands import PublishFields
from evenq.faststream.configs import (
    EvenqBrokerConfig,
    EvenqPublisherConfig,
    EvenqPublisherSpecificationConfig,
    EvenqSubscriberConfig,
    EvenqSubscriberSpecificationConfig,
    Reading,
)
from evenq.faststream.deliveries import EvenqDelivery
from evenq.faststream.publishers import EvenqPublisher
from evenq.faststream.subscribers import EvenqSubscriber
from evenq.model import FilterExpression, MessageModel, StartFrom, group_problem, topic_problem

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


WORKERS_MAX = 1_000
RECORDS_MAX = 1_024


class EvenqRegistrator(Registrator[EvenqDelivery, EvenqBrokerConfig]):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]  # the base takes a subscriber that is already made
        self,
        *topics: str,
        group: str = "",
        tag: str = "*",
        sql: str = "",
        ordered: bool | None = None,
        batch: bool = False,
        max_records: int = 64,
        max_workers: int = 1,
        model: MessageModel | str = MessageModel.CLUSTERING,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        strategy: str = "AVG",
        options: PushOptions | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> EvenqSubscriber:
        """Returns a subscriber, which is a decorator of handlers.

        `group`: the consumer group; empty: that of the broker. `tag`: a tag, several as in `paid || refunded`, or `*`.
        `sql` filters by properties instead, as in `amount > 10`. `max_workers` 1 .. 1,000: handler calls at a time;
        with more than one, messages of a queue overtake each other unless `ordered` (None: for FIFO topics).

        `batch`: a call handles a list of up to `max_records` messages (1 .. 1,024) of one queue.

        `model`, `start_from`, `start_timestamp_ms`, `strategy` and `options` are as in `evenq.aio.PushConsumer`;
        `consume_batch` of the options is replaced. Raises SetupError for a wrong argument.
        """
        reading = Reading(
            topics=_topics(topics),
            group=_group(group),
            filter=_filter(tag, sql),
            ordered=ordered,
            model=_model(model),
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            strategy=strategy,
            batch=batch,
            max_records=_within("max_records", max_records, RECORDS_MAX),
            max_workers=_within("max_workers", max_workers, WORKERS_MAX),
            options=options,
        )
        calls = CallsCollection[EvenqDelivery]()
        config = EvenqSubscriberConfig(
            reading=reading,
            no_reply=no_reply,
            _ack_policy=ack_policy,
            _outer_config=self.config,  # type: ignore[arg-type]  # a composition of such configs, as FastStream does
        )
        specification = EvenqSubscriberSpecification(
            _outer_config=self.config,
            specification_config=EvenqSubscriberSpecificationConfig(
                reading=reading, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls=calls,
        )
        subscriber = EvenqSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(parser_=parser, decoder_=decoder, codec_=codec, dependencies_=dependencies)

    def publisher(  # type: ignore[override]  # as above
        self,
        topic: str,
        *,
        tag: str | None = None,
        message_group: str | None = None,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> EvenqPublisher:
        """Returns a publisher: an object with `publish`, and a decorator that sends the result of a handler.

        `tag`, `message_group`, `headers` and `reply_to` are defaults of its messages; a handler returns an
        `EvenqResponse` to set them, and a key or a delay. `batch`: each item of a returned list is a message.
        """
        config = EvenqPublisherConfig(
            topic=_topics((topic,))[0],
            headers=headers or {},
            reply_to=reply_to,
            fields=PublishFields(tag=tag, message_group=message_group),
            batch=batch,
            _outer_config=self.config,  # type: ignore[arg-type]  # as above
        )
        specification = EvenqPublisherSpecification(
            _outer_config=self.config,
            specification_config=EvenqPublisherSpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        publisher = EvenqPublisher(config, specification)
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: EvenqRegistrator,  # type: ignore[override]  # only routers of this broker
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Adds the subscribers and publishers of a router. `prefix` is put before their topics."""
        if not isinstance(router, EvenqRegistrator):
            raise SetupError(f"the router is a {type(router).__name__}; include an evenq.faststream.EvenqRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _topics(topics: Sequence[str]) -> tuple[str, ...]:
    if not topics:
        raise SetupError("the subscriber has no topic; give one or more, as in subscriber('orders', group='billing')")
    for topic in topics:
        problem = topic_problem(topic) if isinstance(topic, str) else "it is not a text"
        if problem:
            raise SetupError(f"topic {topic!r:.200}: {problem}")
    return tuple(topics)


def _group(group: str) -> str:
    if group and (problem := group_problem(group)):
        raise SetupError(f"group {group!r:.200}: {problem}")
    return group


def _filter(tag: str, sql: str) -> FilterExpression:
    if not sql:
        return FilterExpression(tag)
    if tag != "*":
        raise SetupError(f"the subscriber has tag={tag!r} and sql={sql!r}; give one of them (in SQL the tag is `TAGS`)")
    return FilterExpression.sql(sql)


def _model(model: MessageModel | str) -> MessageModel:
    try:
        return MessageModel(model)
    except ValueError:
        names = " or ".join(one.value for one in MessageModel)
        raise SetupError(f"model is {model!r}, it must be {names}") from None


def _within(name: str, number: int, most: int) -> int:
    if not isinstance(number, int) or not 1 <= number <= most:
        raise SetupError(f"{name} is {number!r}, the range is 1 to {most:,}")
    return number


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
