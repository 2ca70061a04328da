"""Spans and metrics of sends: one span for each message, one for each topic of a `send_batch`.

The context of the span is the creation context of its messages: the span is of the kind PRODUCER. Messages of a batch
share it, so their properties repeat, and a broker that compares neighbours reads them as fast as without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from opentelemetry import trace

from evenq.client.core.clients.observer import ClientIdentity
from evenq.model import Message, MessageQueue
from evenq.model.span_attributes import BATCH_COUNT, MESSAGE_ID, PARTITION
from evenq.otel.attributes import error_type, metric_attributes, partition_of, sent_attributes, span_attributes
from evenq.otel.instrumentation import Instrumentation, end_span, failed_attributes
from evenq.otel.propagation import carrier_of, carrying

__all__ = ["BatchSpan", "SendSpan"]

SEND = "send"


class SendSpan:
    """The send of one message. Only the first end counts."""

    __slots__ = ("_began_ns", "_client", "_ended", "_instrumentation", "_span", "message")

    def __init__(
        self, instrumentation: Instrumentation, client: ClientIdentity, message: Message, *, transaction: bool
    ) -> None:
        self._instrumentation = instrumentation
        self._client = client
        self._ended = False
        self._began_ns = instrumentation.clock.monotonic_ns()
        self._span = span = instrumentation.tracer.start_span(
            f"{SEND} {message.topic}",
            kind=trace.SpanKind.PRODUCER,
            # In one call: the SDK locks and checks in each, and samplers may need them.
            attributes={
                **span_attributes(client, SEND, SEND, message.topic),
                **sent_attributes(message, transaction=transaction),
            },
        )
        self.message = carrying(message, carrier_of(span))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        if error is not None:
            self.failed(error)

    def stored(self, message_id: str, queue: MessageQueue | None = None) -> None:
        if self._span.is_recording():
            attributes = {MESSAGE_ID: message_id}
            if queue is not None and queue.queue_id >= 0:
                attributes[PARTITION] = partition_of(queue)
            self._span.set_attributes(attributes)
        self._end()

    def failed(self, error: BaseException) -> None:
        self._end(error_type(error), str(error))

    def follow(self, future: Any) -> None:
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        if future.cancelled():
            self._end("CancelledError", "the caller cancelled the future; the message may be stored or not")
        elif (error := future.exception()) is not None:
            self.failed(error)
        else:
            result = future.result()
            self.stored(result.message_id, result.queue)

    def _end(self, error: str = "", text: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        instrumentation = self._instrumentation
        attributes = metric_attributes(self._client, SEND, SEND, self.message.topic)
        duration_ns = instrumentation.clock.monotonic_ns() - self._began_ns
        instrumentation.instruments.sent(1, duration_ns, failed_attributes(attributes, error))
        end_span(self._span, error=error, text=text)


class _TopicPart:
    """The messages of a batch for one topic."""

    __slots__ = ("began_ns", "carrier", "count", "span", "topic")

    def __init__(self, instrumentation: Instrumentation, client: ClientIdentity, topic: str) -> None:
        self.topic = topic
        self.count = 0
        self.began_ns = instrumentation.clock.monotonic_ns()
        self.span = instrumentation.tracer.start_span(
            f"{SEND} {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=span_attributes(client, SEND, SEND, topic),
        )
        self.carrier = carrier_of(self.span)


class BatchSpan:
    """A `send_batch`, whose messages may be read from a slow iterable. A span begins with the first message."""

    __slots__ = ("_client", "_instrumentation", "_parts")

    def __init__(self, instrumentation: Instrumentation, client: ClientIdentity) -> None:
        self._instrumentation = instrumentation
        self._client = client
        self._parts: dict[str, _TopicPart] = {}

    def each(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            part = self._parts.get(message.topic)
            if part is None:
                part = self._parts[message.topic] = _TopicPart(self._instrumentation, self._client, message.topic)
            part.count += 1
            yield carrying(message, part.carrier)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        name = "" if error is None else error_type(error)
        text = "" if error is None else str(error)
        for part in self._parts.values():
            attributes = metric_attributes(self._client, SEND, SEND, part.topic)
            duration_ns = self._instrumentation.clock.monotonic_ns() - part.began_ns
            self._instrumentation.instruments.sent(part.count, duration_ns, failed_attributes(attributes, name))
            part.span.set_attribute(BATCH_COUNT, part.count)
            end_span(part.span, error=name, text=text)
