"""The sync `send` over real connections: brokers that die under it, forks, keys."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

import evenq
from evenq.errors import Unsupported
from evenq.testing import LocalCluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        with evenq.Admin(endpoint=running.endpoint) as admin:
            admin.create_topic("t", queues=2)
        yield running


def test_nothing_that_was_acknowledged_is_lost_or_doubled_when_a_broker_dies_under_sends(cluster: LocalCluster) -> None:
    sent: list[str] = []
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        killer = threading.Timer(0.5, cluster.brokers[1].kill)
        killer.start()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            sent.append(producer.send(evenq.Message(topic="t", body=b"x")).message_id)
        killer.join()
    cluster.brokers[1].restart()
    seen: list[str] = []
    with evenq.PullConsumer(
        group="g", endpoint=cluster.endpoint, subscriptions={"t": "*"}, start_from="FIRST"
    ) as consumer:
        until = time.monotonic() + 30
        while len(set(seen)) < len(sent) and time.monotonic() < until:
            seen += [message.message_id for message in consumer.poll(1_000, wait_ms=1_000)]
    assert set(sent) <= set(seen)
    assert len(sent) == len(set(sent)) > 100


def test_a_forked_child_is_told_and_can_make_its_own(cluster: LocalCluster) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for _ in range(5):
            producer.send(evenq.Message(topic="t", body=b"parent"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send(evenq.Message(topic="t", body=b"child"))
            except Unsupported:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send(evenq.Message(topic="t", body=b"parent"))  # and goes on
