"""Consume, process, produce, while brokers are killed and consumers fail: output = f(input), each once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import group, in_sync, leader_of
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.runtime.failpoints import COUNTS_VARIABLE, VARIABLE, read_counts
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node

pytestmark = pytest.mark.cluster(own=True, rebalancer=False, broker_settings={"DEFAULT_START_FROM": "FIRST"})

INPUTS, OUTPUTS_OF_EACH = 120, 2
EXPECTED = sorted(f"{number}.{part}" for number in range(INPUTS) for part in range(OUTPUTS_OF_EACH))


class ConsumerDies(Exception):
    """The consumer ends between its work and its commit."""


class Work:
    """Consumers that compute two outputs of each input, in threads; some of their blocks fail."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.done = threading.Event()
        self.committed = 0
        self.failed: list[str] = []
        """Names of the errors that commits raised."""
        self._died: set[bytes] = set()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        consumer = evenq.SimpleConsumer(endpoint=self.endpoint, group="g", subscriptions={"in": "*"})
        while not self.done.is_set():
            try:
                messages = consumer.receive(4, invisible_ms=2_000, wait_ms=500)
            except Error:
                self.done.wait(0.1)
                continue
            if messages:
                self._process(consumer, messages)
        consumer.close()

    def _process(self, consumer: evenq.SimpleConsumer, messages: list[evenq.ReceivedMessage]) -> None:
        try:
            with consumer.transaction() as transaction:
                for message in messages:
                    for part in range(OUTPUTS_OF_EACH):
                        transaction.send("out", b"%b.%d" % (message.body, part))
                    transaction.ack(message)
                    if int(message.body) % 10 == 0 and message.body not in self._died:
                        self._died.add(message.body)
                        raise ConsumerDies
            self.committed += len(messages)
        except ConsumerDies:
            pass
        except Error as error:
            self.failed.append(type(error).__name__)

    def end(self) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join(60)


def prepare(endpoint: str) -> None:
    with evenq.Admin(endpoint=endpoint) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, queues=2)
    with evenq.Producer(endpoint=endpoint) as producer:
        for number in range(INPUTS):
            producer.send("in", b"%d" % number)


def stored(endpoint: str, topic: str) -> list[str]:
    """Bodies of all messages of a topic, read without a group."""
    with evenq.PullConsumer(endpoint=endpoint, group=f"reads-{topic}") as consumer:
        consumer.assign(consumer.queues_of(topic))
        for queue in consumer.queues:
            consumer.seek_to_begin(queue)
        found: list[str] = []
        while messages := consumer.poll(1_000, wait_ms=300):
            found += [message.body.decode() for message in messages]
    return found


def left(endpoint: str) -> int:
    """Inputs that the group has not finished; -1: not known."""
    with evenq.Admin(endpoint=endpoint) as admin:
        try:
            group = admin.describe_group("g").summary
        except Error:
            return -1
        return -1 if group.silent else group.lag


def revive(broker: Node, done: threading.Event) -> None:
    """Starts the broker again when a failpoint killed it."""
    while not done.wait(0.05):
        if not broker.alive:
            broker.environment.pop(VARIABLE, None)
            broker.restart()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["transact.storing:5", "transact.stored:5", "group.written:40", "answer.before:40"])
def test_output_is_a_function_of_input_each_once_wherever_the_broker_is_killed(
    cluster: LocalCluster, tmp_path: Path, point: str
) -> None:
    [broker] = cluster.brokers
    prepare(cluster.endpoint)
    counts = tmp_path / "counts"
    broker.environment |= {VARIABLE: point, COUNTS_VARIABLE: str(counts)}
    broker.restart()
    watch = threading.Thread(target=revive, args=(broker, done := threading.Event()))
    watch.start()
    work = Work(cluster.endpoint)
    try:
        until(lambda: read_counts(counts)[point.partition(":")[0]].hit == 1, what=f"{point} was passed")
        until(lambda: work.committed > INPUTS // 2, what="half of the inputs")
        pid = until(lambda: broker.pid or 0, what="the broker is back")
        os.kill(pid, signal.SIGKILL)  # once more, at any moment; `revive` starts it
        until(lambda: left(cluster.endpoint) == 0, what="all inputs are acknowledged")
    finally:
        work.end()
        done.set()
        watch.join()
    assert sorted(stored(cluster.endpoint, "out")) == EXPECTED
    assert len(work._died) == len(range(0, INPUTS, 10)), "consumers died between work and commit"
    broker.kill()
    broker.restart()
    assert sorted(stored(cluster.endpoint, "out")) == EXPECTED, "what is committed stays so"
    assert left(cluster.endpoint) == 0


@pytest.mark.slow
def test_output_is_a_function_of_input_each_once_while_leaders_are_killed(tmp_path: Path) -> None:
    with group(tmp_path, DEFAULT_START_FROM="FIRST") as cluster:
        leader_of(cluster)
        prepare(cluster.endpoints)
        work = Work(cluster.endpoints)
        try:
            for share in (4, 2):
                done = INPUTS // share
                until(lambda done=done: work.committed >= done, what=f"{done} inputs")  # type: ignore[misc]
                killed = leader_of(cluster)
                killed.kill()
                leader_of(cluster)
                killed.restart()
                in_sync(cluster, 3)
            until(lambda: left(cluster.endpoints) == 0, what="all inputs are acknowledged")
        finally:
            work.end()
        assert sorted(stored(cluster.endpoints, "out")) == EXPECTED
