"""Subscribers: members of a consumer group whose listener is FastStream's pipeline.

A subscriber is a push consumer of the asyncio SDK, so it takes part in rebalancing, keeps the order of FIFO topics and
retries as every other member. One call handles one message, or a batch of one queue; the outcome of its delivery is the
listener's result. With AckPolicy.ACK_FIRST it is a simple consumer instead: it acknowledges each message at the broker
before the handler is called, and calls no handler if that fails, so a message is handled once at most.

Without handlers, a subscriber is read with `get_one` and `async for`; that is a simple consumer, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError, StopConsume
from faststream.middlewares import AckPolicy

from evenq.aio import PushConsumer, SimpleConsumer
from evenq.client.core.reading.outcome import Retry
from evenq.client.options import PushOptions
from evenq.errors import Error, TopicNotFound
from evenq.faststream.configs import EvenqSubscriberConfig
from evenq.faststream.deliveries import EvenqDelivery, ReceivedDelivery
from evenq.faststream.messages import EvenqBatchMessage, EvenqMessage, decode, decode_batch, parse_batch, parse_message
from evenq.faststream.publishers import EvenqReplyPublisher
from evenq.model import FilterExpression, MessageModel, ReceivedMessage
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import SystemClock
from evenq.runtime.tasks import spawn, to_its_end

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

_NUMBERS = count()
DRAIN_MAX_MS = 60_000
INVISIBLE_MS = 30_000
WAIT_MS = 5_000
MISSING_MS = 200
"""Pause before a missing topic is looked for again."""


class EvenqSubscriber(SubscriberUsecase[EvenqDelivery]):
    """One member of a consumer group."""

    def __init__(
        self,
        config: EvenqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[EvenqDelivery],
    ) -> None:
        batch = config.reading.batch
        config.parser, config.decoder = (parse_batch, decode_batch) if batch else (parse_message, decode)
        super().__init__(config, specification, calls)
        self.reading = config.reading
        self.number = next(_NUMBERS)
        """Its place in the order of registration, which FastStream's own list of subscribers does not keep."""
        self._member: PushConsumer | None = None
        self._receiver: SimpleConsumer | None = None
        self._workers: list[asyncio.Task[Any]] = []
        self._ending: asyncio.Task[Any] | None = None

    @property
    def topics(self) -> list[str]:
        """The topics, with the prefixes of the routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.reading.topics]

    @property
    def group(self) -> str:
        """The consumer group: that of the subscriber, or of its broker."""
        return self.reading.group or cast("str", self._outer_config.group)  # type: ignore[attr-defined]  # our config

    @property
    def subscriptions(self) -> dict[str, FilterExpression]:
        """Topic to filter."""
        return dict.fromkeys(self.topics, self.reading.filter)

    async def start(self) -> None:
        """Joins the group, and returns before it has queues; see `balanced`."""
        if not self.group:
            raise SetupError(
                f"the subscriber of {', '.join(self.topics)} has no consumer group; give "
                "subscriber(..., group='billing'), or EvenqBroker(group='billing') for all subscribers"
            )
        acks_first = self.ack_policy is AckPolicy.ACK_FIRST
        if acks_first and (self.reading.ordered or self.reading.model is not MessageModel.CLUSTERING):
            raise SetupError(
                f"the subscriber of {', '.join(self.topics)} has AckPolicy.ACK_FIRST, which is neither for "
                "ordered=True nor for model='BROADCASTING'; give another policy, for example AckPolicy.ACK"
            )
        await super().start()
        self._post_start()
        if not self.calls:
            return
        if acks_first:
            receiver = await self._opened()
            name = f"evenq-ack-first-{self.group}"
            self._workers = [spawn(self._receive_forever(receiver), name=name) for _ in range(self.reading.max_workers)]
        else:
            self._member = PushConsumer(
                group=self.group,
                listener=self._listen,
                subscriptions=self.subscriptions,
                model=self.reading.model,
                strategy=self.reading.strategy,
                consume_threads=self.reading.max_workers,
                start_from=self.reading.start_from,
                start_timestamp_ms=self.reading.start_timestamp_ms,
                ordered=self.reading.ordered,
                on_error=self._report,
                options=self._options(),
                **self._outer_config.access.arguments(),  # type: ignore[attr-defined]  # our config
            )
            await self._member.start()

    async def stop(self) -> None:
        """Stops reading, waits up to the broker's `graceful_timeout` for running handlers, and leaves the group."""
        if self._member is not None:
            member, self._member = self._member, None
            await member.close()  # first: a message that arrives behind `running = False` would be lost to its queue
        await super().stop()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            await receiver.close()

    @property
    def balanced(self) -> bool:
        """True if this member knows its share of the queues and reads exactly that: the moment to report "ready"."""
        return self._member is not None and self._member.balanced

    async def get_one(self, *, timeout: float = 5.0) -> EvenqMessage | None:
        """Returns the next message, or None after `timeout` seconds. Settle it with `ack`, `nack` or `reject` within
        30 s; otherwise it is redelivered. Only for a subscriber without handlers. A topic that does not exist is waited
        for, as handlers do.
        """
        if self.calls:  # the error of all brokers of FastStream
            raise AssertionError(
                "a subscriber with handlers cannot be read with get_one or `async for`; add another subscriber"
            )
        receiver, clock = await self._opened(), SystemClock()
        until_ms = clock.monotonic_ms() + max(0, round(timeout * 1000))
        while True:
            left_ms = max(0, until_ms - clock.monotonic_ms())
            try:
                messages = await receiver.receive(1, invisible_ms=INVISIBLE_MS, wait_ms=min(left_ms, WAIT_MS))
            except TopicNotFound:
                messages = []
                await clock.sleep_ms(min(left_ms, MISSING_MS))
            if messages:
                return await self._parsed(messages[0], receiver)
            if not left_ms:
                return None

    async def __aiter__(self) -> AsyncIterator[EvenqMessage]:
        """Yields messages as `get_one`, until the subscriber is stopped."""
        while self.running:
            if (message := await self.get_one(timeout=WAIT_MS / 1000)) is not None:
                yield message

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Returns the fields of a log line."""
        topic = message.topic if isinstance(message, EvenqMessage) else ",".join(self.topics)
        if isinstance(message, EvenqBatchMessage):
            topic = message.raw_message[0].topic
        return {"topic": topic, "group": self.group, "message_id": getattr(message, "message_id", "")}

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto[Any]]:
        return (EvenqReplyPublisher(self._outer_config.producer, message),)

    def _options(self) -> PushOptions:
        given = self.reading.options
        batch = self.reading.max_records if self.reading.batch else 1
        if given is not None:
            return replace(given, consume_batch=batch)
        drain_s = self._outer_config.graceful_timeout or 0
        return PushOptions(consume_batch=batch, drain_ms=min(DRAIN_MAX_MS, round(drain_s * 1000)))

    async def _listen(self, messages: list[ReceivedMessage]) -> Retry | None:
        """The listener of the member."""
        delivery = EvenqDelivery(messages, group=self.group, ordered=bool(self.reading.ordered))
        await self._handle(delivery)
        return delivery.result()

    async def _receive_forever(self, receiver: SimpleConsumer) -> None:
        """Receives until the subscriber stops. An outage is logged once, and waited for longer each time."""
        clock, backoff, reported = SystemClock(), Backoff(random.Random()), ""  # noqa: S311 - it spreads the pauses
        while self.running:
            try:
                await self._receive_once(receiver)
                backoff.reset()
                reported = ""
            except Error as error:
                if str(error) != reported:
                    reported = str(error)
                    self._report(error)
                await clock.sleep_ms(backoff.next_ms())

    async def _receive_once(self, receiver: SimpleConsumer) -> None:
        count = self.reading.max_records if self.reading.batch else 1
        messages = await receiver.receive(count, invisible_ms=INVISIBLE_MS, wait_ms=WAIT_MS)
        if messages and self.running:
            delivery = ReceivedDelivery(messages, group=self.group, consumer=receiver)
            await delivery.ack()
            await self._handle(delivery)
        elif messages:  # the stop waits for other handlers
            await to_its_end(self._return(receiver, messages), name=f"evenq-ack-first-{self.group}-returns")

    async def _return(self, receiver: SimpleConsumer, messages: Sequence[ReceivedMessage]) -> None:
        """Lets other members have messages that no handler had, and counts no attempt."""
        for message in messages:
            await receiver.change_invisible(message, 0, suspend=True)

    async def _handle(self, delivery: EvenqDelivery) -> None:
        """Runs the pipeline, which settles the delivery. FastStream's own `consume` would stop the subscriber from
        within its handler, which the stop waits for.
        """
        try:
            await self.process_message(delivery)
        except StopConsume:
            self._end()
        except SystemExit:
            self._end()
            if app := self._outer_config.context.get("app"):
                app.exit()
        except Exception:  # noqa: BLE001, S110 - FastStream's CriticalLogMiddleware has logged it
            pass

    def _end(self) -> None:
        if self._ending is None or self._ending.done():
            self._ending = spawn(self.stop(), name=f"evenq-stop-{self.group}")

    def _report(self, error: Exception) -> None:
        """Logs an error that a retry cannot solve, such as a missing topic."""
        self._log(logging.ERROR, str(error), extra=self.get_log_context(None))

    async def _opened(self) -> SimpleConsumer:
        if self._receiver is None:
            self._receiver = SimpleConsumer(
                group=self.group,
                subscriptions=self.subscriptions,
                start_from=self.reading.start_from,
                start_timestamp_ms=self.reading.start_timestamp_ms,
                **self._outer_config.access.arguments(),  # type: ignore[attr-defined]  # our config
            )
            await self._receiver.start()
        return self._receiver

    async def _parsed(self, message: ReceivedMessage, receiver: SimpleConsumer) -> EvenqMessage:
        delivery = ReceivedDelivery([message], group=self.group, consumer=receiver)
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        parsed = await process_msg(
            msg=delivery,
            middlewares=(middleware(delivery, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return cast("EvenqMessage", parsed)
