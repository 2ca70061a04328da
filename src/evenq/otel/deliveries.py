"""Spans and metrics of deliveries: a receive or poll, a listener call, and the settlement of messages.

Each span has a link to the send of each of its messages. A listener call with messages of one send is also a child of
that send, so that producer and consumer are one trace; the current context of the SDK's tasks is never its parent,
because they may have been started inside any span of the user. A call with messages of several sends is a trace of its
own. A span of a receive begins when the call began, and exists only if there are messages or an error: a consumer that
waits for messages would otherwise write a span for each empty answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context

from evenq.client.core.clients.observer import ClientIdentity
from evenq.client.core.reading.outcome import failures
from evenq.model import ReceivedMessage
from evenq.model.span_attributes import BATCH_COUNT
from evenq.otel.attributes import (
    Attributes,
    error_type,
    metric_attributes,
    received_attributes,
    span_attributes,
    topic_of,
)
from evenq.otel.instrumentation import Instrumentation, end_span, failed_attributes
from evenq.otel.propagation import common_context, extracted, links_of

__all__ = ["ProcessSpan", "ReceiveSpan", "SettleSpan"]

PROCESS, RECEIVE, SETTLE = "process", "receive", "settle"
AGAIN = "retry"
"""Type of the error of a listener call that did not raise, and whose messages are delivered again."""


class ReceiveSpan:
    """A receive or poll that the user called."""

    __slots__ = ("_began_ns", "_client", "_instrumentation", "_messages", "_started_ns")

    def __init__(self, instrumentation: Instrumentation, client: ClientIdentity) -> None:
        self._instrumentation = instrumentation
        self._client = client
        self._messages: list[ReceivedMessage] = []

    def received(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        self._messages = messages
        return messages

    def __enter__(self) -> Self:
        self._started_ns = self._instrumentation.clock.now_ns()
        self._began_ns = self._instrumentation.clock.monotonic_ns()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        instrumentation, client, messages = self._instrumentation, self._client, self._messages
        topic, name = topic_of(messages), "" if error is None else error_type(error)
        duration_ns = instrumentation.clock.monotonic_ns() - self._began_ns
        attributes = metric_attributes(client, RECEIVE, RECEIVE, topic)
        instrumentation.instruments.received(len(messages), duration_ns, failed_attributes(attributes, name))
        if not messages and error is None:
            return
        span = instrumentation.tracer.start_span(
            _name(RECEIVE, topic),
            kind=trace.SpanKind.CLIENT,
            attributes=span_attributes(client, RECEIVE, RECEIVE, topic),
            links=links_of(messages, [extracted(message) for message in messages]),
            start_time=self._started_ns,
        )
        span.set_attribute(BATCH_COUNT, len(messages))
        end_span(span, error=name, text=str(error or ""), end_ns=self._started_ns + duration_ns)


class ProcessSpan:
    """A listener call, or a block of `evenq.otel.processing`."""

    __slots__ = (
        "_again",
        "_began_ns",
        "_client",
        "_instrumentation",
        "_messages",
        "_pushed",
        "_span",
        "_token",
        "_topic",
    )

    def __init__(
        self,
        instrumentation: Instrumentation,
        client: ClientIdentity,
        messages: Sequence[ReceivedMessage],
        *,
        pushed: bool,
    ) -> None:
        self._instrumentation = instrumentation
        self._client = client
        self._messages = messages
        self._pushed = pushed
        self._topic = topic_of(messages)
        self._again = 0

    def returned(self, result: object) -> object:
        self._again = len(failures(result, self._messages)[0])
        return result

    def __enter__(self) -> Self:
        sent_in = [extracted(message) for message in self._messages]
        parent = common_context(sent_in) or Context()
        self._began_ns = self._instrumentation.clock.monotonic_ns()
        self._span = span = self._instrumentation.tracer.start_span(
            _name(PROCESS, self._topic),
            parent,
            trace.SpanKind.CONSUMER,
            span_attributes(self._client, PROCESS, PROCESS, self._topic),
            links_of(self._messages, sent_in),
        )
        if span.is_recording():
            span.set_attributes(_of_messages(self._messages))
        self._token = contexts.attach(trace.set_span_in_context(span, parent))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        contexts.detach(self._token)
        name, text = "", ""
        if error is not None:
            name, text = error_type(error), str(error)
            self._span.record_exception(error)
        elif self._again:
            name, text = AGAIN, f"{self._again} of {len(self._messages)} messages are not done"
        duration_ns = self._instrumentation.clock.monotonic_ns() - self._began_ns
        attributes = failed_attributes(metric_attributes(self._client, PROCESS, PROCESS, self._topic), name)
        self._instrumentation.instruments.processed(len(self._messages), duration_ns, attributes, pushed=self._pushed)
        end_span(self._span, error=name, text=text)


class SettleSpan:
    """The settlement of messages by one call.

    It is a child of the current span, if that is of the trace in which the messages were sent, or if they are of
    several sends. Otherwise it is a child of the send.
    """

    __slots__ = ("_began_ns", "_client", "_instrumentation", "_messages", "_operation", "_span", "_topic")

    def __init__(
        self,
        instrumentation: Instrumentation,
        client: ClientIdentity,
        operation: str,
        messages: Sequence[ReceivedMessage],
    ) -> None:
        self._instrumentation = instrumentation
        self._client = client
        self._operation = operation
        self._messages = messages
        self._topic = topic_of(messages)

    def __enter__(self) -> Self:
        sent_in = [extracted(message) for message in self._messages]
        self._began_ns = self._instrumentation.clock.monotonic_ns()
        self._span = span = self._instrumentation.tracer.start_span(
            _name(self._operation, self._topic),
            _settle_parent(common_context(sent_in)),
            trace.SpanKind.CLIENT,
            span_attributes(self._client, self._operation, SETTLE, self._topic),
            links_of(self._messages, sent_in),
        )
        if span.is_recording() and self._messages:
            span.set_attributes(_of_messages(self._messages))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        name = "" if error is None else error_type(error)
        duration_ns = self._instrumentation.clock.monotonic_ns() - self._began_ns
        attributes = metric_attributes(self._client, self._operation, SETTLE, self._topic)
        self._instrumentation.instruments.settled(duration_ns, failed_attributes(attributes, name))
        end_span(self._span, error=name, text=str(error or ""))


def _name(operation: str, topic: str) -> str:
    return f"{operation} {topic}" if topic else operation


def _of_messages(messages: Sequence[ReceivedMessage]) -> Attributes:
    """Returns the attributes of the message, or the number of several messages."""
    return received_attributes(messages[0]) if len(messages) == 1 else {BATCH_COUNT: len(messages)}


def _settle_parent(sent_in: Context | None) -> Context | None:
    """Returns the parent of a settlement of messages that were sent in this context; None: the current context."""
    if sent_in is None:
        return None
    current = trace.get_current_span().get_span_context()
    send = trace.get_current_span(sent_in).get_span_context()
    return None if current.is_valid and current.trace_id == send.trace_id else sent_in
