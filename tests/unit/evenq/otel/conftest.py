"""One broker on a net without sockets, and clients of both faces whose spans and metrics are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.sync_broker import SyncBroker
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import evenq
from evenq.runtime.clock import SystemClock

Result = TypeVar("Result")
WAIT_S = 20


class TracedWorld(SyncBroker):
    """Clients are closed, and the recording ends, when the test ends."""

    def __init__(self) -> None:
        self.net = LoopNet(SystemClock())
        super().__init__(self.net)
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("of the test")

    def instrument(self) -> None:
        evenq.otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters)

    def in_loop(self, story: Any) -> None:
        """Runs a story of the asyncio face in the loop of the broker."""
        self.run(story)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The ended spans with this name, or all, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if name in {"", span.name}]

    def span(self, name: str) -> ReadableSpan:
        """The only span with this name; waits for it."""
        self.until(lambda: self.spans(name))
        (span,) = self.spans(name)
        return span

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        scopes = [] if data is None else [one for resource in data.resource_metrics for one in resource.scope_metrics]
        return [
            point for scope in scopes for one in scope.metrics if one.name == metric for point in one.data.data_points
        ]

    def close(self) -> None:
        evenq.otel.uninstrument()
        super().close()
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def traced() -> Iterator[TracedWorld]:
    """Clients are recorded from the start."""
    world = TracedWorld()
    try:
        world.instrument()
        yield world
    finally:
        world.close()
