"""A cluster of real processes, a broker killed in the middle, and the checker as judge."""

import threading

import pytest

import evenq
from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster, Recorder
from evenq.testing.checker import check
from evenq.testing.history import Delivery, HistoryAction, Op, read_history

INVISIBLE_MS = 2_000
MESSAGES = 400


def place(queue):
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def produce(cluster, recorder, half_done):
    options = evenq.ProducerOptions(max_attempts=1, timeout_ms=2_000, linger_ms=0)
    with evenq.Producer(endpoint=cluster.endpoints, options=options) as producer:
        for number in range(MESSAGES):
            body = f"m{number}"
            send = recorder.invoke(Op.SEND, process="p", topic="orders", body=body)
            try:
                result = producer.send(evenq.Message(topic="orders", body=body.encode()))
            except Error as error:
                recorder.info(send, error=str(error))
            else:
                recorder.ok(send, queue=place(result.queue), offset=result.offset)
            if number == MESSAGES // 2:
                half_done.set()


def drain(cluster, recorder):
    """Receive and acknowledge until nothing came for longer than the invisible time."""
    clock = SystemClock()
    subscriptions = {"orders": "*"}
    quiet_since = clock.monotonic_ms()
    with evenq.SimpleConsumer(group="g", endpoint=cluster.endpoints, subscriptions=subscriptions) as consumer:
        while clock.monotonic_ms() - quiet_since < 2 * INVISIBLE_MS:
            receive = recorder.invoke(Op.RECEIVE, process="c", group="g", topic="orders", invisible_ms=INVISIBLE_MS)
            try:
                messages = consumer.receive(32, invisible_ms=INVISIBLE_MS, wait_ms=500)
            except Error as error:
                recorder.info(receive, error=str(error))
                continue
            deliveries = [
                Delivery(place(m.queue), m.queue_offset, m.body.decode(), m.delivery_attempt) for m in messages
            ]
            recorder.ok(receive, messages=deliveries)
            for message, delivery in zip(messages, deliveries, strict=True):
                quiet_since = clock.monotonic_ms()
                ack = recorder.invoke(
                    Op.ACK, process="c", group="g", queue=delivery.queue, offset=delivery.offset, body=delivery.body
                )
                try:
                    consumer.ack(message)
                except Error as error:
                    recorder.info(ack, error=str(error))
                else:
                    recorder.ok(ack)
    recorder.ok(recorder.invoke(Op.ADMIN, action=HistoryAction.DRAIN, group="g", topic="orders"))


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_a_broker_is_killed_and_comes_back(tmp_path):
    history = tmp_path / "history.jsonl"
    settings = {"DEFAULT_QUEUES": "2", "DEFAULT_START_FROM": "FIRST"}
    with (
        LocalCluster(brokers=2, folder=tmp_path / "cluster", broker_settings=settings) as cluster,
        Recorder(history, clock=SystemClock()) as recorder,
    ):
        recorder.ok(
            recorder.invoke(
                Op.ADMIN, action=HistoryAction.SUBSCRIBE, group="g", topic="orders", process="c", order="none"
            )
        )
        half_done = threading.Event()
        producing = threading.Thread(target=produce, args=(cluster, recorder, half_done))
        producing.start()
        assert half_done.wait(60)
        recorder.fault("kill", target="broker-b")
        cluster.brokers[1].kill()
        cluster.brokers[1].restart()
        recorder.heal("kill", target="broker-b")
        producing.join(60)
        assert not producing.is_alive()
        drain(cluster, recorder)
    report = check(read_history(history))
    assert report.ok, str(report)
    assert report.sent_ok > MESSAGES // 2


async def test_a_cluster_serves_inside_async_with_and_its_nodes_stop_cleanly(tmp_path):
    async with LocalCluster(folder=tmp_path, rebalancer=False) as cluster:
        assert all(node.alive for node in cluster.nodes)
    assert [node.exit_code for node in cluster.nodes] == [0, 0]
