"""Definitions of the metrics of `EvenqProgressListener`.

The number of series is bounded. A query has some twenty, and one for each part of a batch that Spark reports. It also
has one for each queue and topic, unless their number exceeds `queues_max`: then it has only sums, and its worst queues
are in the log. (Series of only the worst queues would change at each scrape, which time-series databases handle badly.)
`listener` bounds the number of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from pyspark_evenq.figures.query_figures import QueryFigures

Queries = Callable[[], Sequence[QueryFigures]]
Number = Callable[[QueryFigures], float]
Read = Callable[[], Iterable[Sample]]


def listener_metrics(queries: Queries, *, queues_max: int) -> list[Metric]:
    """Returns all metrics. `queries` returns copies, because the thread of the scrape reads them."""
    read, counter, gauge = _Source(queries, queues_max), MetricKind.COUNTER, MetricKind.GAUGE

    def metric(name: str, kind: MetricKind, unit: str, text: str, read: Read, *labels: str) -> Metric:
        labels = ("query", *labels)
        return Metric(name=f"evenq_spark_{name}", kind=kind, unit=unit, labels=labels, help=text, read=read)

    one, known = read.one, read.known
    return [
        metric("query_active", gauge, "queries", "1 while the query runs, 0 after it ended.", one(lambda q: q.active)),
        metric(
            "last_event_timestamp_seconds", gauge, "s", "Time of Spark's last report.", one(lambda q: q.last_event_s)
        ),
        metric("queues", gauge, "queues", "Queues that the query reads.", known(lambda q: len(q.lags))),
        metric(
            "queue_lag_messages", gauge, "messages",
            "Messages of the queue that no batch has read.", read.by_queue, "topic", "broker", "queue"
        ),
        metric(
            "topic_lag_messages", gauge, "messages",
            "Messages of the topic that no batch has read.", read.by_topic, "topic"
        ),
        metric("lag_messages", gauge, "messages", "Messages that no batch has read.", known(lambda q: q.lag.total)),
        metric("lag_min_messages", gauge, "messages", "Smallest lag of a queue.", known(lambda q: q.lag.least)),
        metric("lag_max_messages", gauge, "messages", "Largest lag of a queue.", known(lambda q: q.lag.most)),
        metric("lag_avg_messages", gauge, "messages", "Mean lag of the queues.", known(lambda q: q.lag.mean)),
        metric(
            "rows_total", counter, "rows", "Rows read; those of a repeated batch count again.", one(lambda q: q.rows)
        ),
        metric(
            "rows_in_per_second", gauge, "rows/s", "Rate of arriving rows at the last batch.", one(lambda q: q.rows_in)
        ),
        metric(
            "rows_through_per_second", gauge, "rows/s",
            "Rate of processed rows in the last batch.", one(lambda q: q.rows_through)
        ),
        metric(
            "batch_seconds", gauge, "s", "Duration of the last batch by part, with Spark's names.", read.by_part, "part"
        ),
        metric(
            "lost_messages_total", counter, "messages", "Messages lost before they were read.", one(lambda q: q.lost)
        ),
        metric("losses_total", counter, "losses", "Times that a queue lost messages.", one(lambda q: q.losses)),
        metric(
            "away_queues", gauge, "queues", "Queues without a broker at the last batch.", one(lambda q: len(q.away))
        ),
        metric(
            "resets_total", counter, "resets",
            "Offset resets by operators that the query followed.", one(lambda q: q.resets)
        ),
        metric(
            "gained_queues_total", counter, "queues",
            "Queues that the query got after its first batch.", one(lambda q: q.gained)
        ),
        metric("left_queues_total", counter, "queues", "Queues that the query gave up.", one(lambda q: q.left)),
        metric(
            "failures_total", counter, "runs",
            "Failed runs; queue_taken: the query lost its queues.", read.by_reason, "reason"
        ),
    ]  # fmt: skip


class _Source:
    def __init__(self, queries: Queries, queues_max: int) -> None:
        self._queries, self._queues_max = queries, queues_max

    def one(self, number: Number) -> Read:
        return lambda: [((query.name,), number(query)) for query in self._queries()]

    def known(self, number: Number) -> Read:
        """Reads a number of queues; no sample while a query has no known queues."""
        return lambda: [((query.name,), number(query)) for query in self._queries() if query.lags]

    def by_queue(self) -> Iterable[Sample]:
        for query in self._queries():
            if len(query.lags) <= self._queues_max:
                for queue, lag in query.lags.items():
                    yield (query.name, queue.topic, queue.broker_name, str(queue.queue_id)), lag

    def by_topic(self) -> Iterable[Sample]:
        for query in self._queries():
            sums = query.lag_by_topic()
            if len(sums) <= self._queues_max:
                yield from (((query.name, topic), lag) for topic, lag in sums.items())

    def by_part(self) -> Iterable[Sample]:
        for query in self._queries():
            yield from (((query.name, part), took / 1000) for part, took in sorted(query.durations_ms.items()))

    def by_reason(self) -> Iterable[Sample]:
        for query in self._queries():
            yield from (((query.name, str(why)), count) for why, count in sorted(query.failures.items()))
