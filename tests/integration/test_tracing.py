"""Traces of programs against real processes, as a collector gets them over OTLP.

The picture in docs/guides/tracing.md is the trace of the first test, which compares both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.otlp import Collector, fields, picture_of
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import evenq
import evenq.aio
from evenq.testing import LocalCluster
from evenq.wire.convert import set_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/tracing.md"
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
QUICK = evenq.PushOptions(drain_ms=500)
WAIT_S = 60


class Tracing:
    """A collector, a provider that exports to it, and a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.endpoint = cluster.endpoint
        self.collector = Collector()
        self.provider = TracerProvider()
        exporter = OTLPSpanExporter(f"127.0.0.1:{self.collector.port}", insecure=True)
        self.provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
        self.tracer = self.provider.get_tracer("the program")

    def create(self, *topics: str) -> None:
        with evenq.Admin(endpoint=self.endpoint) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=1)

    def push(self, group: str, topic: str, listener: Callable[[list[evenq.ReceivedMessage]], object]) -> Any:
        return evenq.PushConsumer(
            group=group, listener=listener, subscriptions={topic: "*"}, endpoint=self.endpoint, start_from="FIRST",
            options=QUICK,
        )  # fmt: skip

    def exported(self) -> Collector:
        assert self.provider.force_flush()
        return self.collector

    def close(self) -> None:
        evenq.otel.uninstrument()
        self.provider.shutdown()
        self.collector.stop()


pytestmark = pytest.mark.cluster(brokers=2, rebalancer=False)


@pytest.fixture
def tracing(cluster: LocalCluster) -> Iterator[Tracing]:
    made = Tracing(cluster)
    evenq.otel.instrument(tracer_provider=made.provider)
    try:
        yield made
    finally:
        made.close()


def test_a_message_and_what_follows_from_it_are_one_trace(tracing: Tracing) -> None:
    tracing.create("orders", "invoices")
    mailed = threading.Event()
    producer = evenq.Producer(endpoint=tracing.endpoint)

    def bill(messages: list[evenq.ReceivedMessage]) -> object:
        if messages[0].delivery_attempt == 1:
            return evenq.Retry(messages, delay_level=1)
        producer.send(evenq.Message(topic="invoices", body=b"invoice 1"))
        return None

    with producer, tracing.push("billing", "orders", bill):  # noqa: SIM117 - the second one has a listener of its own
        with tracing.push("mail", "invoices", lambda _: mailed.set()):
            with tracing.tracer.start_as_current_span("POST /checkout"):
                producer.send(evenq.Message(topic="orders", body=b"order 1"))
            assert mailed.wait(WAIT_S)
    collector = tracing.exported()
    assert len({span.trace_id for span in collector.spans.values()}) == 1
    (root,) = collector.named("POST /checkout")
    picture = picture_of(collector.spans, root)
    assert f"```text\n{picture}\n```" in PAGE.read_text(encoding="utf-8"), picture


def test_the_asyncio_clients_and_a_batch_are_one_trace(tracing: Tracing) -> None:
    tracing.create("readings")

    async def story() -> None:
        read, done = 0, asyncio.Event()

        async def listen(messages: list[evenq.ReceivedMessage]) -> None:
            nonlocal read
            read += len(messages)
            if read == 100:
                done.set()

        async with (
            evenq.aio.Producer(endpoint=tracing.endpoint) as producer,
            evenq.aio.PushConsumer(
                group="meter", listener=listen, subscriptions={"readings": "*"}, endpoint=tracing.endpoint,
                start_from="FIRST", options=QUICK,
            ),
        ):  # fmt: skip
            await producer.send_batch([evenq.Message(topic="readings", body=b"%d" % n) for n in range(100)])
            async with asyncio.timeout(WAIT_S):
                await done.wait()

    asyncio.run(story())
    collector = tracing.exported()
    (sent,) = collector.named("send readings")
    assert fields(sent)["messaging.batch.message_count"] == 100
    calls = collector.named("process readings")
    assert {call.parent_span_id for call in calls} == {sent.span_id}
    assert sum(len(call.links) for call in calls) == 100


def test_an_error_is_exported_with_its_class(tracing: Tracing) -> None:
    tracing.create("orders")
    with evenq.Producer(endpoint=tracing.endpoint) as producer, pytest.raises(evenq.errors.IllegalMessageTag):
        producer.send(evenq.Message(topic="orders", body=b"x", tag="a|b"))
    (span,) = tracing.exported().named("send orders")
    assert fields(span)["error.type"] == "IllegalMessageTag"
    assert span.status.code == span.status.STATUS_CODE_ERROR


@pytest.mark.parametrize("place", ["property", "field"])
def test_a_message_of_another_client_continues_its_trace(tracing: Tracing, place: str) -> None:
    """As the agent for Java sends it, and as a client that uses the protocol's field."""
    topic = f"foreign-{place}"
    tracing.create(topic)
    context, read = f"00-{0xABC:032x}-{0xDEF:016x}-01", threading.Event()

    async def send() -> None:
        request = service_pb2.SendMessageRequest()
        message = request.messages.add(body=b"foreign")
        message.topic.name = topic
        message.system_properties.message_id = f"01{place:0>32}".encode().hex().upper()[:34]
        set_ms(message.system_properties.born_timestamp, 1_700_000_000_000)
        if place == "property":
            message.user_properties["traceparent"] = context
        else:
            message.system_properties.trace_context = context
        headers = {"x-mq-client-id": "java", "x-mq-language": "JAVA"}
        async with open_net() as net:
            raw = await net.unary(
                tracing.endpoint, SEND, request.SerializeToString(), timeout_ms=60_000, metadata=headers
            )
        check(service_pb2.SendMessageResponse.FromString(raw).status)

    asyncio.run(send())
    with tracing.push("readers", topic, lambda _: read.set()):
        assert read.wait(WAIT_S)
    (span,) = tracing.exported().named(f"process {topic}")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert span.links[0].span_id == span.parent_span_id


def test_a_dead_letter_that_is_replayed_stays_in_its_trace(tracing: Tracing) -> None:
    tracing.create("parcels")
    replayed, calls = threading.Event(), []

    def ship(messages: list[evenq.ReceivedMessage]) -> object:
        calls.append(trace.get_current_span().get_span_context().trace_id)
        if len(calls) == 1:
            return evenq.Retry(messages, delay_level=-1)
        replayed.set()
        return None

    with evenq.Producer(endpoint=tracing.endpoint) as producer, tracing.push("shipping", "parcels", ship):
        producer.send(evenq.Message(topic="parcels", body=b"parcel 1"))
        command = [sys.executable, "-m", "evenq.cli", "dlq", "replay", "shipping", "--yes", "--endpoint"]
        for _ in range(WAIT_S):
            done = subprocess.run([*command, tracing.endpoint], check=False, capture_output=True, text=True)
            if replayed.wait(1):
                break
        else:
            pytest.fail(done.stdout + done.stderr)
    collector = tracing.exported()
    (sent,) = collector.named("send parcels")
    assert calls == [int.from_bytes(sent.trace_id, "big")] * 2
    assert {span.parent_span_id for span in collector.named("process parcels")} == {sent.span_id}
    assert len(collector.named("dead_letter parcels")) == 1
