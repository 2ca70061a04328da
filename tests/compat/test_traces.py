"""Traces over unmodified official SDKs: the broker records what they do not.

The picture "Across languages" in docs/guides/tracing.md is the trace of the second test, which compares both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from evenq_proofs import official_sdks
from evenq_proofs.official_sdks import BUILD_SECONDS
from evenq_proofs.otlp import Collector, fields, picture_of
from evenq_proofs.peer import Peer
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import evenq
from evenq.testing import LocalCluster

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/tracing.md"
PEER = Path(__file__).with_name("python_sdk_peer.py")
BEGIN_S = 600
"""An agent rewrites the classes of a Java program as it loads them, which takes long on a busy machine."""

pytestmark = pytest.mark.timeout(2 * BUILD_SECONDS + 4 * BEGIN_S)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def endpoint(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that sends its spans to the collector."""
    settings = {"TRACING__OTLP_ENDPOINT": collector.endpoint, "DEFAULT_START_FROM": "FIRST", "DEFAULT_QUEUES": "1"}
    with LocalCluster(
        brokers=1,
        rebalancer=False,
        folder=tmp_path_factory.mktemp("traced"),
        broker_settings=settings,
        ready_ms_max=BEGIN_S * 1000,
    ) as running:
        yield running.endpoint


def test_the_official_python_sdk_is_in_the_trace_that_its_program_names(
    tmp_path: Path, collector: Collector, endpoint: str, keep: Callable[[Peer], None]
) -> None:
    """It has no instrumentation: the program gives each message the context of its own span."""
    context = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    words = [sys.executable, str(PEER), "traced", endpoint, "traced", "traced-group", context]
    peer = Peer(words, log_path=tmp_path / "python.log")
    keep(peer)
    peer.wait_done(seconds=120)
    [first, second] = peer.of("attempt")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    collector.wait_for("store traced", *["wait traced", "deliver traced"] * 2)
    spans = [span for span in collector.spans.values() if span.trace_id.hex() == f"{0xABC:032x}"]
    assert {span.parent_span_id.hex() for span in spans} == {f"{0xDEF:016x}"}
    assert len(spans) == 5
    deliveries = list(map(fields, collector.named("deliver traced")))
    assert [(one["evenq.message.delivery_attempt"], one["evenq.message.outcome"]) for one in deliveries] == [
        (1, "retried"), (2, "acked"),
    ]  # fmt: skip
    assert {one["messaging.consumer.group.name"] for one in deliveries} == {"traced-group"}
    assert {one["messaging.client.id"] for one in deliveries} == {second["client_id"]}
    assert {one["messaging.message.id"] for one in deliveries} == {second["id"]}


@pytest.fixture(scope="module")
def go_peer(lacking: Callable[[str], NoReturn]) -> Path:
    try:
        return official_sdks.go_peer()
    except official_sdks.NotInstalled as error:
        lacking(str(error))


@pytest.fixture(scope="module")
def classpath(lacking: Callable[[str], NoReturn]) -> str:
    try:
        return official_sdks.java_classpath()
    except official_sdks.NotInstalled as error:
        lacking(str(error))


def join(java: Peer, endpoint: str) -> None:
    """Starts the push consumer; again, if the machine is so busy that the SDK gives up its first call."""
    until = time.monotonic() + BEGIN_S
    number = 0
    while time.monotonic() < until:
        number += 1
        push = {"do": "push", "client": f"mail-{number}", "endpoint": endpoint, "group": "mail", "topic": "invoices"}
        java.write(json.dumps(push))
        java.wait(lambda _: len(java.of("done")) == number, seconds=BEGIN_S)  # noqa: B023 - called in this turn
        if "error" not in java.of("done")[-1]:
            return
    pytest.fail(f"the consumer did not start: {java.of('done')[-1]}")


@pytest.mark.slow
def test_one_trace_leads_from_python_over_go_to_java(
    tmp_path: Path,
    collector: Collector,
    endpoint: str,
    go_peer: Path,
    classpath: str,
    keep: Callable[[Peer], None],
) -> None:
    """The Go program uses OpenTelemetry's API, as its SDK has no instrumentation; Java has the agent."""
    with evenq.Admin(endpoint=endpoint) as admin:
        for topic in ("orders", "invoices"):
            admin.create_topic(topic, queues=1)
    exported = {
        **os.environ,
        "HOME": str(tmp_path),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        # Of the agent's hundreds of instrumentations only that of this SDK: it starts in a third of the time.
        "OTEL_INSTRUMENTATION_COMMON_DEFAULT_ENABLED": "false",
        "OTEL_INSTRUMENTATION_ROCKETMQ_CLIENT_ENABLED": "true",
    }
    go = Peer(
        [str(go_peer), "forward", endpoint, "orders", "billing", "invoices"],
        log_path=tmp_path / "go.log", environment={**exported, "OTEL_SERVICE_NAME": "billing (Go)"},
    )  # fmt: skip
    keep(go)
    command = official_sdks.java_peer(classpath, tmp_path)
    built = Path(classpath.partition(os.pathsep)[0]).parent
    agent = next(built.glob("dependency/opentelemetry-javaagent-*.jar"))
    java = Peer(
        [command[0], f"-javaagent:{agent}", *command[1:]],
        log_path=tmp_path / "java.log", environment={**exported, "OTEL_SERVICE_NAME": "mail (Java)"},
    )  # fmt: skip
    keep(java)
    join(java, endpoint)
    go.wait(lambda said: any("ready" in one for one in said), seconds=BEGIN_S)

    provider = TracerProvider(resource=Resource.create({"service.name": "shop (Python)"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    evenq.otel.instrument(tracer_provider=provider)
    try:
        with evenq.Producer(endpoint=endpoint) as producer:
            producer.send(evenq.Message(topic="orders", body=b"order 1", properties={"number": "1"}))
    finally:
        evenq.otel.uninstrument()
        provider.shutdown()
    java.wait(lambda said: any("got" in one for one in said), seconds=BEGIN_S)
    go.stop()
    expected = ["send orders", "process orders", "send invoices", "invoices process"]
    for topic in ("orders", "invoices"):
        expected += [f"store {topic}", f"wait {topic}", f"deliver {topic}"]
    collector.wait_for(*expected, timeout_s=BEGIN_S)
    (root,) = collector.named("send orders")
    spans = {key: span for key, span in collector.spans.items() if span.trace_id == root.trace_id}
    assert len(spans) == len(expected), sorted(span.name for span in spans.values())
    picture = picture_of(spans, root, collector.services)
    assert len(picture.splitlines()) == len(spans), "all of them are below the first one"
    assert f"```text\n{picture}\n```" in PAGE.read_text(encoding="utf-8"), picture
