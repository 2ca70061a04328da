"""Metrics of the spans that the broker exports; no series without `tracing.otlp_endpoint`."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.serving.program.metrics import Metric, Sample, counter, gauge
from evenq_broker.loops.diagnosis.span_export import SpanExport
from evenq_broker.loops.diagnosis.span_follower import SpanFollower


def span_metrics(*, span_export: SpanExport | None, span_follower: SpanFollower | None) -> list[Metric]:
    def results() -> Iterable[Sample]:
        if span_export is not None:
            yield ("exported",), span_export.exported
            yield ("failed",), span_export.failed
            yield ("dropped",), span_export.dropped

    return [
        counter("evenq_broker_spans_total", "spans", "result").series(
            results,
            "Spans of messages: accepted by the collector, lost in a call that failed, or dropped because the queue "
            "was full.",
        ),
        gauge("evenq_broker_spans_waiting", "spans").series(
            lambda: [] if span_export is None else [((), len(span_export))], "Spans that wait for the collector."
        ),
        counter("evenq_broker_span_events_missed_total", "events").series(
            lambda: [] if span_follower is None else [((), span_follower.missed)],
            "Messages and records of deliveries that were too many to make spans of; raise trace_bytes.",
        ),
    ]
