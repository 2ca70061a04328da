"""Tracer, metrics and clock of the observations, and the end that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter

from evenq.model.span_attributes import ERROR_TYPE, SCHEMA_URL
from evenq.otel.attributes import Attributes
from evenq.runtime.clock import SystemClock
from evenq.runtime.version import __version__

__all__ = ["BOUNDARIES_S", "Instrumentation", "Instruments", "end_span", "failed_attributes"]


@dataclass(frozen=True, slots=True)
class Instrumentation:
    tracer: trace.Tracer
    instruments: Instruments
    clock: SystemClock

    @staticmethod
    def of(
        tracer_provider: trace.TracerProvider | None, meter_provider: metrics.MeterProvider | None
    ) -> Instrumentation:
        """Returns the instrumentation for these providers; None: the global ones."""
        tracer = trace.get_tracer("evenq", __version__, tracer_provider, SCHEMA_URL)
        meter = metrics.get_meter("evenq", __version__, meter_provider, SCHEMA_URL)
        return Instrumentation(tracer, Instruments(meter), SystemClock())


def failed_attributes(attributes: Attributes, error: str) -> Attributes:
    """Returns the attributes of an operation that failed with this type of error; empty: it did not fail."""
    return {**attributes, ERROR_TYPE: error} if error else attributes


def end_span(span: trace.Span, *, error: str = "", text: str = "", end_ns: int | None = None) -> None:
    """Ends a span. `error` is its type, `text` its description; empty: the operation did not fail."""
    if error:
        span.set_attribute(ERROR_TYPE, error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, text))
    span.end(end_ns)


BOUNDARIES_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
NS = 1e9


class Instruments:
    """The metrics of clients, by the semantic conventions for messaging, with the advised bucket boundaries."""

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=BOUNDARIES_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BOUNDARIES_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def sent(self, messages: int, duration_ns: int, attributes: Attributes) -> None:
        self._operation.record(duration_ns / NS, attributes)
        self._sent.add(messages, attributes)

    def received(self, messages: int, duration_ns: int, attributes: Attributes) -> None:
        self._operation.record(duration_ns / NS, attributes)
        if messages:
            self._consumed.add(messages, attributes)

    def processed(self, messages: int, duration_ns: int, attributes: Attributes, *, pushed: bool) -> None:
        """`pushed`: the messages were delivered by this call, not by a receive or poll before it."""
        self._process.record(duration_ns / NS, attributes)
        if pushed:
            self._consumed.add(messages, attributes)

    def settled(self, duration_ns: int, attributes: Attributes) -> None:
        self._operation.record(duration_ns / NS, attributes)
