"""The official Python SDK's SimpleConsumer, unmodified, while one broker after the other is restarted under it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer, wait_for_all

import evenq
from evenq.testing import LocalCluster

pytestmark = pytest.mark.slow

PEER = Path(__file__).with_name("python_sdk_peer.py")
TOPIC, COUNT, MEMBERS = "compat-restart", 1_000, 4


def test_a_rolling_restart_repeats_nothing_for_simple_consumers(tmp_path: Path, keep: Callable[[Peer], None]) -> None:
    """Each holds up to sixteen messages at any time. A broker that stops hands out no more and waits for their acks."""
    with LocalCluster(brokers=2, folder=tmp_path / "cluster") as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.create_group("g", start_from="FIRST")
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for number in range(COUNT):
                producer.send(evenq.Message(topic=TOPIC, body=b"x", properties={"number": str(number)}))
        words = [sys.executable, str(PEER), "work", cluster.endpoints, TOPIC, "g", "80"]
        consumers = [Peer(words, log_path=tmp_path / f"peer-{number}.log") for number in range(MEMBERS)]
        for consumer in consumers:
            keep(consumer)
        for number, broker in enumerate(cluster.brokers):
            for consumer in consumers:
                consumer.wait(lambda said, n=number: sum("got" in s for s in said) > 20 + 60 * n)
            assert broker.stop() == 0
            broker.restart()
        wait_for_all(consumers, range(COUNT))
        seen = Counter(number for consumer in consumers for number in consumer.numbers())
        repeated = sum(times - 1 for times in seen.values())
        refused = sum(len(consumer.of("unacked")) for consumer in consumers)
        print(f"{len(seen)} messages, repeated {repeated}, acks refused {refused}")
        assert (repeated, refused) == (0, 0)
        for consumer in consumers:
            consumer.stop()
