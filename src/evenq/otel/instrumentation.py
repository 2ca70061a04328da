"""Tracer, instruments and clock of the observations, and the end that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry import metrics, trace

from evenq.model.span_attributes import ERROR_TYPE, SCHEMA_URL
from evenq.otel.attributes import Attributes
from evenq.otel.instruments import Instruments
from evenq.runtime.clock import SystemClock
from evenq.runtime.version import __version__

__all__ = ["Instrumentation", "end_span", "failed_attributes"]


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
