"""The official Python SDK's producer, unmodified, while its topic shrinks and one of two brokers is drained."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from evenq_proofs.command_line import run_evenq

import evenq
from evenq.testing import LocalCluster

pytestmark = pytest.mark.slow

PEER = Path(__file__).with_name("python_sdk_peer.py")
TOPIC, COUNT = "compat-resizing", 3_000


def test_an_official_producer_goes_elsewhere_when_queues_and_a_broker_close(tmp_path: Path) -> None:
    """RT-8, TQ-14: every send is acknowledged, also while the SDK's route is an old one."""
    seen: Counter[str] = Counter()
    enough = threading.Event()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        seen.update(message.properties["number"] for message in messages)
        if len(seen) == COUNT:
            enough.set()

    with LocalCluster(brokers=2, rebalancer=True) as cluster, (tmp_path / "peer.log").open("wb") as log:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=4)
        consumer = evenq.PushConsumer(
            group="g", endpoint=cluster.endpoint, listener=listen, subscriptions={TOPIC: "*"}, start_from="FIRST"
        )
        peer = subprocess.Popen(
            [sys.executable, str(PEER), "produce", cluster.endpoint, TOPIC, "0", str(COUNT)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert peer.stdout is not None
        said = (json.loads(line) for line in peer.stdout if line.startswith("{"))
        acknowledged = 0

        def until(count: int) -> None:
            nonlocal acknowledged
            while acknowledged < count:
                acknowledged += "id" in next(said)

        try:
            with consumer:
                until(200)
                command(cluster, "topic", "scale", TOPIC, "--queues", "2", "--no-wait", "--yes", code=None)
                until(500)
                command(cluster, "broker", "drain", "broker-b", "--no-wait", code=None)
                until(COUNT)
                assert peer.wait(60) == 0
                command(cluster, "topic", "scale", TOPIC, "--queues", "2", "--yes")
                command(cluster, "broker", "drain", "broker-b")
                assert enough.wait(60), f"{COUNT - len(seen)} of {COUNT} messages are missing"
        finally:
            peer.kill()
            peer.wait()
            peer.stdout.close()


def command(cluster: LocalCluster, *words: str, code: int | None = 0) -> None:
    """Runs a command; with `--no-wait`, 1 means that messages are left to read."""
    run_evenq(*words, endpoint=cluster.endpoint, code=code)
