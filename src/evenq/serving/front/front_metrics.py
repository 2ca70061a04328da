"""Metrics of the front `http2`: sums over its connections, and refusals. Servers on grpcio's front have none.

Read at scrape from the plain counters of `evenq.serving.http2.limits.Totals`, one for each listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evenq.serving.http2.limits import Totals
from evenq.serving.program.metrics import Metric, Sample, counter, gauge

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
    """Returns the metrics. `totals` is called at scrape: `lambda: servers.totals`."""

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
        gauge(f"evenq_front_{name}", unit).series(held(name), text)
        for name, unit, text in (
            ("connections", "connections", "Open connections, including those in a TLS handshake."),
            ("streams", "streams", "Open streams: running calls, and incomplete requests."),
            ("request_bytes", "bytes", "Bytes of requests that are incomplete, or not read by their handler yet."),
            ("unread_bytes", "bytes", "Bytes of responses that clients have not read yet."),
        )
    ]
    return [
        *gauges,
        counter("evenq_front_refused_total", "events", "what").series(
            refused, "Connections, handshakes, calls and streams that were refused or ended because of a limit."
        ),
        counter("evenq_front_limits_total", "events", "limit").series(
            reached, "Times that a limit was reached, by its name in the settings `front_limits`."
        ),
        counter("evenq_front_untaken_total", "responses").series(
            held("untaken"),
            "Responses with messages that push consumers reset, or read only after their deadline; what they "
            "still hold of them is delivered again.",
        ),
        counter("evenq_front_faults_total", "connections", "code").series(
            faults, "Connections closed because the peer violated the protocol or flooded, by HTTP/2 error code."
        ),
    ]
