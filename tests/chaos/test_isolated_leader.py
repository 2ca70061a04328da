"""A leader loses the other copies and the group record, and not its clients: those of our SDK go on at the next leader,
and the old one refuses messages and is not ready.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from evenq_proofs.cluster_binaries import wait_for
from evenq_proofs.group_faults.shapes import SHAPES
from evenq_proofs.group_faults.stage import Stage

import evenq
from evenq.errors import Error

pytest.importorskip("kubernetes")
pytestmark = pytest.mark.timeout(240)

GOES_ON_S = 20
"""Generous: sends went on after 3 s, and did not for as long as it lasted without what is tested here."""


class Traffic:
    """A producer that sends one message after the other, and readers of both kinds."""

    def __init__(self, endpoints: str) -> None:
        self.endpoints = endpoints
        self.sent, self.pushed, self.received = set[bytes](), set[bytes](), set[bytes]()
        self._enough, self._ends = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        self._push = evenq.PushConsumer(
            endpoint=endpoints, group="pushed", listener=self._handle, subscriptions={"t": "*"}, start_from="FIRST"
        )

    def start(self) -> None:
        self._push.start()
        for thread in self._threads:
            thread.start()

    def send_no_more(self) -> None:
        self._enough.set()
        self._threads[0].join(60)

    def stop(self) -> None:
        self.send_no_more()
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
        self._push.close()

    def _send(self) -> None:
        with evenq.Producer(endpoint=self.endpoints) as producer:
            number = 0
            while not self._enough.is_set():
                number += 1
                body = b"%d" % number
                try:
                    producer.send(evenq.Message(topic="t", body=body))
                    self.sent.add(body)
                except Error:
                    pass  # not acknowledged
                time.sleep(0.02)

    def _handle(self, messages: list[evenq.ReceivedMessage]) -> None:
        self.pushed.update(message.body for message in messages)

    def _receive(self) -> None:
        with evenq.SimpleConsumer(
            endpoint=self.endpoints, group="received", subscriptions={"t": "*"}, start_from="FIRST"
        ) as consumer:
            while not self._ends.is_set():
                try:
                    for message in consumer.receive(32, invisible_ms=10_000, wait_ms=2_000):
                        consumer.ack(message)
                        self.received.add(message.body)
                except Error:
                    time.sleep(0.1)


def refusal_at(address: str) -> str:
    """What a producer that knows only this broker is told; empty: its message was taken."""
    options = evenq.ProducerOptions(max_attempts=1, timeout_ms=1_000, send_timeout_ms=2_000)
    try:
        with evenq.Producer(endpoint=address, options=options) as producer:
            producer.send(evenq.Message(topic="t", body=b"to the old leader"))
    except Error as error:
        return str(error)
    return ""


@pytest.mark.spec("HA-2")
def test_clients_go_on_at_the_next_leader_while_the_old_one_can_be_reached(tmp_path: Path) -> None:
    with Stage(tmp_path, random.Random(1)) as stage:
        stage.wait_in_sync()
        traffic = Traffic(";".join(node.address for node in stage.brokers))
        traffic.start()
        try:
            wait_for(lambda: len(traffic.sent & traffic.pushed & traffic.received) > 20, "traffic", seconds=60)
            old = stage.state()
            SHAPES["leader-alone"].breaks(stage, old.leader)
            wait_for(lambda: stage.state().epoch > old.epoch, "another leader", seconds=30)
            before = len(traffic.sent)
            wait_for(lambda: len(traffic.sent) > before + 50, "sends that go on", seconds=GOES_ON_S)
            wait_for(lambda: len(traffic.sent & traffic.pushed) > before + 50, "pushes that go on", seconds=GOES_ON_S)
            wait_for(
                lambda: len(traffic.sent & traffic.received) > before + 50, "receives that go on", seconds=GOES_ON_S
            )
            leader = stage.brokers[old.leader]
            wait_for(lambda: not leader._ready(), "an old leader that is not ready", seconds=30)
            assert "nor does the place of the group record" in refusal_at(leader.address)
            assert "messages are refused" not in stage.brokers[stage.state().leader].log_text()
            stage.mend()
            stage.wait_in_sync()
            traffic.send_no_more()
            wait_for(lambda: traffic.sent <= traffic.pushed & traffic.received, "all that was acknowledged", seconds=60)
        finally:
            traffic.stop()
        assert stage.problems() == []
