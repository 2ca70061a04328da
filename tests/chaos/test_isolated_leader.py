"""A leader loses the other copies and the group record, and not its clients: those of our SDK go on at the next leader,
those with one connection through a load balancer are led there, and the old one refuses messages and is not ready.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import grpc
import pytest
from evenq_proofs.group_faults.proxy import ProxyLoop
from evenq_proofs.group_faults.shapes import SHAPES
from evenq_proofs.group_faults.stage import Stage
from evenq_proofs.replicated_group import listens
from evenq_proofs.v2_requests import v2_message
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.runtime.closing import Closing
from evenq.serving.front.health import NOT_SERVING
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

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
                        # Before the ack: if only its answer is lost, the message is not delivered again.
                        self.received.add(message.body)
                        consumer.ack(message)
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
            until(lambda: len(traffic.sent & traffic.pushed & traffic.received) > 20, "traffic", seconds=60)
            old = stage.state()
            SHAPES["leader-alone"].breaks(stage, old.leader)
            until(lambda: stage.state().epoch > old.epoch, "another leader", seconds=30)
            before = len(traffic.sent)
            until(lambda: len(traffic.sent) > before + 50, "sends that go on", seconds=GOES_ON_S)
            until(lambda: len(traffic.sent & traffic.pushed) > before + 50, "pushes that go on", seconds=GOES_ON_S)
            until(lambda: len(traffic.sent & traffic.received) > before + 50, "receives that go on", seconds=GOES_ON_S)
            leader = stage.brokers[old.leader]
            until(lambda: not leader._ready(), "an old leader that is not ready", seconds=30)
            assert "nor does the place of the group record" in refusal_at(leader.address)
            assert "messages are rejected" not in stage.brokers[stage.state().leader].log_text()
            stage.mend()
            stage.wait_in_sync()
            traffic.send_no_more()
            until(lambda: traffic.sent <= traffic.pushed & traffic.received, "all that was acknowledged", seconds=60)
        finally:
            traffic.stop()
        assert stage.problems() == []


class LoadBalancer(Closing):
    """One address for all copies, as a Service of Kubernetes is: a new connection goes to a copy that is ready and
    listens, and stays there.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._ends = stage, threading.Event()
        self._loop = ProxyLoop(random.Random(1))
        self._proxy = self._loop.proxy(stage.brokers[stage.state().leader].port)
        self.address = f"127.0.0.1:{self._proxy.port}"
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        """Its connections end, too."""
        self._ends.set()
        self._thread.join()
        self._loop.close()

    def _look(self) -> None:
        while not self._ends.wait(0.2):
            for node in self._stage.brokers:
                if node._ready() and listens(node):
                    self._proxy.lead_to(node.port)


def is_taken(channel: grpc.Channel, number: int) -> bool:
    """A message that a client of RocketMQ sends, which has one channel to one address and asks for no other."""
    message = v2_message("t", f"01{number:032X}", b"%d" % number, message_type=definition_pb2.NORMAL)
    send = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        request_serializer=service_pb2.SendMessageRequest.SerializeToString,
        response_deserializer=service_pb2.SendMessageResponse.FromString,
    )
    metadata = (("x-mq-client-id", "one address"), ("x-mq-language", "JAVA"))
    try:
        answer = send(service_pb2.SendMessageRequest(messages=[message]), timeout=3, metadata=metadata)
    except grpc.RpcError:
        return False
    return bool(answer.status.code == definition_pb2.OK)


def health_of(address: str) -> bytes:
    """What the health service says, which some load balancers ask."""
    with grpc.insecure_channel(address) as channel:
        answer: bytes = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    return answer


@pytest.mark.spec("HA-2")
def test_a_client_with_one_connection_through_a_load_balancer_is_led_to_the_next_leader(tmp_path: Path) -> None:
    with Stage(tmp_path, random.Random(1)) as stage:
        stage.wait_in_sync()
        with LoadBalancer(stage) as balancer, grpc.insecure_channel(balancer.address) as channel:
            until(lambda: is_taken(channel, 1), "a message that is taken", seconds=60)
            old = stage.state()
            SHAPES["leader-alone"].breaks(stage, old.leader)
            until(lambda: not stage.brokers[old.leader]._ready(), "an old leader that is not ready", seconds=30)
            assert not is_taken(channel, 2), "its connection still leads to the old leader"
            assert health_of(stage.brokers[old.leader].address) == NOT_SERVING
            until(lambda: is_taken(channel, 3), "a message that the next leader takes", seconds=GOES_ON_S)
            assert stage.state().epoch > old.epoch
            stage.mend()
            stage.wait_in_sync()
            assert is_taken(channel, 4)
        assert stage.problems() == []
