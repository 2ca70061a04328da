"""The metrics of staged rows; `metrics.py` lists them with the others. Read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq_broker.loops.staging.staging import Staging

__all__ = ["staging_metrics"]


def staging_metrics(*, staging: Staging) -> list[Metric]:
    """What an operator of exactly-once sinks looks at."""
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_staged_rows", kind=gauge, unit="rows", labels=(),
            help="Rows that wait for the decision of their batch.", read=lambda: [((), staging.table.rows)],
        ),
        Metric(
            name="evenq_broker_staged_bytes", kind=gauge, unit="bytes", labels=(),
            help="Bytes of rows that wait for the decision of their batch.",
            read=lambda: [((), staging.table.bytes)],
        ),
        Metric(
            name="evenq_broker_staged_rows_total", kind=counter, unit="rows", labels=("result",),
            help="Rows staged, published (batch decided), or dropped (attempt lost, or batch never decided).",
            read=lambda: _rows(staging=staging),
        ),
        Metric(
            name="evenq_broker_stagings_dropped_total", kind=counter, unit="stagings", labels=(),
            help="Stagings of attempts that lost, failed or were never decided.",
            read=lambda: [((), staging.stats.dropped_stagings)],
        ),
        Metric(
            name="evenq_broker_staging_decisions_total", kind=counter, unit="batches", labels=(),
            help="Batches decided by this broker.", read=lambda: [((), staging.stats.decisions)],
        ),
        Metric(
            name="evenq_broker_staging_decisions_open", kind=gauge, unit="batches", labels=(),
            help="Batches decided by this broker and not published at every broker yet.",
            read=lambda: [((), staging.deciding.table.open_count)],
        ),
    ]  # fmt: skip


def _rows(*, staging: Staging) -> Iterable[Sample]:
    stats = staging.stats
    return [
        (("staged",), stats.staged_rows), (("published",), stats.published_rows), (("dropped",), stats.dropped_rows),
    ]  # fmt: skip
