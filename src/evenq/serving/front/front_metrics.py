"""Metrics of the front `http2`: what its connections hold, and what was refused. Servers on grpcio's front have none.

Read at scrape from the plain counters of `evenq.serving.http2.limits.Totals`, one for each listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evenq.serving.http2.limits import Totals
from evenq.serving.program.metrics import Metric, MetricKind, Sample

__all__ = ["front_metrics"]

_REFUSED = (
    "connections_refused",
    "handshakes_failed",
    "calls_refused",
    "streams_refused",
    "stalled",
    "late_requests",
    "keepalive_timeouts",
)


def front_metrics(totals: Callable[[], Sequence[Totals]]) -> list[Metric]:
    """`totals` is asked at scrape: `lambda: servers.totals`."""

    def held(name: str) -> Callable[[], Iterable[Sample]]:
        def read() -> Iterable[Sample]:
            each_server = totals()
            return [((), sum(getattr(one, name) for one in each_server))] if each_server else []

        return read

    def refused() -> Iterable[Sample]:
        for name in _REFUSED:
            number = sum(getattr(each, name) for each in totals())
            if number:
                yield (name,), number

    def reached() -> Iterable[Sample]:
        names = sorted({name for each in totals() for name in each.reached})
        return [((name,), sum(each.reached.get(name, 0) for each in totals())) for name in names]

    def faults() -> Iterable[Sample]:
        codes = sorted({code for each in totals() for code in each.faults})
        return [((code,), sum(each.faults.get(code, 0) for each in totals())) for code in codes]

    gauges = [
        Metric(name=f"evenq_front_{name}", kind=MetricKind.GAUGE, unit=unit, help=text, read=held(name))
        for name, unit, text in (
            ("connections", "connections", "Open connections, including those in a TLS handshake."),
            ("streams", "streams", "Open streams: running calls, and incomplete requests."),
            ("request_bytes", "bytes", "Bytes of requests that are incomplete, or not read by their handler yet."),
            ("unread_bytes", "bytes", "Bytes of responses that clients have not read yet."),
        )
    ]
    return [
        *gauges,
        Metric(
            name="evenq_front_refused_total",
            kind=MetricKind.COUNTER,
            unit="events",
            labels=("what",),
            help="Connections, handshakes, calls and streams that were refused or ended because of a limit.",
            read=refused,
        ),
        Metric(
            name="evenq_front_limits_total",
            kind=MetricKind.COUNTER,
            unit="events",
            labels=("limit",),
            help="Times that a limit was reached, by its name in the settings `front_limits`.",
            read=reached,
        ),
        Metric(
            name="evenq_front_untaken_total",
            kind=MetricKind.COUNTER,
            unit="responses",
            help="Responses with messages that push consumers reset, or read only after their deadline; what they "
            "still hold of them is delivered again.",
            read=held("untaken"),
        ),
        Metric(
            name="evenq_front_faults_total",
            kind=MetricKind.COUNTER,
            unit="connections",
            labels=("code",),
            help="Connections closed because the peer violated the protocol or flooded, by HTTP/2 error code.",
            read=faults,
        ),
    ]
