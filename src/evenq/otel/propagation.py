"""The context of a message: how it is written into a message to send, and read from a received one.

The application's propagator writes its keys (`traceparent`, `tracestate`, `baggage` by default) into the properties of
the message, because other instrumentations of RocketMQ 5 read and write them there. The protocol has one more place,
`SystemProperties.trace_context`: the SDK copies `traceparent` into it (`evenq.client.rpc.messages`), and it is read
here if the property is missing (decision 134). A property that the user copied from another message is replaced: the
context must be that of the send.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from evenq.model import Message, ReceivedMessage
from evenq.model.span_attributes import ATTEMPT, MESSAGE_ID
from evenq.otel.attributes import Attributes

__all__ = ["carrier_of", "carrying", "common_context", "extracted", "links_of"]

TRACEPARENT = "traceparent"
_DEFAULT = [TraceContextTextMapPropagator, W3CBaggagePropagator]


def carrier_of(span: trace.Span) -> dict[str, str]:
    """Returns the properties that carry the span's context, with the baggage of the current context."""
    context = span.get_span_context()
    plain = context.is_valid and not context.trace_state
    if plain and _is_default(propagate.get_global_textmap()) and not baggage.get_all():
        # The only key that the default propagators would write, in a quarter of their time.
        return {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def _is_default(propagator: TextMapPropagator) -> bool:
    """Returns True for the propagators that OpenTelemetry has if the program and its environment name no other."""
    if type(propagator) is not CompositePropagator:
        return False
    parts = getattr(propagator, "_propagators", ())  # private: without it, the propagator itself writes its keys
    return [type(one) for one in parts] == _DEFAULT


def carrying(message: Message, carrier: dict[str, str]) -> Message:
    """Returns the message with these properties."""
    return message.with_properties(carrier) if carrier else message


def extracted(message: ReceivedMessage) -> Context:
    """Returns the context that a message was sent in; nothing of the current context is in it."""
    properties = message.properties
    if message.trace_context and TRACEPARENT not in properties:
        properties = {**properties, TRACEPARENT: message.trace_context}
    return propagate.extract(properties, context=Context())


def links_of(messages: Sequence[ReceivedMessage], contexts: Sequence[Context]) -> list[trace.Link]:
    """Returns a link to the send of each message that has a context. Several links name their messages."""
    links = []
    single = len(messages) == 1
    for message, context in zip(messages, contexts, strict=True):
        span = trace.get_current_span(context).get_span_context()
        if span.is_valid:
            names: Attributes = {MESSAGE_ID: message.message_id, ATTEMPT: message.delivery_attempt}
            links.append(trace.Link(span, None if single else names))
    return links


def common_context(contexts: Sequence[Context]) -> Context | None:
    """Returns the context of all messages if they are of one send; otherwise None."""
    spans = [trace.get_current_span(context).get_span_context() for context in contexts]
    if len({(span.trace_id, span.span_id) for span in spans}) == 1 and spans[0].is_valid:
        return contexts[0]
    return None
