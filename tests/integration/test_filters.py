"""SQL filters against real processes: the generated stubs of v2, `evenq.v1` and the SDK (wire contract 5.4)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_json, evenq_process
from evenq_proofs.nets import open_net
from evenq_proofs.waiting import until

import evenq
from evenq import FilterExpression
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.convert import set_duration_ms
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
LARGE_EU = "region = 'eu' AND amount BETWEEN 50 AND 1e2"
BAD = "region LIKE 'e%'"


pytestmark = pytest.mark.cluster(brokers=2, broker_settings={"DEFAULT_START_FROM": "FIRST", "DEFAULT_QUEUES": "2"})


QUEUES = 8
"""Of a topic that its first message makes, on one broker."""


def fill(cluster: LocalCluster, topic: str, count: int = 200) -> set[bytes]:
    """Messages 0.. with an amount, a region and a tag; the bodies that LARGE_EU wants."""
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send_batch(
            evenq.Message(
                topic=topic,
                body=b"%d" % number,
                tag=("red", "blue")[number % 2],
                properties={"amount": str(number), "region": ("eu", "us", "asia")[number % 3]},
            )
            for number in range(count)
        )
    return {b"%d" % number for number in range(50, 101) if number % 3 == 0}


def test_a_push_consumer_hears_only_what_its_expression_wants(cluster: LocalCluster) -> None:
    expected = fill(cluster, "sql-push")
    heard: list[bytes] = []
    lock = threading.Lock()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        with lock:
            heard.extend(message.body for message in messages)

    wanted = {"sql-push": FilterExpression.sql(LARGE_EU)}
    with evenq.PushConsumer(
        group="sql-push", endpoint=cluster.endpoint, listener=listen, subscriptions=wanted, start_from="FIRST"
    ):
        until(lambda: len(heard) >= len(expected), what=f"{len(heard)} of {len(expected)}")
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for region in ("us", "eu"):
                properties = {"region": region, "amount": "60.5"}
                producer.send(evenq.Message(topic="sql-push", body=region.encode(), properties=properties))
        until(lambda: b"eu" in heard, what="what comes later")
    assert sorted(heard) == sorted([*expected, b"eu"])


def test_a_simple_consumer_filters_by_tag_and_property_and_is_told_what_is_wrong(cluster: LocalCluster) -> None:
    fill(cluster, "sql-simple")
    wanted = {"sql-simple": FilterExpression.sql("TAGS = 'red' AND NOT (region IN ('eu', 'us')) AND amount < 20")}
    found: set[bytes] = set()
    with evenq.SimpleConsumer(group="sql-simple", endpoint=cluster.endpoint, subscriptions=wanted) as consumer:
        for _ in range(4):
            for message in consumer.receive(wait_ms=1_000):
                found.add(message.body)
                consumer.ack(message)
    assert found == {b"2", b"8", b"14"}
    wrong = {"sql-simple": FilterExpression.sql(BAD)}
    with (
        evenq.SimpleConsumer(group="sql-wrong", endpoint=cluster.endpoint, subscriptions=wrong) as consumer,
        pytest.raises(evenq.errors.IllegalFilterExpression, match="column 8: LIKE is not known"),
    ):
        consumer.receive(wait_ms=0)


async def _frames(net: GrpcNet, address: str, method: str, request: Any, response: Any) -> list[Any]:
    metadata = {"x-mq-client-id": "stub", "x-mq-language": "JAVA"}
    stream = net.stream(address, V2 + method, request.SerializeToString(), timeout_ms=60_000, metadata=metadata)
    return [response.FromString(frame) async for frame in stream]


async def _through_the_stubs(
    addresses: list[str], topic: str, expression: str
) -> tuple[list[int], list[bytes], list[bytes]]:
    """Codes of a bad expression; bodies by PullMessage and by Pull, of all queues of all brokers."""
    async with open_net() as net:
        receive = service_pb2.ReceiveMessageRequest(batch_size=8)
        receive.group.name, receive.message_queue.topic.name, receive.message_queue.id = "sql-stub", topic, -1
        receive.filter_expression.type, receive.filter_expression.expression = definition_pb2.SQL, BAD
        set_duration_ms(receive.invisible_duration, 10_000)
        bad = await _frames(net, addresses[0], "ReceiveMessage", receive, service_pb2.ReceiveMessageResponse)
        by_v2: list[bytes] = []
        by_evenq: list[bytes] = []
        response = common_pb2.Filter(type=common_pb2.Filter.SQL, expression=expression)
        for address, queue_id in product(addresses, range(QUEUES)):
            pull = service_pb2.PullMessageRequest(offset=0, batch_size=32, message_queue=receive.message_queue)
            pull.message_queue.id = queue_id
            pull.filter_expression.type, pull.filter_expression.expression = definition_pb2.SQL, expression
            pulled = await _frames(net, address, "PullMessage", pull, service_pb2.PullMessageResponse)
            by_v2 += [frame.message.body for frame in pulled if frame.HasField("message")]
            request = data_pb2.PullRequest(queue=common_pb2.Queue(topic=topic, queue_id=queue_id), filter=response)
            data = await net.unary(address, "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000)
            by_evenq += [message.body for message in data_pb2.PullResponse.FromString(data).messages]
        return [frame.status.code for frame in bad], by_v2, by_evenq


def test_the_stubs_of_both_protocols_get_the_same(cluster: LocalCluster) -> None:
    expected = fill(cluster, "sql-stub")
    addresses = [broker.address for broker in cluster.brokers]
    codes, by_v2, by_evenq = asyncio.run(_through_the_stubs(addresses, "sql-stub", LARGE_EU))
    assert codes == [40010]
    assert by_v2 == by_evenq
    assert by_v2
    assert set(by_v2) <= expected


def test_the_command_line_consumes_what_an_expression_wants(cluster: LocalCluster) -> None:
    expected = fill(cluster, "sql-cli")

    def consume(expression: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = ("consume", "sql-cli", "--group", "sql-cli", "--sql", expression, *options)
        return evenq_process(*words, endpoint=cluster.endpoint)

    output = consume(LARGE_EU, "--from", "first", "--max", str(len(expected)), "--json")
    assert {json.loads(line)["body"].encode() for line in output.stdout.splitlines()} == expected, output.stderr
    wrong = consume(BAD, "--max", "1")
    assert wrong.returncode != 0
    assert "LIKE is not known" in " ".join(wrong.stderr.split())


def test_members_that_differ_are_shown(cluster: LocalCluster) -> None:
    fill(cluster, "sql-differ", 4)

    def member(expression: str) -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="sql-differ",
            endpoint=cluster.endpoint,
            listener=lambda _: None,
            subscriptions={"sql-differ": FilterExpression.sql(expression)},
        )

    def shown() -> list[dict[str, str]]:
        rows: list[dict[str, str]] = evenq_json("group", "show", "sql-differ", endpoint=cluster.endpoint)[
            "differing_filters"
        ]
        return rows

    with member("amount > 1"):
        until(lambda: shown() == [], what="one member cannot differ")
        with member("amount > 2"):
            until(lambda: len(shown()) == 2, what="two filters")
            assert {row["filter"] for row in shown()} == {"SQL amount > 1", "SQL amount > 2"}
