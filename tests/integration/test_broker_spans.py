"""Spans of a real broker process: in the trace of the clients, and without any effect on them if the collector is away."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from evenq_proofs.otlp import Collector, fields
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import evenq
from evenq.testing import LocalCluster
from evenq.testing.free_ports import FreePorts

WAIT_S = 60
SENDS = 300


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def broker(folder: Path, endpoint: str, **settings: str) -> LocalCluster:
    given = {"TRACING__OTLP_ENDPOINT": endpoint, "DEFAULT_START_FROM": "FIRST", **settings}
    return LocalCluster(brokers=1, nameservers=0, rebalancer=False, folder=folder, broker_settings=given)


def counted(cluster: LocalCluster, result: str) -> int:
    with urlopen(f"http://127.0.0.1:{cluster.brokers[0].metrics_port}/metrics", timeout=60) as page:
        text = page.read().decode()
    found = re.search(rf'^evenq_broker_spans_total{{[^}}]*result="{result}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


def send(producer: evenq.Producer, count: int) -> None:
    """Each message with a context of its own, as a program without an SDK of OpenTelemetry may write it."""
    for number in range(1, count + 1):
        context = f"00-{number:032x}-{number:016x}-01"
        producer.send(evenq.Message(topic="orders", body=b"x", properties={"traceparent": context}))


def test_the_spans_of_broker_and_clients_are_one_trace(tmp_path: Path, collector: Collector) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    evenq.otel.instrument(tracer_provider=provider)
    try:
        with (
            broker(tmp_path, collector.endpoint) as cluster,
            evenq.Producer(endpoint=cluster.endpoint) as producer,
            evenq.SimpleConsumer(group="billing", endpoint=cluster.endpoint, subscriptions={"orders": "*"}) as consumer,
        ):
            with provider.get_tracer("the program").start_as_current_span("POST /checkout"):
                producer.send(evenq.Message(topic="orders", body=b"order 1", tag="new"))
            messages: list[evenq.ReceivedMessage] = []
            until = time.monotonic() + WAIT_S
            while not messages and time.monotonic() < until:
                messages = consumer.receive()
            with evenq.otel.processing(messages, group="billing"):
                trace_id = trace.get_current_span().get_span_context().trace_id
            consumer.ack(messages[0])
            collector.wait_for("store orders", "wait orders", "deliver orders")
    finally:
        evenq.otel.uninstrument()
        provider.shutdown()
    (sent,) = collector.named("send orders")
    assert sent.trace_id.hex() == f"{trace_id:032x}"
    below = {span.name for span in collector.spans.values() if span.parent_span_id == sent.span_id}
    assert {"store orders", "wait orders", "deliver orders", "process orders"} <= below
    (delivered,) = collector.named("deliver orders")
    known = fields(delivered)
    assert (known["evenq.message.outcome"], known["messaging.rocketmq.message.tag"]) == ("acked", "new")
    assert (known["messaging.system"], known["messaging.operation.name"]) == ("rocketmq", "deliver")
    assert known["messaging.destination.partition.id"].startswith("broker-a/")


@pytest.mark.parametrize("fate", ["away", "silent"])
def test_a_collector_that_is_away_or_silent_changes_nothing_for_clients_and_its_lost_spans_are_counted(
    tmp_path: Path, collector: Collector, fate: str
) -> None:
    collector.open.clear()
    with FreePorts() as ports:
        endpoint = collector.endpoint if fate == "silent" else f"http://127.0.0.1:{ports.take()}"
        limits = {"TRACING__QUEUE_SPANS": "100", "TRACING__TIMEOUT_MS": "60000", "TRACING__FLUSH_MS": "500"}
        with broker(tmp_path, endpoint, **limits) as cluster:
            with evenq.Producer(endpoint=cluster.endpoint) as producer:
                send(producer, SENDS)
                until = time.monotonic() + WAIT_S
                while not counted(cluster, "dropped") and time.monotonic() < until:
                    time.sleep(0.1)
                send(producer, 1)
            assert counted(cluster, "dropped") > 0, "the queue has its limit"
            assert counted(cluster, "exported") == 0
            began = time.monotonic()
        assert time.monotonic() - began < 30, "the call to the collector may last for a minute"


def test_the_end_of_a_broker_sends_what_it_has(tmp_path: Path, collector: Collector) -> None:
    with (
        broker(tmp_path, collector.endpoint, TRACING__FLUSH_MS="60000") as cluster,
        evenq.Producer(endpoint=cluster.endpoint) as producer,
    ):
        send(producer, SENDS)
    assert len(collector.named("store orders")) == SENDS


def test_settings_that_cannot_work_are_refused_with_the_remedy(tmp_path: Path) -> None:
    def refused(*flags: str, code: str = "from evenq_broker.__main__ import main") -> str:
        words = ["evenq-broker", "--port=0", "--metrics-port=-1", *flags]
        program = f"import sys; sys.argv = {words!r}; {code}; sys.exit(main())"
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
        )
        assert ended.returncode != 0
        return ended.stderr

    assert "trace_bytes is 0" in refused("--tracing.otlp-endpoint=http://127.0.0.1:4317", "--trace-bytes=0")
    assert "tracing.otlp" in refused("--tracing.otlp-endpoint=127.0.0.1:4317")
    hidden = "import sys; sys.modules['opentelemetry.exporter'] = None; from evenq_broker.__main__ import main"
    said = refused("--tracing.otlp-endpoint=http://127.0.0.1:4317", code=hidden)
    assert 'pip install "evenq[otlp]"' in said
    assert "Traceback" not in said


def test_without_the_setting_nothing_of_opentelemetry_is_loaded() -> None:
    program = (
        "import sys, asyncio, random\n"
        "from evenq_broker.app import BrokerApp\n"
        "from evenq_broker.settings import BrokerSettings\n"
        "from evenq.runtime.clock import SystemClock\n"
        "from evenq.wire.net import GrpcNet\n"
        "async def run():\n"
        "    app = BrokerApp(BrokerSettings(port=0, metrics_port=-1), clock=SystemClock(), rng=random.SystemRandom(),"
        " net=GrpcNet())\n"
        "    await app.start()\n"
        "    await app.close(drain_ms=0)\n"
        "asyncio.run(run())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
