"""The metrics of transactions; `metrics.py` lists them with the others. Read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evenq.model import MessageType
from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.transactions.transactions import Transactions

__all__ = ["transaction_metrics"]

_TYPES = {MessageType.TRANSACTION, MessageType.MIXED}


def transaction_metrics(catalog: Catalog, *, transactions: Transactions) -> list[Metric]:
    """What an operator of transactions looks at."""
    source = _TransactionSource(catalog, transactions=transactions)
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    return [
        Metric(
            name="rocketmq_half_messages", kind=gauge, unit="messages", labels=("topic",), help="Open transactions.",
            read=source.half_messages,
        ),
        Metric(
            name="rocketmq_commit_messages_total", kind=counter, unit="messages", labels=("topic",),
            help="Transactions committed.", read=source.committed,
        ),
        Metric(
            name="rocketmq_rollback_messages_total", kind=counter, unit="messages", labels=("topic",),
            help="Transactions rolled back.", read=source.rolled_back,
        ),
        Metric(
            name="evenq_broker_transaction_checks_total", kind=counter, unit="checks", labels=("result",),
            help="Checks sent to a producer here, relayed by another broker, or missed (no producer connected).",
            read=source.checks,
        ),
        Metric(
            name="evenq_broker_transactions_given_up_total", kind=counter, unit="messages", labels=(),
            help="Transactions that no producer decided, moved to TRANS_CHECK_MAX_TIME_TOPIC.", read=source.given_up,
        ),
        Metric(
            name="evenq_broker_transaction_conflicts_total", kind=counter, unit="calls", labels=(),
            help="Commits after a rollback, or rollbacks after a commit; they are ignored.", read=source.conflicts,
        ),
    ]  # fmt: skip


class _TransactionSource:
    def __init__(self, catalog: Catalog, *, transactions: Transactions) -> None:
        self._catalog = catalog
        self._transactions = transactions

    def half_messages(self) -> Iterable[Sample]:
        counts: dict[int, int] = {}
        for _, half in self._transactions.table.all():
            counts[half.topic_id] = counts.get(half.topic_id, 0) + 1
        return self._by_topic(counts)

    def committed(self) -> Iterable[Sample]:
        return self._by_topic(self._transactions.stats.committed)

    def rolled_back(self) -> Iterable[Sample]:
        return self._by_topic(self._transactions.stats.rolled_back)

    def checks(self) -> Iterable[Sample]:
        stats = self._transactions.stats
        return [(("sent",), stats.checks), (("relayed",), stats.relayed), (("missed",), stats.missed)]

    def given_up(self) -> Iterable[Sample]:
        return [((), self._transactions.stats.given_up)]

    def conflicts(self) -> Iterable[Sample]:
        return [((), self._transactions.stats.conflicts)]

    def _by_topic(self, counts: Mapping[int, int]) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            if topic.message_type in _TYPES or topic.topic_id in counts:
                yield (topic.name,), counts.get(topic.topic_id, 0)
