"""Metrics of the messages that groups have not finished.

They show a group that fails every message: deliveries given back and timed out, waiting retries, the age of the oldest
unread message, dead letters that were not replayed. `loops.diagnosis.watching` measures ages and retries. Single queues
have a page of their own, `/metrics/queues`, for one group or a slow scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from evenq.model.names import RETRY_PREFIX, table_group
from evenq.serving.program.metrics import Distribution, Metric, Sample, counter, gauge, histogram
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.diagnosis.backlog import Backlog
from evenq_broker.loops.dead_letters.replay import groups_with_letters, waiting_letters
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.stats import AGE_BOUNDS_MS, SIZE_BOUNDS

if TYPE_CHECKING:
    from evenq_broker.core.delivery.queue_progress import QueueProgress

QUEUE_SERIES_MAX = 50_000
"""Most queues of groups on `/metrics/queues`: about 8 MB."""


def backlog_metrics(kernel: Kernel, *, lite: Lites, delayed_retries: DelayedRetries, backlog: Backlog) -> list[Metric]:
    source = _BacklogSource(kernel, lite=lite, delayed_retries=delayed_retries, backlog=backlog)
    group, group_topic = ("consumer_group",), ("consumer_group", "topic")
    return [
        gauge("rocketmq_consumer_lag_latency", "ms", *group_topic).series(
            source.lag_latency, "Age of the oldest unfinished message; 0 if there is none."
        ),
        gauge("evenq_broker_retries_waiting", "messages", *group).series(
            source.retries, "Failed messages that wait for redelivery."
        ),
        counter("evenq_broker_given_back_total", "deliveries", *group_topic).series(
            source.given_back, "Failed deliveries: the consumer gave the message back."
        ),
        counter("evenq_broker_timed_out_total", "deliveries", *group_topic).series(
            source.timed_out, "Deliveries that were not finished in time, or whose client was lost."
        ),
        counter("evenq_table_deleted_messages_total", "messages", "topic").series(
            source.unexported, "Messages that retention deleted although they were in no file of the topic's table."
        ),
        gauge("evenq_broker_dead_letters", "messages", *group).series(
            source.dead_letters, "Dead letters that were not replayed."
        ),
        *_histograms(source),
    ]


def _histograms(source: _BacklogSource) -> list[Metric]:
    return [
        histogram("evenq_broker_delivery_seconds", "seconds", "consumer_group", "topic").series(
            source.ages, "Time between the storing of a message and its first delivery."
        ),
        histogram("rocketmq_message_size", "bytes", "topic", "message_type").series(
            source.sizes, "Size of stored messages."
        ),
    ]


def single_queue_metrics(
    kernel: Kernel, *, lite: Lites, delayed_retries: DelayedRetries, backlog: Backlog
) -> list[Metric]:
    """Returns metrics with one series for each group and queue: too many for every scrape."""
    source, labels = (
        _BacklogSource(kernel, lite=lite, delayed_retries=delayed_retries, backlog=backlog),
        ("consumer_group", "topic", "queue_id"),
    )
    return [
        gauge("evenq_queue_lag_messages", "messages", *labels).series(
            source.queue_lags, "Unfinished messages of one queue."
        ),
        gauge("evenq_queue_lag_seconds", "seconds", *labels).series(
            source.queue_ages, "Age of the oldest unfinished message of the queue."
        ),
        gauge("evenq_queue_series_left_out", "queues").series(
            source.left_out, f"Queues of groups that are not listed: those after the first {QUEUE_SERIES_MAX}."
        ),
    ]


def retries_waiting(catalog: Catalog, *, delayed_retries: DelayedRetries, backlog: Backlog) -> dict[str, int]:
    """Group -> failed messages that wait for redelivery, for groups that have any."""
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
    def __init__(self, kernel: Kernel, *, lite: Lites, delayed_retries: DelayedRetries, backlog: Backlog) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
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
        return [((name,), waiting_letters(self._kernel, name)[1]) for name in groups_with_letters(self._catalog)]

    def unexported(self) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            stats = self._runtime.stats.topics.get(topic.topic_id)
            if self._catalog.groups.get(table_group(topic.name)) is not None:
                yield (topic.name,), stats.unexported if stats is not None else 0

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
