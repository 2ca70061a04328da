"""OpenTelemetry for the clients of this process: spans, metrics, and the trace context in each message.

    import evenq.otel

    evenq.otel.instrument()

It needs `pip install "evenq[otel]"`, which brings the API of OpenTelemetry. SDK, exporters, sampler and propagator are
the application's choice. Without an SDK nothing is recorded, and a context of the caller still travels. The guide is
docs/guides/tracing.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from evenq.client.core.clients.observer import OBSERVED, ClientIdentity
from evenq.errors import Unsupported
from evenq.model import ReceivedMessage
from evenq.runtime.extras import missing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["context_of", "instrument", "is_instrumented", "processing", "uninstrument"]


def instrument(*, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Records all clients of this process from now on, also those that exist already. A second call does nothing.

    Without arguments the global providers of OpenTelemetry are used, also if they are set later. Raises Unsupported if
    the package `opentelemetry-api` is not installed.
    """
    if OBSERVED.observer is None:
        _check()
        from evenq.otel.observer import OtelObserver

        OBSERVED.observer = OtelObserver.of(tracer_provider, meter_provider)


def uninstrument() -> None:
    """Ends the recording. Operations that run are recorded to their end."""
    OBSERVED.observer = None


def is_instrumented() -> bool:
    """Returns whether clients are recorded."""
    return OBSERVED.observer is not None


def context_of(message: ReceivedMessage) -> Context:
    """Returns the context that the message was sent in, as the configured propagator reads it; empty if it has none.

    The keys are properties of the message. Without a property `traceparent`, the protocol's trace context is read.
    Raises Unsupported as `instrument`.
    """
    _check()
    from evenq.otel.propagation import extracted

    return extracted(message)


def processing(
    messages: ReceivedMessage | Iterable[ReceivedMessage], *, group: str = ""
) -> AbstractContextManager[object]:
    """Records a `with` block as the processing of messages that were polled or received.

    Its span is the current one in the block, linked to the sends of the messages. For a single message, or messages of
    one send, it belongs to the trace of the send. Listeners need no such block. Raises Unsupported as `instrument`.
    """
    _check()
    from evenq.otel.observer import OtelObserver

    several = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
    observer = OBSERVED.observer
    if not isinstance(observer, OtelObserver):  # not instrumented: the global providers
        observer = OtelObserver.of(None, None)
    return observer.process(ClientIdentity(group=group), several, pushed=False)


def _check() -> None:
    try:
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401 - both are of the package that the extra installs
    except ModuleNotFoundError as error:
        raise Unsupported(missing("evenq.otel", "opentelemetry")) from error
