"""The metrics of queue counts and permissions (RT-8, TQ-14); `metrics.py` lists them with the others."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.resizing.resizing import stranded
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["queue_metrics"]


def queue_metrics(runtime: Runtime, catalog: Catalog, ledger: Ledger, *, membership: GroupTables) -> list[Metric]:
    """What an operator who resizes topics or drains brokers looks at."""
    source, gauge = _QueueSource(runtime, catalog, ledger, membership=membership), MetricKind.GAUGE
    return [
        Metric(
            name="evenq_topic_write_queues", kind=gauge, unit="queues", labels=("topic",),
            help="Queues that accept messages.", read=source.write_queues,
        ),
        Metric(
            name="evenq_topic_read_queues", kind=gauge, unit="queues", labels=("topic",),
            help="Queues that can be read.", read=source.read_queues,
        ),
        Metric(
            name="evenq_topic_stranded_messages", kind=gauge, unit="messages", labels=("topic",),
            help="Unread messages in closed queues.", read=source.stranded,
        ),
        Metric(
            name="evenq_broker_draining", kind=gauge, unit="brokers", labels=(),
            help="1 while this broker is drained and accepts no messages.", read=source.draining,
        ),
    ]  # fmt: skip


class _QueueSource:
    def __init__(self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, membership: GroupTables) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._membership = membership

    def write_queues(self) -> Iterable[Sample]:
        closed = self._catalog.draining
        for topic in self._catalog.topics.all():
            yield (topic.name,), topic.write_queues if topic.permission.writable and not closed else 0

    def read_queues(self) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            yield (topic.name,), topic.read_queues if topic.permission.readable else 0

    def stranded(self) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            if topic.closed or not topic.permission.readable:
                yield (
                    (topic.name,),
                    stranded(self._runtime, self._catalog, self._ledger, topic, membership=self._membership),
                )

    def draining(self) -> Iterable[Sample]:
        return [((), int(self._catalog.draining))]
