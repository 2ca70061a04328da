"""Sends finished spans to a collector over OTLP/gRPC, by the exporter of OpenTelemetry, on a thread of its own.

The only module of the servers that imports OpenTelemetry, and only if `tracing.otlp_endpoint` is set (decision 139).

Shared with the thread, under one lock: the queue of spans, its bytes and the counters. The loop only adds, and never
waits. The thread encodes and sends, up to BATCH_SPANS in one call. A collector that is away or slow fills the queue;
further spans are dropped and counted. A call that fails after the exporter's own retries loses its spans: they count as
failed. The begin and the end of such an outage are logged once each.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from evenq.model.span_attributes import ERROR_TYPE, SCHEMA_URL
from evenq.runtime.extras import missing
from evenq.runtime.version import __version__
from evenq_broker.core.diagnosis.message_spans import MessageSpan
from evenq_broker.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

BATCH_SPANS = 512
LINGER_S = 0.5
"""A smaller batch waits for more spans for this time."""
SPAN_BYTES = 600
"""Estimate of a span with its fixed attributes in memory; texts of the message are added."""
NS_PER_MS = 1_000_000


class SpanExport:
    """Queue and thread. `add` is called on the loop."""

    def __init__(self, settings: TracingSettings, *, cluster: str, broker_name: str) -> None:
        """Raises SettingsError if the exporter is not installed. Starts nothing yet."""
        self._settings = settings
        self._exporter = _made_exporter(settings)
        self._encoder = _Encoder(cluster=cluster, broker_name=broker_name)
        self._changed = threading.Condition()
        self._waiting: deque[MessageSpan] = deque()
        self._bytes = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.exported = self.failed = self.dropped = 0
        """Spans that the collector accepted, that a failed call contained, and for which the queue had no capacity."""

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        # A daemon: the process must end although a call to the collector hangs.
        self._thread = threading.Thread(target=self._run, name="evenq-span-export", daemon=True)
        self._thread.start()

    def add(self, spans: Sequence[MessageSpan]) -> None:
        """Queues spans, and drops those that do not fit."""
        if not spans:
            return
        settings = self._settings
        with self._changed:
            for span in spans:
                size = _bytes_of(span)
                if len(self._waiting) >= settings.queue_spans or self._bytes + size > settings.queue_bytes:
                    self.dropped += 1
                    continue
                self._waiting.append(span)
                self._bytes += size
            self._changed.notify()

    async def close(self) -> None:
        """Sends what is queued, for `tracing.flush_ms` at most; the rest is dropped and counted."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, self._settings.flush_ms / 1000)
        self._exporter.shutdown()  # ends a running call and its retries
        with self._changed:
            left = len(self._waiting)
            self.dropped += left
            self._waiting.clear()
        if left:
            log.warning(
                "%d spans were not sent to %s within tracing.flush_ms (%d ms) and are dropped",
                left,
                self._settings.otlp_endpoint,
                self._settings.flush_ms,
            )

    # -------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        lost = 0
        while batch := self._next():
            if self._sent(batch):
                if lost:
                    log.info("spans reach %s again; %d were lost", self._settings.otlp_endpoint, lost)
                lost = 0
                continue
            if not lost and not self._closing:
                log.warning(
                    "spans do not reach %s (%s); messages are not affected, and spans are dropped and counted "
                    "(evenq_broker_spans_total) until it answers",
                    self._settings.otlp_endpoint,
                    _LAST_ERROR.text,
                )
            lost += len(batch)

    def _next(self) -> list[MessageSpan]:
        """Waits for spans; returns none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(lambda: len(self._waiting) >= BATCH_SPANS or self._closing, LINGER_S)
            batch = [self._waiting.popleft() for _ in range(min(BATCH_SPANS, len(self._waiting)))]
            self._bytes -= sum(map(_bytes_of, batch))
            return batch

    def _sent(self, batch: list[MessageSpan]) -> bool:
        try:
            result = self._exporter.export(list(map(self._encoder.encoded, batch)))
            sent = bool(result.name == "SUCCESS")  # an enum of the package, which is imported in one place only
        except Exception as error:  # noqa: BLE001  a library's error must not end the thread, and is reported above
            _LAST_ERROR.text, sent = repr(error), False
        with self._changed:
            if sent:
                self.exported += len(batch)
            else:
                self.failed += len(batch)
        return sent


class _Encoder:
    """Makes the SDK's spans, with times and parents of the past."""

    def __init__(self, *, cluster: str, broker_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        resource = Resource.create(
            {
                "service.name": "evenq-broker",
                "service.namespace": cluster,
                "service.instance.id": broker_name,
                "service.version": __version__,
            }
        )
        # The sampler of the environment must not decide again: the producer's sampler has.
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._tracer = provider.get_tracer("evenq.broker", __version__, SCHEMA_URL)

    def encoded(self, span: MessageSpan) -> ReadableSpan:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace import ReadableSpan

        parent = trace.SpanContext(
            span.trace_id, span.parent_id, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
        )
        made = self._tracer.start_span(
            span.name,
            trace.set_span_in_context(trace.NonRecordingSpan(parent), Context()),
            attributes={**span.attributes, ERROR_TYPE: span.error} if span.error else span.attributes,
            start_time=span.start_ms * NS_PER_MS,
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR))
        made.end(span.end_ms * NS_PER_MS)
        assert isinstance(made, ReadableSpan), "the provider is the SDK's"
        return made


class _LastError(logging.Filter):
    """Keeps the newest line of the exporter's own log, and leaves it out: an outage would be a line for each try."""

    text = "no answer"

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = record.getMessage()
        return False


_LAST_ERROR = _LastError()


def _made_exporter(settings: TracingSettings) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.grpc import exporter as exporter_module
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise SettingsError(
            missing("the setting tracing.otlp_endpoint", "opentelemetry.exporter.otlp.proto.grpc")
        ) from error
    exporter_module.logger.addFilter(_LAST_ERROR)
    return OTLPSpanExporter(endpoint=settings.otlp_endpoint, timeout=settings.timeout_ms / 1000)


def _bytes_of(span: MessageSpan) -> int:
    texts = (value for value in span.attributes.values() if not isinstance(value, int))
    return SPAN_BYTES + sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
