"""Real processes: what operators do on the command line, from a program, in both faces of the SDK."""

from __future__ import annotations

import pytest

import evenq
from evenq import aio
from evenq.errors import RequestTimeout
from evenq.model import BalancePolicy, FilterExpression
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster


@pytest.mark.slow
async def test_a_program_resizes_topics_drains_brokers_and_asks_why() -> None:
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


@pytest.mark.slow
def test_a_program_looks_at_messages_clients_and_offsets() -> None:
    with LocalCluster(brokers=2) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("orders", queues=1)
        admin.create_topic("calls", queues=1, message_type="DELAY")
        admin.create_group("billing", start_from="FIRST")
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            sent = [
                producer.send(evenq.Message(topic="orders", body=b"order %d" % number, keys=[f"k{number}"], tag="new"))
                for number in range(6)
            ]
            due_ms = SystemClock().now_ms() + 3_600_000
            delayed = producer.send(evenq.Message(topic="calls", body=b"ring", delivery_ms=due_ms))

        message = admin.get_message(sent[3].message_id)
        assert (message.body, message.keys, message.tag, message.queue) == (b"order 3", ("k3",), "new", sent[3].queue)
        at = admin.get_message(topic="orders", queue=sent[3].queue, offset=sent[3].offset, body_max=5)
        assert (at.message_id, at.body, at.body_bytes) == (sent[3].message_id, b"order", 7)
        with pytest.raises(evenq.errors.MessageNotFound):
            admin.get_message("nowhere", topic="orders")
        assert [one.body for one in admin.find_messages("orders", key="k2").messages] == [b"order 2"]
        first = admin.find_messages("orders", limit=4)
        rest = admin.find_messages("orders", limit=4, after=first.positions)
        assert first.more
        assert {one.message_id for one in (*first.messages, *rest.messages)} == {one.message_id for one in sent}
        (newest,) = admin.peek_messages("orders", limit=1).messages
        assert newest.store_ms == max(one.store_ms for one in (*first.messages, *rest.messages))  # two may share it

        assert delayed.recall_handle
        assert not sent[0].recall_handle
        assert admin.recall_message("calls", delayed.recall_handle) == delayed.message_id
        with pytest.raises(evenq.errors.BadRequest, match="not of topic"):
            admin.recall_message("orders", delayed.recall_handle)

        with evenq.SimpleConsumer(
            group="billing", endpoint=cluster.endpoint, subscriptions={"orders": "*"}
        ) as consumer:
            got = consumer.receive(1, invisible_ms=30_000, wait_ms=5_000)
            (member,) = admin.list_clients(group="billing").clients
            assert (member.client_id, member.protocol, member.kind) == (consumer.client_id, "v2", "SIMPLE_CONSUMER")
            assert [one.group for one in admin.describe_client(member.client_id)] == ["billing"]
            (trace,) = admin.trace_message(got[0].message_id, group="billing").traces
            assert [(one.group, one.state) for one in trace.groups] == [("billing", "IN_FLIGHT")]
            assert [one.what for one in trace.events][:2] == ["STORED", "DELIVERED"]
            consumer.ack(got[0])
        there = sum(one.queue == got[0].queue for one in sent)
        with pytest.raises(evenq.errors.NotFound, match="no client 'nobody'"):
            admin.describe_client("nobody")

        offsets = admin.group_offsets("billing", topic="orders")
        assert {one.queue: one.lag for one in offsets if one.lag} == {got[0].queue: there - 1}
        assert all(one.next_store_ms for one in offsets if one.lag)
        ahead = next(one for one in offsets if one.lag)
        plan = admin.skip_offsets("billing", topic="orders", queues=[ahead.queue], count=1)
        assert [(move.queue, move.after - move.before) for move in plan] == [(ahead.queue, 1)]
        assert admin.group_offsets("billing", topic="orders") == offsets, "only a plan"
        admin.skip_offsets("billing", topic="orders", dry_run=False)
        assert sum(one.lag for one in admin.group_offsets("billing")) == 0
        admin.create_group("audit")
        admin.clone_offsets("audit", like_group="billing", topic="orders", dry_run=False)
        assert {one.committed for one in admin.group_offsets("audit")} == {
            one.committed for one in admin.group_offsets("billing")
        }


async def test_a_program_replays_dead_letters_in_both_faces() -> None:
    with LocalCluster(brokers=1) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("orders", queues=1)
        admin.create_group("billing", start_from="FIRST", max_attempts=1)
        with (
            evenq.Producer(endpoint=cluster.endpoint) as producer,
            evenq.SimpleConsumer(group="billing", endpoint=cluster.endpoint, subscriptions={"orders": "*"}) as consumer,
        ):
            for body in (b"first", b"second"):
                producer.send(evenq.Message(topic="orders", body=body, properties={"region": body.decode()}))
            taken = 0
            while taken < 2:
                taken += len(consumer.receive(2, invisible_ms=1_000, wait_ms=5_000))
            until_ms = SystemClock().monotonic_ms() + 20_000
            while sum(one.waiting for one in admin.list_dead_letters("billing").counts) < 2:
                assert SystemClock().monotonic_ms() < until_ms, admin.list_dead_letters("billing")
                consumer.receive(1, invisible_ms=1_000, wait_ms=500)
            letters = admin.list_dead_letters("billing", bodies=True).letters
            assert {one.body for one in letters} == {b"first", b"second"}
            assert {(one.origin.topic, one.reason) for one in letters} == {("orders", "attempts")}
            (done,) = admin.replay_dead_letters("billing", filter=FilterExpression.sql("region = 'first'"))
            assert (done.replayed, done.left_out, done.failed, done.done) == (1, 1, 0, True)
            assert [one.body for one in consumer.receive(2, invisible_ms=30_000, wait_ms=5_000)] == [b"first"]
        seen: list[int] = []
        async with aio.Admin(endpoint=cluster.endpoint) as other:
            (view,) = await other.replay_dead_letters("billing", on_progress=lambda at: seen.append(at.replayed))
            assert view.replayed == 1
            assert seen[-1] == 1
            assert not (await other.list_dead_letters("billing", waiting=True)).letters
