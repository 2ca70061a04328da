"""Every way to send a message leaves one span, and the message has its context."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode

import evenq
import evenq.aio
from evenq.errors import ConnectionFailed, TopicNotFound
from evenq.model import TransactionResolution

FIXED = {
    "messaging.system": "rocketmq",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "server.address": "a",
    "server.port": 8081,
}


def message(body: bytes = b"body", topic: str = "t", **fields: Any) -> evenq.Message:
    return evenq.Message(topic=topic, body=body, **fields)


def stored(traced: Any, topic: str = "t", count: int = 1) -> list[evenq.ReceivedMessage]:
    """Reads a topic without a group."""
    found: list[evenq.ReceivedMessage] = []
    with traced.make(evenq.PullConsumer, group="reader") as reader:
        reader.assign(reader.queues_of(topic))
        reader.seek_to_begin(reader.queues[0])
        while len(found) < count:
            found += reader.poll(100)
    return found


def traceparent(span: Any) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def test_a_send_is_a_producer_span_whose_context_is_in_the_message(traced: Any) -> None:
    traced.create("t")
    producer = traced.make(evenq.Producer)
    with traced.tracer.start_as_current_span("work") as work:
        result = producer.send(message(tag="new", keys=("k1", "k2"), properties={"color": "red"}))
    span = traced.span("send t")
    assert (span.kind, span.parent) == (SpanKind.PRODUCER, work.get_span_context())
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        **FIXED,
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": f"a/{result.queue.queue_id}",
        "messaging.client.id": producer.client_id,
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
    }
    (got,) = stored(traced)
    assert got.properties == {"color": "red", "traceparent": traceparent(span)}
    assert got.trace_context == traceparent(span), "the protocol's own field has it, too"


@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway", "send_batch", "begin_transaction", "request"])
@pytest.mark.parametrize("face", ["sync", "aio"])
def test_every_way_to_send_leaves_one_span_and_its_context(traced: Any, way: str, face: str) -> None:
    traced.create("t", message_type="TRANSACTION" if way == "begin_transaction" else "NORMAL")
    if way == "request":
        traced.create("evenq-replies")
    if face == "sync":
        sync_send(traced, way)
    else:
        traced.in_loop(aio_send(traced, way))
    span = traced.span("send t")
    (got,) = stored(traced)
    assert got.properties["traceparent"] == traceparent(span)
    assert span.attributes["messaging.destination.name"] == "t"
    if way == "send_batch":
        assert span.attributes["messaging.batch.message_count"] == 1
    else:
        assert span.attributes["messaging.message.id"] == got.message_id
        kind = "transaction" if way == "begin_transaction" else "normal"
        assert span.attributes["messaging.rocketmq.message.type"] == kind
    (point,) = traced.points("messaging.client.sent.messages")
    assert (point.value, dict(point.attributes)) == (1, {**FIXED, "messaging.destination.name": "t"})


def sync_send(traced: Any, way: str) -> None:
    producer = traced.make(evenq.Producer, checker=lambda _: TransactionResolution.UNKNOWN)
    match way:
        case "send_async":
            producer.send_async(message()).result(20)
        case "send_oneway":
            producer.send_oneway(message())
        case "send_batch":
            producer.send_batch([message()])
        case "begin_transaction":
            producer.begin_transaction(message()).commit()
        case "request":
            with pytest.raises(evenq.errors.RequestTimeout):
                producer.request(message(), timeout_ms=500)
        case _:
            producer.send(message())
    producer.flush()


async def aio_send(traced: Any, way: str) -> None:
    checker = lambda _: TransactionResolution.UNKNOWN  # noqa: E731
    async with evenq.aio.Producer(endpoint="a:8081", context=traced.context(), checker=checker) as producer:
        match way:
            case "send_async":
                await (await producer.send_async(message()))
            case "send_oneway":
                await producer.send_oneway(message())
            case "send_batch":
                await producer.send_batch([message()])
            case "begin_transaction":
                await (await producer.begin_transaction(message())).commit()
            case "request":
                with pytest.raises(evenq.errors.RequestTimeout):
                    await producer.request(message(), timeout_ms=500)
            case _:
                await producer.send(message())
        await producer.flush()


@pytest.mark.parametrize(
    ("message_type", "fields", "expected"),
    [
        ("FIFO", {"message_group": "g1"}, {"type": "fifo", "group": "g1"}),
        ("DELAY", {"delay_level": 1}, {"type": "delay", "delay_time_level": 1}),
        ("DELAY", {"delay": timedelta(milliseconds=5)}, {"type": "delay"}),
        ("DELAY", {"delivery_ms": 1_700_000_000_000}, {"type": "delay", "delivery_timestamp": 1_700_000_000_000}),
        ("PRIORITY", {"priority": 0}, {"type": "priority"}),
        ("LITE", {"lite_topic": "ann"}, {"type": "lite"}),
    ],
)
def test_each_kind_of_message_is_named(traced: Any, message_type: str, fields: Any, expected: dict[str, Any]) -> None:
    traced.create("t", message_type=message_type)
    traced.make(evenq.Producer).send(message(**fields))
    span = traced.span("send t")
    prefix = "messaging.rocketmq.message."
    got = {key.removeprefix(prefix): value for key, value in span.attributes.items() if key.startswith(prefix)}
    assert got == expected


def test_a_batch_is_one_span_for_each_topic_with_the_number_of_its_messages(traced: Any) -> None:
    traced.create("t")
    traced.create("u")
    producer = traced.make(evenq.Producer)
    producer.send_batch(message(b"%d" % n, "t" if n % 3 else "u", properties={"n": str(n)}) for n in range(30))
    for topic, count in (("t", 20), ("u", 10)):
        span = traced.span(f"send {topic}")
        assert span.attributes["messaging.batch.message_count"] == count
        got = stored(traced, topic, count)
        assert {one.properties["traceparent"] for one in got} == {traceparent(span)}
        assert all(one.properties["n"] == one.body.decode() for one in got)
    points = traced.points("messaging.client.sent.messages")
    assert {point.attributes["messaging.destination.name"]: point.value for point in points} == {"t": 20, "u": 10}


def test_an_empty_batch_leaves_nothing(traced: Any) -> None:
    assert traced.make(evenq.Producer).send_batch([]) == []
    assert traced.spans() == []


@pytest.mark.parametrize("way", ["send", "send_async", "send_batch", "send_oneway"])
def test_an_error_of_a_send_is_the_error_of_its_span(traced: Any, way: str) -> None:
    traced.create("t")
    producer = traced.make(evenq.Producer)
    illegal = message(tag="a|b")
    if way == "send":
        with pytest.raises(evenq.Error):
            producer.send(illegal)
    elif way == "send_batch":
        with pytest.raises(evenq.Error):
            producer.send_batch([illegal])
    elif way == "send_async":
        assert producer.send_async(illegal).exception(20) is not None
    else:
        producer.send_oneway(illegal)
    span = traced.span("send t")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "IllegalMessageTag"
    assert "a|b" in span.status.description
    (point,) = traced.points("messaging.client.operation.duration")
    assert point.attributes["error.type"] == "IllegalMessageTag"
    assert point.count == 1


def test_a_call_that_is_refused_is_an_error_too(traced: Any) -> None:
    producer = traced.make(evenq.Producer)
    producer.close()
    for call in (producer.send, producer.send_async, producer.send_oneway, producer.begin_transaction):
        with pytest.raises(ConnectionFailed):
            call(message())
    assert [span.attributes["error.type"] for span in traced.spans("send t")] == ["ConnectionFailed"] * 4


def test_a_future_that_its_caller_cancels_ends_the_span(traced: Any) -> None:
    traced.create("t")
    producer = traced.make(evenq.Producer, options=evenq.ProducerOptions(linger_ms=1_000))
    assert producer.send_async(message()).cancel()
    assert traced.span("send t").attributes["error.type"] == "CancelledError"


def test_baggage_and_trace_state_travel_and_a_copied_context_is_replaced(traced: Any) -> None:
    traced.create("t")
    producer = traced.make(evenq.Producer)
    parent = trace.SpanContext(
        1, 2, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=trace.TraceState([("vendor", "x")])
    )
    outer = baggage.set_baggage("user", "ann", trace.set_span_in_context(trace.NonRecordingSpan(parent)))
    token = context.attach(outer)
    try:
        producer.send(message(properties={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}))
    finally:
        context.detach(token)
    span = traced.span("send t")
    assert span.context.trace_id == 1
    (got,) = stored(traced)
    assert got.properties == {"traceparent": traceparent(span), "tracestate": "vendor=x", "baggage": "user=ann"}


def test_without_a_topic_the_error_names_it(traced: Any) -> None:
    options = evenq.ProducerOptions(send_timeout_ms=1_000, max_attempts=1)
    with pytest.raises(TopicNotFound):
        traced.make(evenq.Producer, options=options).send(message(topic="%RETRY%nothing"))
    assert traced.span("send %RETRY%nothing").attributes["error.type"] == "TopicNotFound"


def test_durations_are_recorded_in_seconds_with_the_advised_boundaries(traced: Any) -> None:
    traced.create("t")
    traced.make(evenq.Producer).send(message())
    (point,) = traced.points("messaging.client.operation.duration")
    assert point.explicit_bounds == (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert 0 < point.sum < 20
    assert dict(point.attributes) == {**FIXED, "messaging.destination.name": "t"}
