"""An OTLP collector for tests, and its spans as a tree in text.

It speaks OTLP/gRPC, as official exporters do, with the published messages of `opentelemetry-proto`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

__all__ = ["Collector", "began", "fields", "picture_of"]

NOTES = {
    "messaging.consumer.group.name": "group",
    "evenq.message.delivery_attempt": "attempt",
    "evenq.message.outcome": "",
    "error.type": "error",
}
"""Attributes in a picture, with the word before their value."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans, by id. While `open` is not set, calls wait."""

    def __init__(self, port: int = 0) -> None:
        self.spans: dict[bytes, Any] = {}
        self.services: dict[bytes, str] = {}
        """Span id -> name of the service that recorded it."""
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self._grown = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the protocol
        self.calls += 1
        while not self.open.wait(0.1):
            if not context.is_active():
                return trace_service_pb2.ExportTraceServiceResponse()
        with self._grown:
            for resource in request.resource_spans:
                service = fields(resource.resource).get("service.name", "")
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans[span.span_id] = span
                        self.services[span.span_id] = service
            self._grown.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        return sorted((span for span in list(self.spans.values()) if span.name == name), key=began)

    def wait_for(self, *names: str, timeout_s: float = 60) -> None:
        """Waits until there is a span of each name; a name that is given twice needs two."""
        with self._grown:
            there = self._grown.wait_for(lambda: all(self._has(name, names.count(name)) for name in names), timeout_s)
        if not there:
            found = sorted(span.name for span in self.spans.values())
            raise AssertionError(f"no spans {sorted(names)} within {timeout_s} s, only {found}")

    def stop(self) -> None:
        self.open.set()
        self._server.stop(None).wait()

    def _has(self, name: str, count: int) -> bool:
        return bool(sum(span.name == name for span in self.spans.values()) >= count)


def began(span: Any) -> int:
    return int(span.start_time_unix_nano)


def fields(owner: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in owner.attributes}


def picture_of(spans: Mapping[bytes, Any], root: Any, services: Mapping[bytes, str] | None = None) -> str:
    """The tree below a span as text, with some of the attributes; with `services` also the service of each span."""
    lines = []
    for left, span in _branches(spans, root):
        known = fields(span)
        notes = "  ".join(f"{word} {known[name]}".strip() for name, word in NOTES.items() if name in known)
        service = f"{services.get(span.span_id, ''):16}" if services is not None else ""
        lines.append(f"{left:34}{service}{notes}".rstrip())
    return "\n".join(lines)


def _branches(spans: Mapping[bytes, Any], root: Any) -> Iterator[tuple[str, Any]]:
    yield root.name, root
    children = sorted((span for span in spans.values() if span.parent_span_id == root.span_id), key=began)
    for child in children:
        last = child is children[-1]
        for number, (left, span) in enumerate(_branches(spans, child)):
            sign = ("   " if last else "│  ") if number else ("└─ " if last else "├─ ")
            yield sign + left, span
