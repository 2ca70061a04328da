"""The observer that clients report to while `evenq.otel.instrument` is in effect."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from evenq.client.core.clients.observer import ClientIdentity
from evenq.model import Message, ReceivedMessage
from evenq.otel.deliveries import ProcessSpan, ReceiveSpan, SettleSpan
from evenq.otel.instrumentation import Instrumentation
from evenq.otel.sends import BatchSpan, SendSpan

__all__ = ["OtelObserver"]


class OtelObserver:
    """Makes an observation for each operation; thread-safe."""

    def __init__(self, instrumentation: Instrumentation) -> None:
        self._instrumentation = instrumentation

    @staticmethod
    def of(tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> OtelObserver:
        """Returns an observer with these providers; None: the global ones."""
        return OtelObserver(Instrumentation.of(tracer_provider, meter_provider))

    def send(self, client: ClientIdentity, message: Message, *, transaction: bool = False) -> SendSpan:
        return SendSpan(self._instrumentation, client, message, transaction=transaction)

    def send_batch(self, client: ClientIdentity) -> BatchSpan:
        return BatchSpan(self._instrumentation, client)

    def receive(self, client: ClientIdentity) -> ReceiveSpan:
        return ReceiveSpan(self._instrumentation, client)

    def process(
        self, client: ClientIdentity, messages: Sequence[ReceivedMessage], *, pushed: bool = True
    ) -> ProcessSpan:
        """`pushed` False: the messages were counted by a receive or poll."""
        return ProcessSpan(self._instrumentation, client, messages, pushed=pushed)

    def settle(self, client: ClientIdentity, operation: str, messages: Sequence[ReceivedMessage]) -> SettleSpan:
        return SettleSpan(self._instrumentation, client, operation, messages)
