"""The metrics of clients, by the semantic conventions for messaging, with the advised bucket boundaries."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from evenq.otel.attributes import Attributes

__all__ = ["BOUNDARIES_S", "Instruments"]

BOUNDARIES_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
NS = 1e9


class Instruments:
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
