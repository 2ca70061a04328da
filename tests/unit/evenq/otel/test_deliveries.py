"""Listener calls, receives, polls and settlements: their spans, links, parents and metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import evenq
import evenq.aio
from evenq.errors import InvalidReceiptHandle

QUICK = evenq.PushOptions(retry_first_ms=10, drain_ms=500)
LOCAL = evenq.PushOptions(retry="local", retry_first_ms=10, retry_max_ms=20, drain_ms=500)


def send(traced: Any, *bodies: bytes, topic: str = "t", **fields: Any) -> None:
    producer = traced.make(evenq.Producer)
    for body in bodies:
        producer.send(evenq.Message(topic=topic, body=body, **fields))


def push(traced: Any, listener: Any, **fields: Any) -> evenq.PushConsumer:
    given = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "options": LOCAL, **fields}
    made: evenq.PushConsumer = traced.make(evenq.PushConsumer, listener=listener, **given)
    return made


def linked(span: Any) -> list[Any]:
    return [link.context.span_id for link in span.links]


def test_a_listener_call_is_a_child_of_the_send_and_linked_to_it(traced: Any) -> None:
    traced.create("t")
    send(traced, b"body", tag="new", keys=("k",))
    current: list[Any] = []

    def listen(_: Sequence[evenq.ReceivedMessage]) -> None:
        current.append(trace.get_current_span().get_span_context())
        current.append(threading.current_thread().name)

    with traced.tracer.start_as_current_span("start of the program"), push(traced, listen) as consumer:
        span = traced.span("process t")
    sent = traced.span("send t")
    assert current == [span.context, current[1]]
    assert current[1].startswith("evenq-listener")
    assert (span.kind, span.parent.span_id) == (SpanKind.CONSUMER, sent.context.span_id)
    assert span.context.trace_id == sent.context.trace_id
    assert linked(span) == [sent.context.span_id]
    assert dict(span.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "a/0",
        "messaging.consumer.group.name": "g",
        "messaging.client.id": consumer.client_id,
        "messaging.message.id": sent.attributes["messaging.message.id"],
        "messaging.message.body.size": 4,
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k",),
        "server.address": "a",
        "server.port": 8081,
        "evenq.message.delivery_attempt": 1,
    }
    (point,) = traced.points("messaging.process.duration")
    assert point.count == 1
    assert point.explicit_bounds[:3] == (0.005, 0.01, 0.025)
    (point,) = traced.points("messaging.client.consumed.messages")
    assert (point.value, point.attributes["messaging.consumer.group.name"]) == (1, "g")


def test_a_coroutine_listener_runs_in_its_span_and_may_send(traced: Any) -> None:
    traced.create("t")
    traced.create("next")
    send(traced, b"1")

    async def story() -> None:
        async with evenq.aio.Producer(endpoint="a:8081", context=traced.context()) as producer:
            done = asyncio.Event()

            async def listen(_: Sequence[evenq.ReceivedMessage]) -> None:
                await asyncio.sleep(0)
                await producer.send(evenq.Message(topic="next", body=b"2"))
                done.set()

            async with evenq.aio.PushConsumer(
                group="g", listener=listen, subscriptions={"t": "*"}, endpoint="a:8081", context=traced.context(),
                start_from="FIRST", options=LOCAL,
            ):  # fmt: skip
                await done.wait()

    traced.in_loop(story())
    first, process, second = traced.span("send t"), traced.span("process t"), traced.span("send next")
    assert {span.context.trace_id for span in (first, process, second)} == {first.context.trace_id}
    assert (process.parent.span_id, second.parent.span_id) == (first.context.span_id, process.context.span_id)


def test_messages_of_several_sends_are_one_call_with_a_link_to_each(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1", b"2", b"3")
    with push(traced, lambda _: None, consume_threads=1, options=evenq.PushOptions(consume_batch=64)):
        traced.until(lambda: sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 3)
    sends = {span.context.span_id: span for span in traced.spans("send t")}
    calls = traced.spans("process t")
    links = [link for call in calls for link in call.links]
    assert {link.context.span_id for link in links} == set(sends)
    for call in calls:
        if len(call.links) > 1:
            assert call.parent is None
            assert call.attributes["messaging.batch.message_count"] == len(call.links)
            assert "messaging.message.id" not in call.attributes
            for link in call.links:
                sent = sends[link.context.span_id]
                assert link.attributes["messaging.message.id"] == sent.attributes["messaging.message.id"]
                assert link.attributes["evenq.message.delivery_attempt"] == 1


def test_messages_of_one_batch_are_a_child_of_it(traced: Any) -> None:
    traced.create("t")
    traced.make(evenq.Producer).send_batch([evenq.Message(topic="t", body=b"%d" % n) for n in range(20)])
    with push(traced, lambda _: None):
        traced.until(lambda: sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 20)
    sent = traced.span("send t")
    assert {span.parent.span_id for span in traced.spans("process t")} == {sent.context.span_id}
    assert sum(len(span.links) for span in traced.spans("process t")) == 20


@pytest.mark.parametrize("failure", ["raise", "False", "Retry"])
def test_a_failed_call_has_its_error_and_the_next_attempt_its_number(traced: Any, failure: str) -> None:
    traced.create("t")
    send(traced, b"1")
    calls: list[int] = []

    def listen(messages: list[evenq.ReceivedMessage]) -> object:
        calls.append(messages[0].delivery_attempt)
        if len(calls) > 1:
            return None
        if failure == "raise":
            raise KeyError("no such order")
        return False if failure == "False" else evenq.Retry(messages)

    with push(traced, listen):
        traced.until(lambda: len(traced.spans("process t")) == 2)
    bad, good = traced.spans("process t")
    assert (bad.status.status_code, good.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert bad.attributes["error.type"] == ("KeyError" if failure == "raise" else "retry")
    assert [span.attributes["evenq.message.delivery_attempt"] for span in (bad, good)] == [1, 2]
    assert bad.parent == good.parent
    assert [event.name for event in bad.events] == (["exception"] if failure == "raise" else [])
    errors = {point.attributes.get("error.type") for point in traced.points("messaging.process.duration")}
    assert errors == {None, bad.attributes["error.type"]}


def test_a_message_that_is_given_back_has_a_settle_span(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1")
    with push(traced, lambda messages: evenq.Retry(messages, delay_level=-1), options=QUICK):
        span = traced.span("dead_letter t")
    sent = traced.span("send t")
    assert (span.kind, span.attributes["messaging.operation.type"]) == (SpanKind.CLIENT, "settle")
    assert (span.parent.span_id, linked(span)) == (sent.context.span_id, [sent.context.span_id])


def test_a_receive_is_a_client_span_with_links_and_an_ack_settles(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1", b"2")
    with traced.make(evenq.SimpleConsumer, group="g", subscriptions={"t": "*"}) as consumer:
        with traced.tracer.start_as_current_span("request") as outer:
            got = consumer.receive(wait_ms=5_000)
            while len(got) < 2:
                got += consumer.receive(wait_ms=5_000)
            consumer.ack(*got)
        assert consumer.receive(wait_ms=0) == []
    receives = traced.spans("receive t")
    assert {span.kind for span in receives} == {SpanKind.CLIENT}
    assert {span.parent.span_id for span in receives} == {outer.get_span_context().span_id}
    assert [link for span in receives for link in linked(span)] == [
        span.context.span_id for span in traced.spans("send t")
    ]
    assert sum(span.attributes["messaging.batch.message_count"] for span in receives) == 2
    assert all(span.start_time <= span.end_time for span in receives)
    assert traced.spans("receive") == [], "an empty answer has no span"
    ack = traced.span("ack t")
    assert ack.attributes["messaging.batch.message_count"] == 2
    assert ack.parent.span_id == outer.get_span_context().span_id
    assert sorted(linked(ack)) == sorted(span.context.span_id for span in traced.spans("send t"))
    assert sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 2
    operations = {
        point.attributes["messaging.operation.name"] for point in traced.points("messaging.client.operation.duration")
    }
    assert operations == {"send", "receive", "ack"}


def test_a_settlement_that_fails_has_its_error(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1")
    with traced.make(evenq.SimpleConsumer, group="g", subscriptions={"t": "*"}) as consumer:
        (got,) = consumer.receive(wait_ms=5_000)
        consumer.ack(got)
        with pytest.raises(InvalidReceiptHandle):
            consumer.change_invisible(got, 1_000)
    span = traced.span("change_invisible t")
    assert span.attributes["error.type"] == "InvalidReceiptHandle"
    assert traced.span("ack t").parent.span_id == traced.span("send t").context.span_id


def test_polls_and_commits_of_a_pull_consumer_are_recorded(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1")
    options = evenq.PullOptions(auto_commit=False)
    with traced.make(
        evenq.PullConsumer, group="g", subscriptions={"t": "*"}, start_from="FIRST", options=options
    ) as consumer:
        (got,) = consumer.poll()
        with evenq.otel.processing(got, group="g"):
            inside = trace.get_current_span().get_span_context()
        consumer.commit()
    sent, process = traced.span("send t"), traced.span("process t")
    assert linked(traced.span("receive t")) == [sent.context.span_id]
    assert (inside, process.parent.span_id) == (process.context, sent.context.span_id)
    assert process.attributes["messaging.consumer.group.name"] == "g"
    assert traced.span("commit").attributes["messaging.operation.type"] == "settle"
    (point,) = traced.points("messaging.client.consumed.messages")
    assert point.value == 1, "the processing of a polled message does not count it again"


def test_the_asyncio_consumers_record_the_same(traced: Any) -> None:
    traced.create("t")
    send(traced, b"1")

    async def story() -> None:
        fields = {"group": "g", "subscriptions": {"t": "*"}, "endpoint": "a:8081", "context": traced.context()}
        async with evenq.aio.SimpleConsumer(**fields) as consumer:
            (got,) = await consumer.receive(wait_ms=5_000)
            hidden = await consumer.change_invisible(got, 60_000)
            await consumer.ack(hidden)
        async with evenq.aio.PullConsumer(**{**fields, "group": "h"}, start_from="FIRST") as reader:
            assert len(await reader.poll()) == 1
            await reader.commit()

    traced.in_loop(story())
    names = [span.name for span in traced.spans()]
    assert names == ["send t", "receive t", "change_invisible t", "ack t", "receive t", "commit"]


def test_lite_consumers_record_receives_calls_and_settlements(traced: Any) -> None:
    traced.create("p", message_type="LITE")
    with traced.make(evenq.LiteSimpleConsumer, group="g", topic="p", lite_topics=("ann",)) as one:
        send(traced, b"1", topic="p", lite_topic="ann")
        (got,) = one.receive(wait_ms=10_000)
        one.suspend(got, 1)
        (got,) = one.receive(wait_ms=10_000)
        one.ack(got)
    with traced.make(evenq.LitePushConsumer, group="h", topic="p", lite_topics=("bob",), listener=lambda _: None):
        send(traced, b"2", topic="p", lite_topic="bob")
        traced.until(lambda: len(traced.spans("ack p")) == 2)
    assert len(traced.spans("receive p")) == 2, "what a push consumer fetches is not a receive"
    process = traced.span("process p")
    by_id = {span.context.span_id: span for span in traced.spans("send p")}
    assert process.parent.span_id in by_id
    assert traced.spans("ack p")[1].parent.span_id == process.parent.span_id
    assert len(traced.spans("suspend p")) == 1


def test_a_message_without_a_context_begins_a_trace(traced: Any) -> None:
    traced.create("t")
    evenq.otel.uninstrument()
    send(traced, b"1")
    traced.instrument()
    with push(traced, lambda _: None):
        span = traced.span("process t")
    assert (span.parent, span.links) == (None, ())
