"""The metrics of what groups have before them and cannot handle; `metrics.py` lists them with the others.

A group that fails every message shows here: deliveries given back and timed out, messages that wait for a retry, the
age of its oldest unread message, dead letters that were not replayed. Ages and waits are as `loops.diagnosis.watching`
last saw them. Per queue there is a list of its own, `/metrics/queues`, for a look at one group or a slow scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from evenq.model.names import RETRY_PREFIX
from evenq.serving.program.metrics import Distribution, Metric, MetricKind, Sample
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.diagnosis.backlog import Backlog
from evenq_broker.loops.dead_letters.replay import groups_with_letters, waiting_letters
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime
from evenq_broker.stats import AGE_BOUNDS_MS, SIZE_BOUNDS

if TYPE_CHECKING:
    from evenq_broker.core.delivery.queue_progress import QueueProgress

__all__ = ["backlog_metrics", "retries_waiting", "single_queue_metrics"]

QUEUE_SERIES_MAX = 50_000
"""Most queues of groups that `/metrics/queues` lists: some 8 MB."""


def backlog_metrics(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    lite: Lites,
    delayed_retries: DelayedRetries,
    backlog: Backlog,
) -> list[Metric]:
    """What an operator of consumers looks at."""
    source = _BacklogSource(runtime, catalog, ledger, lite=lite, delayed_retries=delayed_retries, backlog=backlog)
    counter, gauge, histogram = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
    group, group_topic = ("consumer_group",), ("consumer_group", "topic")
    return [
        Metric(
            name="rocketmq_consumer_lag_latency", kind=gauge, unit="ms", labels=group_topic,
            help="Age of the oldest unfinished message; 0 if there is none.", read=source.lag_latency,
        ),
        Metric(
            name="evenq_broker_retries_waiting", kind=gauge, unit="messages", labels=group,
            help="Failed messages that wait for their next delivery.", read=source.retries,
        ),
        Metric(
            name="evenq_broker_given_back_total", kind=counter, unit="deliveries", labels=group_topic,
            help="Deliveries that failed: the consumer gave the message back.", read=source.given_back,
        ),
        Metric(
            name="evenq_broker_timed_out_total", kind=counter, unit="deliveries", labels=group_topic,
            help="Deliveries that were not finished in time, or whose client was lost.", read=source.timed_out,
        ),
        Metric(
            name="evenq_broker_dead_letters", kind=gauge, unit="messages", labels=group,
            help="Dead letters that were not replayed.", read=source.dead_letters,
        ),
        Metric(
            name="evenq_broker_delivery_seconds", kind=histogram, unit="seconds", labels=group_topic,
            help="Time from the storing of a message to its first delivery.", read=source.ages,
        ),
        Metric(
            name="rocketmq_message_size", kind=histogram, unit="bytes", labels=("topic", "message_type"),
            help="Size of stored messages.", read=source.sizes,
        ),
    ]  # fmt: skip


def single_queue_metrics(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    lite: Lites,
    delayed_retries: DelayedRetries,
    backlog: Backlog,
) -> list[Metric]:
    """One series for each group and queue: too many for every scrape."""
    source, labels = (
        _BacklogSource(runtime, catalog, ledger, lite=lite, delayed_retries=delayed_retries, backlog=backlog),
        ("consumer_group", "topic", "queue_id"),
    )
    return [
        Metric(
            name="evenq_queue_lag_messages", kind=MetricKind.GAUGE, unit="messages", labels=labels,
            help="Unfinished messages of one queue.", read=source.queue_lags,
        ),
        Metric(
            name="evenq_queue_lag_seconds", kind=MetricKind.GAUGE, unit="seconds", labels=labels,
            help="Age of the oldest unfinished message of the queue.", read=source.queue_ages,
        ),
        Metric(
            name="evenq_queue_series_left_out", kind=MetricKind.GAUGE, unit="queues",
            help=f"Queues of groups beyond the first {QUEUE_SERIES_MAX}, which are not listed.", read=source.left_out,
        ),
    ]  # fmt: skip


def retries_waiting(catalog: Catalog, *, delayed_retries: DelayedRetries, backlog: Backlog) -> dict[str, int]:
    """Group -> messages that failed and wait for their next delivery, where there are any."""
    counts: dict[str, int] = {}
    for (group_id, _, _), waits in backlog.items():
        group = catalog.groups.by_id(group_id)
        if group is not None and waits.retries:
            counts[group.name] = counts.get(group.name, 0) + waits.retries
    for topic in catalog.topics.all():
        if topic.name.startswith(RETRY_PREFIX) and (waiting := delayed_retries.waiting(topic.topic_id)):
            name = topic.name.removeprefix(RETRY_PREFIX)
            counts[name] = counts.get(name, 0) + waiting
    return counts


class _BacklogSource:
    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        lite: Lites,
        delayed_retries: DelayedRetries,
        backlog: Backlog,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._lite, self._delayed_retries, self._backlog = lite, delayed_retries, backlog

    def lag_latency(self) -> Iterable[Sample]:
        oldest_ms: dict[tuple[int, int], int] = {}
        for (group_id, topic_id, _), waits in self._backlog.items():
            if waits.stored_ms:
                key = (group_id, topic_id)
                oldest_ms[key] = min(oldest_ms.get(key, waits.stored_ms), waits.stored_ms)
        now_ms = self._runtime.clock.now_ms()
        pairs = dict.fromkeys((queue.group_id, queue.topic_id) for queue in self._ledger.progress.queues())
        for pair in pairs:
            if (names := self._names(*pair)) is not None:
                yield names, max(0, now_ms - oldest_ms[pair]) if pair in oldest_ms else 0

    def retries(self) -> Iterable[Sample]:
        waiting = retries_waiting(self._catalog, delayed_retries=self._delayed_retries, backlog=self._backlog)
        return [((group.name,), waiting.get(group.name, 0)) for group in self._catalog.groups.all()]

    def dead_letters(self) -> Iterable[Sample]:
        return [
            ((name,), waiting_letters(self._catalog, self._ledger, name)[1])
            for name in groups_with_letters(self._catalog)
        ]

    def given_back(self) -> Iterable[Sample]:
        return self._counted("given_back")

    def timed_out(self) -> Iterable[Sample]:
        return self._counted("timed_out")

    def ages(self) -> Iterable[Sample]:
        bounds = [bound / 1000 for bound in AGE_BOUNDS_MS]
        for pair, stats in self._runtime.stats.group_topics.items():
            names = self._names(*pair)
            if names is not None and any(stats.ages):
                yield names, Distribution(bounds, tuple(stats.ages), stats.ages_total_ms / 1000)

    def sizes(self) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            stats = self._runtime.stats.topics.get(topic.topic_id)
            if stats is not None and stats.messages_in:
                labels = (topic.name, str(topic.message_type).lower())
                yield labels, Distribution(SIZE_BOUNDS, tuple(stats.sizes), stats.bytes_in)

    def queue_lags(self) -> Iterable[Sample]:
        for queue, labels in self._listed():
            low, high = self._lite.queue_range(queue.topic_id, queue.queue_id)
            yield labels, queue.lag(low, high)

    def queue_ages(self) -> Iterable[Sample]:
        waits, now_ms = dict(self._backlog.items()), self._runtime.clock.now_ms()
        for queue, labels in self._listed():
            wait = waits.get((queue.group_id, queue.topic_id, queue.queue_id))
            known = wait is not None and wait.stored_ms
            yield labels, max(0, now_ms - wait.stored_ms) / 1000 if wait is not None and known else 0

    def left_out(self) -> Iterable[Sample]:
        return [((), max(0, sum(1 for _ in self._ledger.progress.queues()) - QUEUE_SERIES_MAX))]

    def _listed(self) -> Iterator[tuple[QueueProgress, tuple[str, ...]]]:
        for queue in islice(self._ledger.progress.queues(), QUEUE_SERIES_MAX):
            if (names := self._names(queue.group_id, queue.topic_id)) is not None:
                yield queue, (*names, str(queue.queue_id))

    def _counted(self, name: str) -> Iterable[Sample]:
        for pair, stats in self._runtime.stats.group_topics.items():
            if (names := self._names(*pair)) is not None:
                yield names, getattr(stats, name)

    def _names(self, group_id: int, topic_id: int) -> tuple[str, str] | None:
        group, topic = self._catalog.groups.by_id(group_id), self._catalog.topics.by_id(topic_id)
        return None if group is None or topic is None else (group.name, topic.name)
