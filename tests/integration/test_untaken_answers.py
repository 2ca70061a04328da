"""A push consumer that stands still for longer than its poll: what was answered meanwhile comes again at once.

The client is gRPC's own in a process of its own, stopped by a signal, as a suspended machine is.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer

import evenq
from evenq.testing import LocalCluster

POLL_MS, DEADLINE_S, STOPPED_S = 3_000, 4.0, 6.0
TRIES = 5
CONSUMER = f"""
import json, sys
import grpc
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

def say(**fields):
    print(json.dumps(fields), flush=True)

endpoint, topic, group = sys.argv[1:]
metadata = [("x-mq-client-id", "stands-still"), ("x-mq-language", "PYTHON")]
name = "/apache.rocketmq.v2.MessagingService/"
with grpc.insecure_channel(endpoint) as channel:
    receive = channel.unary_stream(
        name + "ReceiveMessage", service_pb2.ReceiveMessageRequest.SerializeToString,
        service_pb2.ReceiveMessageResponse.FromString,
    )
    ack = channel.unary_unary(
        name + "AckMessage", service_pb2.AckMessageRequest.SerializeToString, service_pb2.AckMessageResponse.FromString
    )
    while True:
        request = service_pb2.ReceiveMessageRequest(batch_size=8, auto_renew=True)
        request.group.name, request.message_queue.topic.name, request.message_queue.id = group, topic, -1
        set_duration_ms(request.long_polling_timeout, {POLL_MS})
        call = receive(request, timeout={DEADLINE_S}, metadata=metadata)
        say(polls=True)
        try:
            messages = [frame.message for frame in list(call) if frame.WhichOneof("content") == "message"]
        except grpc.RpcError as error:
            say(lost=error.code().name)
            continue
        for message in messages:
            say(got=message.body.decode(), attempt=message.system_properties.delivery_attempt)
            done = service_pb2.AckMessageRequest()
            done.group.name, done.topic.name = group, topic
            done.entries.add(receipt_handle=message.system_properties.receipt_handle)
            ack(done, timeout=5, metadata=metadata)
"""


pytestmark = pytest.mark.cluster(broker_settings={"DEFAULT_QUEUES": "1", "DEFAULT_START_FROM": "FIRST"})


@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_that_stood_still_gets_what_it_never_read(
    cluster: LocalCluster, tmp_path: Path, ordered: bool
) -> None:
    topic, group = f"still-{ordered}", f"still-group-{ordered}"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(
            topic, queues=1, message_type=evenq.MessageType.FIFO if ordered else evenq.MessageType.NORMAL
        )
        admin.create_group(group, ordered=ordered, start_from="FIRST")
    peer = Peer([sys.executable, "-c", CONSUMER, cluster.endpoint, topic, group], log_path=tmp_path / "peer.log")
    try:
        with evenq.Producer(endpoint=cluster.endpoint) as producer:

            def send(body: bytes) -> None:
                producer.send(evenq.Message(topic=topic, body=body, message_group="lane" if ordered else None))

            send(b"before")
            peer.wait(lambda said: any("got" in line for line in said))
            bodies = ["before"]
            # Now and then gRPC reads the answer before it looks at its clock: then nothing was lost, and it is tried again.
            while not peer.of("lost"):
                assert len(bodies) <= TRIES, "the client always got the answer that came while it stood still"
                polls = len(peer.of("polls"))
                peer.wait(lambda said: sum("polls" in line for line in said) > polls)  # noqa: B023  it waits, all of its time before it
                time.sleep(0.3)
                os.kill(peer.process.pid, signal.SIGSTOP)
                bodies.append(f"meanwhile {len(bodies)}")
                try:
                    send(bodies[-1].encode())
                    time.sleep(STOPPED_S)
                finally:
                    os.kill(peer.process.pid, signal.SIGCONT)
                peer.wait(lambda said: sum("got" in line for line in said) == len(bodies), seconds=10)
            assert peer.numbers("lost") == ["DEADLINE_EXCEEDED"]
            send(b"after")
            peer.wait(lambda said: sum("got" in line for line in said) == len(bodies) + 1)
            assert peer.numbers() == [*bodies, "after"]
            assert set(peer.numbers("attempt")) == {1}
    finally:
        peer.end()
