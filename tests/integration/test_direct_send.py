"""The sync `send` over real connections: brokers that die under it, forks, TLS."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.errors import Unsupported
from evenq.testing import LocalCluster
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.tls import Tls

AFTER = 300
"""Sends after the broker's death: each of its queues and connections is met many times."""


@pytest.fixture(scope="module", params=["http2", pytest.param("grpcio", marks=pytest.mark.slow)])  # the way back
def front(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def brokers(front: str) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, front=front, broker_settings={"DRAIN_MS": "60000"}) as running:
        yield running


@pytest.fixture
def cluster(brokers: LocalCluster) -> Iterator[LocalCluster]:
    """With every broker, whatever the test does to them."""
    yield brokers
    for broker in brokers.brokers:
        if not broker.alive:
            broker.restart()


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """New, with two queues on each broker."""
    name = request.node.originalname[:60]
    with evenq.Admin(endpoint=cluster.endpoint) as admin:

        def placed() -> bool:  # a broker that has just come back may miss the first call
            admin.create_topic(name, queues=2)
            return len(admin.describe_topic(name).queues) == 4

        deadline = time.monotonic() + 60
        while not placed():
            assert time.monotonic() < deadline, f"{name} is not on both brokers"
            time.sleep(0.1)
    return name


@pytest.mark.slow
def test_nothing_that_was_acknowledged_is_lost_or_doubled_when_a_broker_dies_under_sends(
    cluster: LocalCluster, topic: str
) -> None:
    sent: list[str] = []
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        killer = threading.Timer(0.5, cluster.brokers[1].kill)
        killer.start()
        after = 0
        while after < AFTER:
            sent.append(producer.send(evenq.Message(topic=topic, body=b"x")).message_id)
            after += not killer.is_alive()
        killer.join()
    cluster.brokers[1].restart()
    seen: list[str] = []
    with evenq.PullConsumer(
        group="g", endpoint=cluster.endpoint, subscriptions={topic: "*"}, start_from="FIRST"
    ) as consumer:
        until = time.monotonic() + 60
        while len(set(seen)) < len(sent) and time.monotonic() < until:
            seen += [message.message_id for message in consumer.poll(1_000, wait_ms=1_000)]
    assert set(sent) <= set(seen)
    assert len(sent) == len(set(sent)) > 100


def test_a_forked_child_is_told_and_can_make_its_own(cluster: LocalCluster, topic: str) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for _ in range(5):
            producer.send(evenq.Message(topic=topic, body=b"parent"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send(evenq.Message(topic=topic, body=b"child"))
            except Unsupported:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send(evenq.Message(topic=topic, body=b"parent"))  # and goes on


@pytest.mark.slow
def test_over_tls_the_first_and_all_further_sends_succeed_while_the_certificate_of_the_client_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: str
) -> None:
    """Brokers speak nothing but TLS and let no one in without a certificate; nothing is hidden by a retry."""
    monkeypatch.setattr("evenq.wire.tls_channels.LOOK_MS", 100)
    called: list[tuple[str, str]] = []
    unary = BlockingNet.unary

    def noted(net: BlockingNet, address: str, method: str, *rest: Any, **named: Any) -> bytes:
        called.append((threading.current_thread().name, address))
        return unary(net, address, method, *rest, **named)

    monkeypatch.setattr(BlockingNet, "unary", noted)
    settings = {"TLS__CLIENT_CA": str(tmp_path / "tls" / "ca.pem"), "AUTO_CREATE_TOPICS": "true"}
    with LocalCluster(brokers=2, folder=tmp_path, tls=True, front=front, broker_settings=settings) as running:
        assert running.authority is not None
        mine = running.authority.sign("client")
        tls = Tls(ca=running.authority.ca, certificate=mine.certificate, key=mine.key)
        options = evenq.ProducerOptions(max_attempts=1)
        sent: set[str] = set()
        with evenq.Producer(endpoint=running.endpoint, tls=tls, options=options) as producer:
            sent.add(producer.send(evenq.Message(topic="made-by-use", body=b"first")).message_id)
            called.clear()
            until = time.monotonic() + 60
            signed_at, signed = time.monotonic(), 0
            while signed < 4 or len(called) <= 100:
                assert time.monotonic() < until, f"{len(called)} calls in a minute"
                sent.add(producer.send(evenq.Message(topic="made-by-use", body=b"x")).message_id)
                if time.monotonic() - signed_at > 0.5:
                    running.authority.sign("client")
                    signed_at, signed = time.monotonic(), signed + 1
            assert producer._direct is not None
            assert isinstance(producer._direct._net, BlockingNet)
            pools = producer._direct._net._pools
            assert len(pools) == 2
            assert all(address.startswith("evenqs://") for address in pools)
            assert all(connection.version >= 3 for pool in pools.values() for connection in pool.idle)
        assert {thread for thread, _ in called} == {"MainThread"}
        with evenq.PullConsumer(
            group="g", endpoint=running.endpoint, tls=tls, subscriptions={"made-by-use": "*"}, start_from="FIRST"
        ) as consumer:
            seen: set[str] = set()
            until = time.monotonic() + 60
            while not sent <= seen and time.monotonic() < until:
                seen |= {message.message_id for message in consumer.poll(1_000, wait_ms=1_000)}
        assert seen == sent


def test_a_broker_stops_at_once_beside_a_producer_that_rests(cluster: LocalCluster, topic: str) -> None:
    """Its idle connections answer: else grpcio's server waits for them as long as it may."""
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for _ in range(8):
            producer.send(evenq.Message(topic=topic, body=b"x"))
        started = time.monotonic()
        cluster.brokers[1].stop()
        assert time.monotonic() - started < 40  # drain_ms is a minute
        for _ in range(8):
            producer.send(evenq.Message(topic=topic, body=b"x"))


def test_threads_share_a_producer(cluster: LocalCluster, topic: str) -> None:
    results: list[evenq.SendResult] = []

    def work(producer: evenq.Producer) -> None:
        results.extend(producer.send(evenq.Message(topic=topic, body=b"x")) for _ in range(50))

    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        threads = [threading.Thread(target=work, args=(producer,)) for _ in range(48)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len({(result.queue, result.offset) for result in results}) == 48 * 50
