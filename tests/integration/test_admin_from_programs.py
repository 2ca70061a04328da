"""Real processes: what operators do on the command line, from a program, in both faces of the SDK."""

from __future__ import annotations

import asyncio

import pytest

import evenq
from evenq import aio
from evenq.errors import RequestTimeout
from evenq.model import BalancePolicy
from evenq.testing import LocalCluster

pytestmark = pytest.mark.integration


def test_a_program_resizes_topics_drains_brokers_and_asks_why() -> None:
    with LocalCluster(brokers=2, rebalancer=True) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_group("billing", strategy="STICKY", start_from="FIRST", balance=BalancePolicy(moves_max=3))
        assert [group.balance.moves_max for group in admin.list_groups() if group.group == "billing"] == [3]
        with pytest.raises(evenq.errors.BadRequest):
            admin.permit_topic("orders", "sometimes")
        assert {view.permission for view in admin.permit_topic("orders", "read")} == {"READ"}
        assert {view.permission for view in admin.permit_topic("orders", "READ_WRITE")} == {"READ_WRITE"}
        assert [view.read_queues for view in admin.scale_topic("orders", queues=4)] == [4, 4]

        consumer = evenq.PullConsumer(group="billing", endpoint=cluster.endpoint, subscriptions={"orders": "*"})
        with evenq.Producer(endpoint=cluster.endpoint) as producer, consumer:
            for number in range(64):
                producer.send(evenq.Message(topic="orders", body=b"%d" % number))
            seen = 0
            while seen < 64:
                seen += len(consumer.poll())
            consumer.commit()
            why = admin.explain_group("billing", topic="orders")
            assert (why.decides, why.strategy) == ("the rebalancer", "STICKY")
            assert {(row.owner, row.state) for row in why.queues} == {(consumer.client_id, "OWNED")}
            (then,) = admin.simulate_group("billing", topic="orders", members=2)
            assert (then.queues, then.share_min, then.share_max, then.moved) == (8, 3, 5, 3), (
                "within its budget of moves"
            )
            assert all(view.done for view in admin.scale_topic("orders", queues=1, wait_ms=30_000))
            producer.send(evenq.Message(topic="orders", body=b"last"))

        async def later() -> None:
            async with aio.Admin(endpoint=cluster.endpoint) as other:
                name = (await other.describe_topic("orders")).queues[0].queue.broker_name
                assert (await other.drain_broker(name)).draining
                assert not (await other.resume_broker(name)).draining
                await other.create_group("billing", balance=BalancePolicy(moves_max=5))
                assert (await other.describe_group("billing")).summary.balance.moves_max == 5
                assert await other.simulate_group("billing", members=3)
                holding = (await other.describe_group("billing")).queues
                name = next(one.queue.broker_name for one in holding if one.lag)
                with pytest.raises(RequestTimeout, match="billing 1"):
                    await other.drain_broker(name, wait_ms=600)

        asyncio.run(later())
