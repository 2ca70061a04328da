"""Each topic that may hold transactions has its numbers from the first scrape on."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_broker.metrics.transaction_metrics import transaction_metrics

from evenq.model import MessageType

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def test_open_and_ended_transactions_are_told_by_topic(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("payments", message_type=MessageType.TRANSACTION))
    await stage.during(broker.catalog.create_topic("plain"))
    broker.transactions.table.begin(5, topic.topic_id, first_ms=0, due_ms=1)
    broker.transactions.stats.committed[topic.topic_id] = 3
    broker.transactions.stats.missed = 2
    found = {
        metric.name: list(metric.read())
        for metric in transaction_metrics(broker.catalog, transactions=broker.transactions)
    }
    assert found["rocketmq_half_messages"] == [(("payments",), 1)]
    assert found["rocketmq_commit_messages_total"] == [(("payments",), 3)]
    assert found["rocketmq_rollback_messages_total"] == [(("payments",), 0)]
    assert found["evenq_broker_transaction_checks_total"] == [(("sent",), 0), (("relayed",), 0), (("missed",), 2)]
