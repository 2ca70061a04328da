"""`TestEvenqBroker`: handlers, publishers and requests of a broker without servers.

    async with TestEvenqBroker(broker) as test:
        await test.publish({"id": 7}, "orders", tag="paid")
        bill.mock.assert_called_once_with({"id": 7})

A message is encoded and decoded as on a real cluster, and has its id, tag, keys and properties. It goes to each group
that reads its topic and tag, immediately: delays, order, retries and redelivery are the cluster's and not simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from typing import Any, cast

from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.message import gen_cor_id

from evenq.client.core.sending.requests import stamped
from evenq.client.loops.sending.outgoing import SendResult
from evenq.errors import Unsupported
from evenq.faststream.broker import EvenqBroker
from evenq.faststream.commands import EvenqPublishCommand
from evenq.faststream.deliveries import EvenqDelivery
from evenq.faststream.producers import EvenqProducer, ReplyTimeout
from evenq.faststream.publishers import EvenqPublisher
from evenq.faststream.subscribers import EvenqSubscriber
from evenq.model import FilterType, Message, MessageModel, MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import SystemClock
from evenq.runtime.extras import missing

REPLY_TOPIC = "test-replies"
BROKER_NAME = "test"


class TestEvenqBroker(TestBroker[EvenqBroker, Any], broker=EvenqBroker):
    """Replaces the connection of brokers in a `with` block. `with_real=True` uses the real cluster, with mocks."""

    @contextmanager
    def _patch_producer(self, broker: EvenqBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: EvenqBroker, *args: Any, **kwargs: Any) -> None:
        pass

    def create_publisher_fake_subscriber(
        self, broker: EvenqBroker, publisher: EvenqPublisher
    ) -> tuple[EvenqSubscriber, bool]:
        """Returns a subscriber of the publisher's topic, and whether the application has it."""
        for subscriber in _subscribers(self.brokers):
            if publisher.topic in subscriber.topics and not subscriber.reading.batch:
                return subscriber, True
        made = broker.subscriber(publisher.topic, group=f"test-{next(_NUMBERS)}", persistent=False, batch=False)
        return made, False


_NUMBERS = count(1)


class MemoryProducer(EvenqProducer):
    """Calls the handlers of the brokers instead of sending."""

    def __init__(self, broker: EvenqBroker, brokers: Sequence[EvenqBroker]) -> None:
        config = broker.config
        super().__init__(parser=config.broker_parser, decoder=config.broker_decoder)
        self.serializer = config.fd_config._serializer  # noqa: SLF001 - as in every test broker of FastStream
        self.codec = config.broker_codec or self.codec
        self._brokers = brokers
        self._offsets = count()
        self._clock = SystemClock()

    async def publish(self, cmd: EvenqPublishCommand) -> SendResult:
        received = self._received(await self.encoded(cmd))
        for subscriber in self._readers(received):
            await subscriber.process_message(_delivery(subscriber, [received]))
        return _result(received)

    async def publish_batch(self, cmd: EvenqPublishCommand) -> list[SendResult]:
        messages = [self._received(message) for message in await self.encoded_batch(cmd)]
        for subscriber in {one: None for message in messages for one in self._readers(message)}:
            chosen = [message for message in messages if _reads(subscriber, message)]
            size = subscriber.reading.max_records if subscriber.reading.batch else 1
            for start in range(0, len(chosen), size):
                await subscriber.process_message(_delivery(subscriber, chosen[start : start + size]))
        return [_result(message) for message in messages]

    async def request(self, cmd: EvenqPublishCommand) -> EvenqDelivery:
        message = stamped(await self.encoded(cmd), topic=REPLY_TOPIC, tag="test", correlation=gen_cor_id())
        received = self._received(message)
        for subscriber in self._readers(received):
            try:
                async with asyncio.timeout(cmd.timeout_s):
                    result = await subscriber.process_message(_delivery(subscriber, [received]))
            except TimeoutError:
                raise ReplyTimeout(f"no reply within {cmd.timeout_s:g} s") from None
            answer = EvenqPublishCommand.from_cmd(result.as_publish_command())
            answer.request = received
            reply = self._received(await self.encoded(answer))
            return EvenqDelivery([reply], group="")
        raise SubscriberNotFound(f"no subscriber of the test brokers reads topic {cmd.destination!r}")

    def _readers(self, message: ReceivedMessage) -> list[EvenqSubscriber]:
        """Returns a subscriber of each group, all of a broadcasting one."""
        readers: list[EvenqSubscriber] = []
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            if not _reads(subscriber, message):
                continue
            if subscriber.reading.model is not MessageModel.BROADCASTING:
                if subscriber.group in groups:
                    continue
                groups.add(subscriber.group)
            readers.append(subscriber)
        return readers

    def _received(self, message: Message) -> ReceivedMessage:
        now_ms = self._clock.now_ms()
        return ReceivedMessage(
            topic=message.topic,
            body=message.body,
            message_id=message.message_id or gen_cor_id(),
            tag=message.tag,
            keys=tuple(message.keys),
            properties=dict(message.properties),
            message_group=message.message_group,
            queue=MessageQueue(message.topic, BROKER_NAME, 0),
            queue_offset=QueueOffset(next(self._offsets)),
            born_ms=now_ms,
            store_ms=now_ms,
            priority=message.priority,
            lite_topic=message.lite_topic,
        )


def _subscribers(brokers: Sequence[EvenqBroker]) -> list[EvenqSubscriber]:
    found = [cast("EvenqSubscriber", subscriber) for broker in brokers for subscriber in broker.subscribers]
    return sorted(found, key=attrgetter("number"))


def _reads(subscriber: EvenqSubscriber, message: ReceivedMessage) -> bool:
    if message.topic not in subscriber.topics:
        return False
    chosen = subscriber.reading.filter
    if chosen.type is FilterType.SQL:
        return _passes(chosen.expression, message)
    return chosen.tags is None or message.tag in chosen.tags


def _passes(expression: str, message: ReceivedMessage) -> bool:
    """Evaluates a SQL filter as a broker does. Raises IllegalFilterExpression, Unsupported without the parser."""
    try:
        from evenq.filters import sql_filter
    except ModuleNotFoundError as error:
        raise Unsupported(missing("a SQL filter in TestEvenqBroker", error.name or "lark")) from error
    tag = {} if message.tag is None else {"TAGS": message.tag}
    return sql_filter(expression).evaluate({**message.properties, **tag}) is True


def _delivery(subscriber: EvenqSubscriber, messages: list[ReceivedMessage]) -> EvenqDelivery:
    return EvenqDelivery(messages, group=subscriber.group, ordered=bool(subscriber.reading.ordered))


def _result(message: ReceivedMessage) -> SendResult:
    return SendResult(message_id=message.message_id, queue=message.queue, offset=message.queue_offset)
