"""Real processes: topics on chosen brokers (TQ-1, TQ-4), topics that leave a broker, topics of mixed messages."""

from __future__ import annotations

import json
import subprocess

import pytest
from evenq_proofs.command_line import evenq_process

import evenq
from evenq.errors import BadRequest, MessageTypeConflict, NotFound, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster

pytestmark = pytest.mark.cluster(brokers=2)


def places(admin: evenq.Admin, topic: str) -> dict[str, int]:
    """Broker -> its queues."""
    found: dict[str, int] = {}
    for at in admin.describe_topic(topic).queues:
        found[at.queue.broker_name] = found.get(at.queue.broker_name, 0) + 1
    return found


def run(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return evenq_process(*words, endpoint=cluster.endpoint)


@pytest.mark.slow
def test_a_topic_is_where_it_was_put_and_stays_there_tq_1_tq_4() -> None:
    with LocalCluster(brokers=3) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        names = [broker.name for broker in cluster.brokers]
        made = run(cluster, "topic", "create", "orders", "--broker", f"{names[0]}:3", "--broker", names[2], "--queues",
                   "1", "--json")  # fmt: skip
        assert made.returncode == 0, made.stderr
        output = json.loads(made.stdout)
        assert [(one["broker"], one["queues"]) for one in output["brokers"]] == [(names[0], 3), (names[2], 1)]
        assert places(admin, "orders") == {names[0]: 3, names[2]: 1}

        used: set[str] = set()
        with evenq.Producer(endpoint=cluster.brokers[1].address) as producer:  # the one that has no queue of it
            for number in range(24):
                used.add(producer.send(evenq.Message(topic="orders", body=b"%d" % number)).queue.broker_name)
        assert used == {names[0], names[2]}
        with pytest.raises(NotFound, match="nowhere; the cluster has"):
            admin.create_topic("orders", brokers={"nowhere": 1})
        assert run(cluster, "topic", "create", "x", "--broker", "b:0").returncode == 2

        admin.create_topic("orders", queues=2)  # without brokers: wider where it is, and nowhere else
        assert places(admin, "orders") == {names[0]: 3, names[2]: 2}
        cluster.brokers[0].kill()
        cluster.brokers[0].restart()
        admin.create_topic("orders", brokers={names[1]: 2})
        assert places(admin, "orders") == {names[0]: 3, names[1]: 2, names[2]: 2}


@pytest.mark.slow
def test_a_topic_leaves_a_broker_when_it_is_read_there(cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        leaving, staying = (broker.name for broker in cluster.brokers)
        admin.create_topic("parcels", queues=1)
        admin.create_group("shipping", start_from="FIRST")
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for number in range(20):
                producer.send(evenq.Message(topic="parcels", body=b"%d" % number))

            view = admin.withdraw_topic("parcels", broker=leaving, dry_run=True)
            assert (view.gone, places(admin, "parcels")) == (False, {leaving: 1, staying: 1})
            view = admin.withdraw_topic("parcels", broker=leaving)
            assert not view.gone
            assert view.unread == view.stored > 0
            refused = run(cluster, "topic", "scale", "parcels", "--queues", "0", "--broker", leaving)
            assert (refused.returncode, "add --yes" in refused.stderr) == (1, True), refused.stderr

            consumer = evenq.PullConsumer(group="shipping", endpoint=cluster.endpoint, subscriptions={"parcels": "*"})
            with consumer:
                first = consumer.poll()
                seen = len(first)
                consumer.commit()
                if all(message.queue.broker_name == staying for message in first):  # the other queue is not read yet
                    with pytest.raises(RequestTimeout, match="shipping"):
                        admin.withdraw_topic("parcels", broker=leaving, close_unread=True, wait_ms=300)
                while seen < 20:
                    seen += len(consumer.poll())
                consumer.commit()
                done = run(cluster, "topic", "scale", "parcels", "--queues", "0", "--broker", leaving, "--yes")
                assert done.returncode == 0, done.stderr
                assert f"was removed from {leaving}" in done.stdout
                assert places(admin, "parcels") == {staying: 1}
                for number in range(20, 30):  # a producer that had its route before
                    assert (
                        producer.send(evenq.Message(topic="parcels", body=b"%d" % number)).queue.broker_name == staying
                    )
                while seen < 30:
                    seen += len(consumer.poll())
        with evenq.Producer(endpoint=cluster.brokers[0].address) as producer:  # asks the broker that it left
            producer.send(evenq.Message(topic="parcels", body=b"after"))
        assert places(admin, "parcels") == {staying: 1}, "use does not bring it back"
        with pytest.raises(BadRequest, match="alone"):
            admin.withdraw_topic("parcels", broker=staying)
        with pytest.raises(BadRequest, match="one broker at a time"):
            admin.scale_topic("parcels", queues=0)


def test_a_delayed_message_keeps_its_topic_on_a_broker(cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("calls", queues=1, message_type="MIXED")
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            sent = producer.send(
                evenq.Message(topic="calls", body=b"ring", delivery_ms=SystemClock().now_ms() + 3_600_000)
            )
        broker = sent.queue.broker_name
        assert (admin.withdraw_topic("calls", broker=broker).delayed, broker in places(admin, "calls")) == (1, True)
        admin.recall_message("calls", sent.recall_handle)
        assert admin.withdraw_topic("calls", broker=broker, wait_ms=10_000).gone


@pytest.mark.slow
def test_a_normal_topic_takes_delayed_messages_when_its_owner_says_so(cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("orders", queues=1)
        due_ms = SystemClock().now_ms() + 1_500
        late = evenq.Message(topic="orders", body=b"late", delivery_ms=due_ms)
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            with pytest.raises(MessageTypeConflict, match="evenq topic create orders --type MIXED"):
                producer.send(late)
            with pytest.raises(MessageTypeConflict, match="accept both: --type MIXED"):
                admin.create_topic("orders", message_type="DELAY")
            assert run(cluster, "topic", "create", "orders", "--type", "mixed").returncode == 0
            assert admin.describe_topic("orders").message_type == "MIXED"
            producer.send(evenq.Message(topic="orders", body=b"now"))
            producer.send(late)
            producer.send(evenq.Message(topic="orders", body=b"ordered", message_group="g"))
        admin.create_group("billing", start_from="FIRST")
        with evenq.SimpleConsumer(
            group="billing", endpoint=cluster.endpoint, subscriptions={"orders": "*"}
        ) as consumer:
            got: dict[bytes, int] = {}
            while len(got) < 3:
                for message in consumer.receive(3, invisible_ms=30_000, wait_ms=5_000):
                    got[message.body] = SystemClock().now_ms()
                    consumer.ack(message)
        assert got[b"late"] >= due_ms
        for broker in cluster.brokers:  # it is reported, and kept
            broker.kill()
            broker.restart()
        admin.create_topic("orders", queues=2)
        assert admin.describe_topic("orders").message_type == "MIXED"
