"""Real processes: a topic grows and shrinks, and brokers are drained and ended, while it is written and read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import pytest
from evenq_proofs.command_line import evenq_json
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster

TOPIC, GROUP = "flights", "desk"


def command(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    return evenq_json(*words, endpoint=cluster.endpoint, code=code)


class Traffic:
    """A producer that never rests, with and without keys, and a group of members that count what they see."""

    def __init__(self, cluster: LocalCluster, *, assignment: str, members: int = 3) -> None:
        self.cluster = cluster
        self.sent: list[Future[evenq.SendResult]] = []
        self.seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=4)
            admin.create_group(GROUP, strategy="STICKY" if assignment == "server" else "AVG")
        self.members = [
            evenq.PushConsumer(
                group=GROUP,
                endpoint=cluster.endpoint,
                listener=self._listen,
                subscriptions={TOPIC: "*"},
                start_from="FIRST",
                assignment=assignment,
                strategy="STICKY" if assignment == "server" else "AVG",
            ).start()
            for _ in range(members)
        ]
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        for member in self.members:
            member.close()

    def _listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self._lock:
            self.seen.update(message.body for message in messages)

    def _produce(self) -> None:
        options = evenq.ProducerOptions(route_refresh_ms=5_000)  # old routes are met, and get young again
        with evenq.Producer(endpoint=self.cluster.endpoint, options=options) as producer:
            while not self._stop.wait(0.01):
                number = len(self.sent)
                message = evenq.Message(topic=TOPIC, body=b"%d" % number)
                key = f"key-{number % 7}" if number % 2 else None
                self.sent.append(producer.send_async(message, sharding_key=key))
            producer.flush(60_000)

    def queues(self) -> list[tuple[str, int]]:
        """All that the members read now."""
        return sorted((queue.broker_name, queue.queue_id) for member in self.members for queue in member.queues)

    def goes_on(self, count: int = 100) -> None:
        """Let this number of more messages be sent."""
        goal = len(self.sent) + count
        until(lambda: len(self.sent) >= goal, what="the producer works")

    def must_be_exact(self) -> None:
        """Every message that was sent was seen exactly once."""
        self._stop.set()
        self._thread.join(60)
        failed = [future.exception() for future in self.sent if future.exception() is not None]
        assert failed == []
        expected = {b"%d" % number for number in range(len(self.sent))}
        until(lambda: len(self.seen) >= len(expected), what="all messages are seen")
        assert set(self.seen) == expected
        repeated = {body: count for body, count in self.seen.items() if count > 1}
        assert repeated == {}


def places(queues: int, *brokers: str) -> list[tuple[str, int]]:
    return [(broker, queue_id) for broker in brokers for queue_id in range(queues)]


@pytest.mark.parametrize("assignment", ["server", pytest.param("client", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_topic_grows_from_4_to_8_and_shrinks_to_3_queues_under_load_without_loss_or_repeat(assignment: str) -> None:
    """RT-8, NS-8, TQ-9."""
    both = ("broker-a", "broker-b")
    with LocalCluster(brokers=2, rebalancer=True) as cluster, Traffic(cluster, assignment=assignment) as traffic:
        until(lambda: traffic.queues() == places(4, *both), what="8 queues are read")
        traffic.goes_on()
        grown = command(cluster, "topic", "scale", TOPIC, "--queues", "8")
        assert [(b["write_queues"], b["read_queues"], b["permission"]) for b in grown["brokers"]] == [
            (8, 8, "read-write")
        ] * 2
        until(lambda: traffic.queues() == places(8, *both), seconds=60, what="the new queues have owners by push")
        traffic.goes_on(300)
        shrunk = command(cluster, "topic", "scale", TOPIC, "--queues", "3", "--wait", "60", "--yes")
        assert [(b["write_queues"], b["read_queues"]) for b in shrunk["brokers"]] == [(3, 3)] * 2
        assert shrunk["unfinished"] == []
        until(lambda: traffic.queues() == places(3, *both), seconds=60, what="closed queues have no owner")
        traffic.goes_on()
        traffic.must_be_exact()
        shown = command(cluster, "topic", "show", TOPIC)
        assert shown["stranded"] == 0
        per_queue = {(q["broker"], q["queue"]): q["permission"] for q in shown["queues"]}
        assert [per_queue["broker-a", number] for number in (0, 2)] == ["read-write"] * 2
        assert {permission for (_, number), permission in per_queue.items() if number >= 3} <= {"none"}


@pytest.mark.slow  # a broker is drained, ends and comes back under load
def test_a_drained_broker_is_read_empty_and_ends_without_loss_and_comes_back() -> None:
    """TQ-14, TQ-5, NS-8."""
    with LocalCluster(brokers=2, rebalancer=True) as cluster, Traffic(cluster, assignment="server") as traffic:
        until(lambda: len(traffic.queues()) == 8, what="8 queues are read")
        traffic.goes_on()
        drained = command(cluster, "broker", "drain", "broker-b", "--wait", "60")
        assert (drained["draining"], drained["empty"], drained["lag"], drained["other_writers"]) == (True, True, 0, 1)
        [first, second] = command(cluster, "broker", "list")
        assert (first["draining"], second["draining"]) == (False, True)
        cluster.brokers[1].stop()
        until(lambda: traffic.queues() == places(4, "broker-a"), seconds=60, what="its queues have no owner")
        traffic.goes_on()
        cluster.brokers[1].restart()
        until(lambda: len(traffic.queues()) == 8, what="it is read again")
        [_, second] = command(cluster, "broker", "list")
        assert second["draining"], "no other value was given"
        command(cluster, "broker", "resume", "broker-b")
        until(lambda: _writes(traffic, "broker-b"), what="it is written again")
        traffic.must_be_exact()


def _writes(traffic: Traffic, broker: str) -> bool:
    done = [future for future in traffic.sent[-20:] if future.done() and future.exception() is None]
    return any(future.result().queue.broker_name == broker for future in done)


@pytest.mark.slow
def test_a_shrink_waits_for_the_slowest_group_says_who_it_is_and_can_be_undone() -> None:
    """RT-8."""
    with LocalCluster(brokers=1) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=4)
        with evenq.PullConsumer(
            group=GROUP, endpoint=cluster.endpoint, subscriptions={TOPIC: "*"}, start_from="FIRST"
        ) as consumer:
            until(lambda: len(consumer.queues) == 4, what="it owns them")
            consumer.commit()
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for number in range(40):
                producer.send(evenq.Message(topic=TOPIC, body=b"%d" % number))
        output = command(cluster, "topic", "scale", TOPIC, "--queues", "2", "--wait", "1", "--yes", code=1)
        assert GROUP in output
        assert "--force" in output
        [broker] = command(cluster, "topic", "scale", TOPIC, "--queues", "2", "--no-wait", "--yes", code=1)["brokers"]
        assert (broker["write_queues"], broker["read_queues"]) == (2, 4)
        shown = command(cluster, "topic", "show", TOPIC)["queues"]
        assert [queue["permission"] for queue in shown] == ["read-write", "read-write", "read", "read"]
        back = command(cluster, "topic", "scale", TOPIC, "--queues", "4")["brokers"]
        assert (back[0]["write_queues"], back[0]["read_queues"]) == (4, 4)
        command(cluster, "topic", "scale", TOPIC, "--queues", "2", "--force", "--yes")
        shown = command(cluster, "topic", "show", TOPIC)
        assert shown["stranded"] > 0
        assert [queue["permission"] for queue in shown["queues"]] == ["read-write", "read-write", "none", "none"]
