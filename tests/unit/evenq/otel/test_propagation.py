"""The context of a message that another client sent."""

from __future__ import annotations

from evenq_proofs.received import received_message
from opentelemetry import baggage, trace

import evenq
from evenq.model import MessageQueue, ReceivedMessage
from evenq.otel.propagation import carrying, common_context, extracted, links_of

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
