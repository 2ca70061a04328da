"""Lite topics through both faces of the SDK and the command line, on two real brokers (wire contract 3.14, 5.6)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest
from evenq_proofs.command_line import evenq_json, run_evenq

import evenq
import evenq.aio
from evenq.testing import LocalCluster

FAST = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}
NAMES = [f"chat-{number}" for number in range(8)]
DEADLINE_S = 60


pytestmark = pytest.mark.cluster(brokers=2, rebalancer=False, nameserver_settings=FAST)


def made(cluster: LocalCluster, topic: str) -> str:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, message_type="LITE")
    return topic


def send(endpoint: str, topic: str, bodies: Sequence[int], names: Sequence[str] = NAMES) -> None:
    options = evenq.ProducerOptions(max_attempts=20)
    with evenq.Producer(endpoint=endpoint, options=options) as producer:
        producer.send_batch(
            evenq.Message(topic=topic, body=b"%d" % body, lite_topic=name) for body in bodies for name in names
        )


def take(consumer: evenq.LiteSimpleConsumer, count: int) -> dict[str, list[int]]:
    taken: dict[str, list[int]] = defaultdict(list)
    while sum(map(len, taken.values())) < count:
        messages = consumer.receive(wait_ms=10_000)
        assert messages, dict(taken)
        for message in messages:
            taken[message.lite_topic or ""].append(int(message.body))
            consumer.ack(message)
    return taken


@pytest.mark.parametrize("through", [0, 1])
def test_47_what_two_brokers_have_comes_in_order_through_either(cluster: LocalCluster, through: int) -> None:
    topic = made(cluster, f"either-{through}")
    send(cluster.brokers[1 - through].address, topic, range(20))
    endpoint = cluster.brokers[through].address
    with evenq.LiteSimpleConsumer(group=topic, topic=topic, lite_topics=NAMES[:4], endpoint=endpoint) as consumer:
        assert take(consumer, 80) == {name: list(range(20)) for name in NAMES[:4]}
        consumer.subscribe_lite(*NAMES[4:], start_tail=2)
        assert consumer.lite_topics == NAMES
        assert take(consumer, 8) == {name: [18, 19] for name in NAMES[4:]}
        consumer.unsubscribe_lite(*NAMES)
        assert consumer.receive(wait_ms=50) == []


def test_two_members_share_lite_topics_and_keep_their_order(cluster: LocalCluster) -> None:
    topic = made(cluster, "shared")
    seen: dict[str, list[int]] = defaultdict(list)
    done, guard = threading.Event(), threading.Lock()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        [message] = messages
        with guard:
            seen[message.lite_topic or ""].append(int(message.body))
            if sum(map(len, seen.values())) == 30 * len(NAMES):
                done.set()

    def member(number: int) -> evenq.LitePushConsumer:
        endpoint = cluster.brokers[number].address
        return evenq.LitePushConsumer(group=topic, topic=topic, listener=listen, lite_topics=NAMES, endpoint=endpoint)

    with member(0), member(1):
        send(cluster.endpoint, topic, range(30))
        assert done.wait(DEADLINE_S)
    assert seen == {name: list(range(30)) for name in NAMES}


@pytest.mark.slow
def test_after_both_brokers_started_again_subscriptions_and_order_go_on(cluster: LocalCluster) -> None:
    """No broker is left that knows the sets: the client tells it as soon as its line is open again."""
    topic = made(cluster, "restarted")
    endpoints = ";".join(broker.address for broker in cluster.brokers)
    seen: dict[str, list[int]] = defaultdict(list)
    changed = threading.Condition()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        with changed:
            seen[messages[0].lite_topic or ""].append(int(messages[0].body))
            changed.notify_all()

    def until_all(*bodies: int) -> None:
        with changed:
            assert changed.wait_for(lambda: all(set(seen[name]) >= set(bodies) for name in NAMES), DEADLINE_S)

    with evenq.LitePushConsumer(group=topic, topic=topic, listener=listen, lite_topics=NAMES, endpoint=endpoints):
        send(endpoints, topic, [1, 2])
        until_all(1, 2)
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.restart()
        send(endpoints, topic, [3, 4])
        until_all(1, 2, 3, 4)
    assert {name: list(dict.fromkeys(bodies)) for name, bodies in seen.items()} == {
        name: [1, 2, 3, 4] for name in NAMES
    }


async def test_46_the_asyncio_face_hears_that_its_topic_was_deleted(cluster: LocalCluster) -> None:
    topic = made(cluster, "deleted")
    ended: asyncio.Queue[str] = asyncio.Queue()
    async with evenq.aio.LiteSimpleConsumer(
        group=topic,
        topic=topic,
        lite_topics=["ann"],
        endpoint=cluster.endpoint,
        on_unsubscribed=ended.put,
        options=evenq.LiteOptions(sync_interval_ms=1_000),
    ) as consumer:
        async with evenq.aio.Producer(endpoint=cluster.endpoint) as producer:
            await producer.send(evenq.Message(topic=topic, body=b"hello", lite_topic="ann"))
        [message] = await consumer.receive()
        await consumer.ack(message)
        async with evenq.aio.Admin(endpoint=cluster.endpoint) as admin, asyncio.timeout(DEADLINE_S):
            await admin.delete_topic(topic)  # whether its stream is open already or not
            assert await ended.get() == "ann"
            assert consumer.lite_topics == []


def test_errors_name_the_limit(cluster: LocalCluster) -> None:
    topic = made(cluster, "limits")
    with evenq.LiteSimpleConsumer(group=topic, topic=topic, endpoint=cluster.endpoint) as consumer:
        with pytest.raises(evenq.errors.LiteSubscriptionQuotaExceeded, match="lite_subscriptions_max, 2000"):
            consumer.subscribe_lite(*(f"n{number}" for number in range(2_001)))
        assert consumer.lite_topics == []
        consumer.subscribe_lite(*(f"n{number}" for number in range(2_000)))
        with pytest.raises(evenq.errors.IllegalLiteTopic, match="65 characters, the limit is 64"):
            consumer.subscribe_lite("x" * 65)
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("plain")
    with pytest.raises(evenq.errors.IllegalTopic, match="evenq topic create NAME --type lite"):
        evenq.LiteSimpleConsumer(group="plain", topic="plain", endpoint=cluster.endpoint)


@pytest.mark.slow
def test_the_command_line_sends_to_a_lite_topic_lists_it_and_receives(cluster: LocalCluster) -> None:
    topic = made(cluster, "typed")

    said = partial(run_evenq, endpoint=cluster.endpoint)

    said("produce", topic, "--body", "hello", "--lite-topic", "ann")
    output = evenq_json("topic", "list", "--lite", endpoint=cluster.endpoint)
    assert any("ann" in json.dumps(row) for row in output["lite_topics"])
    came = json.loads(said("consume", topic, "--group", topic, "--lite-topic", "ann", "--max", "1", "--json"))
    assert (came["body"], came["lite_topic"]) == ("hello", "ann")
