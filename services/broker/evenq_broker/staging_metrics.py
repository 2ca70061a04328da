"""The metrics of staged rows; `metrics.py` lists them with the others. Read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenq.serving.metrics import Metric, MetricKind, Sample

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["staging_metrics"]


def staging_metrics(broker: Broker) -> list[Metric]:
    """What an operator of exactly-once sinks looks at."""
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_staged_rows", kind=gauge, unit="rows", labels=(),
            help="Rows that wait for the decision of their batch.", read=lambda: [((), broker.staging.table.rows)],
        ),
        Metric(
            name="evenq_broker_staged_bytes", kind=gauge, unit="bytes", labels=(),
            help="Bytes of rows that wait for the decision of their batch.",
            read=lambda: [((), broker.staging.table.bytes)],
        ),
        Metric(
            name="evenq_broker_staged_rows_total", kind=counter, unit="rows", labels=("result",),
            help="Rows staged, published when their batch was decided, dropped when they lost or nobody decided.",
            read=lambda: _rows(broker),
        ),
        Metric(
            name="evenq_broker_stagings_dropped_total", kind=counter, unit="stagings", labels=(),
            help="Stagings of attempts that lost, failed or were never decided.",
            read=lambda: [((), broker.staging.stats.dropped_stagings)],
        ),
        Metric(
            name="evenq_broker_staging_decisions_total", kind=counter, unit="batches", labels=(),
            help="Batches decided by this broker.", read=lambda: [((), broker.staging.stats.decisions)],
        ),
        Metric(
            name="evenq_broker_staging_decisions_open", kind=gauge, unit="batches", labels=(),
            help="Batches decided by this broker and not published at every broker yet.",
            read=lambda: [((), broker.staging.deciding.table.open_count)],
        ),
    ]  # fmt: skip


def _rows(broker: Broker) -> Iterable[Sample]:
    stats = broker.staging.stats
    return [
        (("staged",), stats.staged_rows), (("published",), stats.published_rows), (("dropped",), stats.dropped_rows),
    ]  # fmt: skip
