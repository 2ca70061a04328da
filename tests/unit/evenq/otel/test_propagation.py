"""The context of a message that another client sent."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_proofs.received import received_message
from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import evenq
from evenq.model import MessageQueue, ReceivedMessage
from evenq.otel.propagation import carrier_of, carrying, common_context, extracted, links_of

FIRST = f"00-{1:032x}-{2:016x}-01"
SECOND = f"00-{3:032x}-{4:016x}-00"


def message(trace_context: str | None = None, **properties: str) -> ReceivedMessage:
    return received_message(
        body=b"b", message_id="id", properties=properties, queue=MessageQueue("t", "a", 0), trace_context=trace_context
    )


def span_of(got: ReceivedMessage) -> tuple[int, int]:
    span = trace.get_current_span(extracted(got)).get_span_context()
    return span.trace_id, span.span_id


def test_the_property_counts_and_then_the_field_of_the_protocol() -> None:
    assert span_of(message(traceparent=FIRST)) == (1, 2)
    assert span_of(message(FIRST)) == (1, 2)
    assert span_of(message(SECOND, traceparent=FIRST)) == (1, 2)


def test_what_is_not_a_context_is_ignored() -> None:
    for text in ("", "x", "00-0-0-00", f"ff-{1:032x}-{2:016x}-01", "Root=1-5759e988-bd862e3fe1be46a994272793"):
        assert span_of(message(text)) == (0, 0)
        assert span_of(message(traceparent=text)) == (0, 0)


def test_baggage_of_the_message_is_read_and_nothing_of_the_reader() -> None:
    context = extracted(message(traceparent=FIRST, baggage="user=ann"))
    assert baggage.get_all(context) == {"user": "ann"}
    provider = trace.NonRecordingSpan(trace.SpanContext(7, 8, is_remote=False))
    with trace.use_span(provider):
        assert span_of(message()) == (0, 0)


def test_messages_have_a_common_context_if_they_are_of_one_send() -> None:
    first, second, none = extracted(message(FIRST)), extracted(message(SECOND)), extracted(message())
    assert common_context([first, first]) is first
    assert common_context([first, second]) is None
    assert common_context([first, none]) is None
    assert common_context([none, none]) is None
    assert common_context([]) is None


def test_links_name_their_messages_only_if_there_are_several() -> None:
    one, other = message(FIRST), message(SECOND)
    (link,) = links_of([one], [extracted(one)])
    assert not link.attributes
    links = links_of([one, message(), other], [extracted(one), extracted(message()), extracted(other)])
    assert [link.context.trace_id for link in links] == [1, 3]
    assert links[0].attributes == {"messaging.message.id": "id", "evenq.message.delivery_attempt": 1}


def test_a_message_without_a_carrier_stays_the_same_object() -> None:
    given = evenq.Message(topic="t", body=b"b", properties={"k": "v"})
    assert carrying(given, {}) is given
    assert carrying(given, {"traceparent": FIRST}).properties == {"k": "v", "traceparent": FIRST}
    assert given.properties == {"k": "v"}


STATES = [trace.TraceState(), trace.TraceState([("vendor", "x")])]


@pytest.mark.parametrize("state", STATES, ids=["plain", "trace state"])
@pytest.mark.parametrize("flags", [0, 1, 3])
@pytest.mark.parametrize("user", ["", "ann"])
@pytest.mark.parametrize("ids", [(1, 2), (0xABCDEF << 100, 0xFE << 56), (0, 0)])
def test_the_keys_of_a_send_are_those_of_the_configured_propagator(
    state: trace.TraceState, flags: int, user: str, ids: tuple[int, int]
) -> None:
    context = trace.SpanContext(*ids, is_remote=False, trace_flags=trace.TraceFlags(flags), trace_state=state)
    span = trace.NonRecordingSpan(context)
    token = attach(baggage.set_baggage("user", user) if user else Context())
    try:
        expected: dict[str, str] = {}
        propagate.inject(expected, trace.set_span_in_context(span))
        assert carrier_of(span) == expected
    finally:
        detach(token)


def test_another_propagator_writes_its_own_keys() -> None:
    class Other(TraceContextTextMapPropagator):
        def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
            carrier["other"] = "1"

    before = propagate.get_global_textmap()
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    try:
        for other in (Other(), CompositePropagator([Other()]), CompositePropagator([Other(), W3CBaggagePropagator()])):
            propagate.set_global_textmap(other)
            assert carrier_of(span) == {"other": "1"}
    finally:
        propagate.set_global_textmap(before)
