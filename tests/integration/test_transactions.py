"""Transactions against two broker processes: decided, asked about, killed in between (wire contract 8: 24, 25)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from evenq_proofs.v2_requests import send_request

import evenq
from evenq.client.options import ProducerOptions
from evenq.errors import InvalidTransactionId
from evenq.model import TransactionResolution
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"
END = "/apache.rocketmq.v2.MessagingService/EndTransaction"


def settings(checks_max: int) -> dict[str, str]:
    return {
        "DEFAULT_START_FROM": "FIRST",
        "TRANSACTION_FIRST_CHECK_MS": "1000",
        "TRANSACTION_CHECK_INTERVAL_MS": "1000",
        "TRANSACTION_CHECKS_MAX": str(checks_max),
    }


# So many checks that none is given up while a machine under load starts brokers again.
pytestmark = pytest.mark.cluster(brokers=2, rebalancer=False, broker_settings=settings(checks_max=60))


class Checker:
    """Answers as the test sets, and remembers what it was asked about."""

    def __init__(self, answer: TransactionResolution = UNKNOWN) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, message: evenq.ReceivedMessage) -> TransactionResolution:
        with self._changed:
            self.asked.append(message.message_id)
            self._changed.notify_all()
        return self.answer

    def wait(self, ready: Callable[[list[str]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self.asked), 60), self.asked


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = f"t{random.Random(request.node.name).randrange(1 << 40)}"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(name, queues=1, message_type="TRANSACTION")
    return name


def producer(cluster: LocalCluster, checker: Checker, *topics: str) -> evenq.Producer:
    return evenq.Producer(
        endpoint=cluster.endpoints,
        checker=checker,
        transaction_topics=topics,
        options=ProducerOptions(timeout_ms=5_000),
    )


def message(topic: str, number: int) -> evenq.Message:
    return evenq.Message(topic=topic, body=b"%d" % number, keys=(f"k{number}",), properties={"n": str(number)})


def received(cluster: LocalCluster, topic: str, count: int, *, group: str = "", rest_ms: int = 300) -> list[bytes]:
    """The bodies in the topic: at least `count` of them, or what came within half a minute; and what else is there."""
    clock, found = SystemClock(), list[evenq.ReceivedMessage]()
    until_ms = clock.monotonic_ms() + 30_000
    with evenq.SimpleConsumer(group=group or f"g-{topic}", subscriptions={topic: "*"}, endpoint=cluster.endpoints) as c:
        while len(found) < count and clock.monotonic_ms() < until_ms:
            found += took(c, 500)
        found += took(c, rest_ms)
    return sorted(one.body for one in found)


def took(consumer: evenq.SimpleConsumer, wait_ms: int) -> list[evenq.ReceivedMessage]:
    found = consumer.receive(wait_ms=wait_ms)
    for one in found:
        consumer.ack(one)
    return found


def test_what_is_committed_comes_once_and_what_is_rolled_back_never(cluster: LocalCluster, topic: str) -> None:
    with producer(cluster, Checker(), topic) as made:
        for number in range(6):
            transaction = made.begin_transaction(message(topic, number))
            (transaction.commit if number % 2 else transaction.rollback)()
            (transaction.commit if number % 2 else transaction.rollback)()
        assert received(cluster, topic, 3) == [b"1", b"3", b"5"]


def test_another_producer_of_the_topic_answers_for_one_that_died(cluster: LocalCluster, topic: str) -> None:
    living = Checker(COMMIT)
    with producer(cluster, living, topic):
        with producer(cluster, Checker(), topic) as dying:
            ids = [dying.begin_transaction(message(topic, number)).message_id for number in range(2)]
        living.wait(lambda asked: set(ids) <= set(asked))
        assert received(cluster, topic, 2) == [b"0", b"1"]


@pytest.mark.slow
def test_open_transactions_outlive_a_kill_of_their_brokers(cluster: LocalCluster, topic: str) -> None:
    checker = Checker()
    with producer(cluster, checker, topic) as made:
        transactions = [made.begin_transaction(message(topic, number)) for number in range(6)]
        transactions[0].commit()
        transactions[1].rollback()
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.restart()
        transactions[0].commit()
        transactions[2].commit()
        transactions[3].rollback()
        checker.answer = COMMIT
        checker.wait(lambda asked: {transactions[4].message_id, transactions[5].message_id} <= set(asked))
        assert received(cluster, topic, 4) == [b"0", b"2", b"4", b"5"]


@pytest.mark.slow
@pytest.mark.cluster(rebalancer=False, broker_settings=settings(checks_max=2))  # it gives up soon
def test_one_that_nobody_decides_ends_where_users_can_read_it(cluster: LocalCluster) -> None:
    topic = "undecided"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=1, message_type="TRANSACTION")
    with producer(cluster, Checker(UNKNOWN), topic) as made:
        transaction = made.begin_transaction(message(topic, 7))
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            clock = SystemClock()
            until_ms = clock.monotonic_ms() + 20_000
            while not any(
                view.topic == "TRANS_CHECK_MAX_TIME_TOPIC" for view in admin.list_topics(include_system=True)
            ):
                assert clock.monotonic_ms() < until_ms
        assert b"7" in received(cluster, "TRANS_CHECK_MAX_TIME_TOPIC", 1)
        with pytest.raises(InvalidTransactionId, match="given up"):
            transaction.commit()
        assert received(cluster, topic, 0) == []


async def test_any_broker_takes_the_decision_and_any_brokers_producer_the_check(
    cluster: LocalCluster, topic: str
) -> None:
    """A producer like Rust's: its stream is at the access point, its message at the other broker."""
    net = GrpcNet()
    first, second = (broker.address for broker in cluster.brokers)
    asked: asyncio.Queue[service_pb2.TelemetryCommand] = asyncio.Queue()

    async def settings() -> Any:
        command = service_pb2.TelemetryCommand()
        command.settings.client_type = v2.PRODUCER
        command.settings.publishing.topics.add().name = topic
        yield command.SerializeToString()
        await asyncio.Event().wait()

    async def listen() -> None:
        async for frame in net.stream(first, TELEMETRY, settings(), timeout_ms=None, metadata=headers):
            asked.put_nowait(service_pb2.TelemetryCommand.FromString(frame))

    headers = {"x-mq-client-id": "rust-like", "x-mq-language": "RUST"}
    listening = asyncio.ensure_future(listen())
    assert (await asyncio.wait_for(asked.get(), 60)).HasField("settings")
    send = send_request(topic, "id-far", b"far", message_type=v2.TRANSACTION)
    answer = service_pb2.SendMessageResponse.FromString(
        await net.unary(second, END.replace("EndTransaction", "SendMessage"), send.SerializeToString(),
                        timeout_ms=60_000, metadata=headers)
    )  # fmt: skip
    check(answer.status)
    command = (await asyncio.wait_for(asked.get(), 60)).recover_orphaned_transaction_command
    assert command.transaction_id == answer.entries[0].transaction_id
    assert command.message.body == b"far"
    end = service_pb2.EndTransactionRequest(transaction_id=command.transaction_id, message_id="id-far")
    end.topic.name, end.resolution = topic, v2.COMMIT
    for address in (first, second, first):
        ended = await net.unary(address, END, end.SerializeToString(), timeout_ms=60_000, metadata=headers)
        check(service_pb2.EndTransactionResponse.FromString(ended).status)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await net.close()
    assert received(cluster, topic, 1) == [b"far"]
