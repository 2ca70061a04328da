"""Real processes: a topic is deleted and created again, or gets more queues, while own members read it. Names outlive
what they named; queues do not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.testing import LocalCluster

pytestmark = pytest.mark.cluster(brokers=2)


class Seen:
    """What a consumer got."""

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self._lock:
            self.bodies.update(message.body.decode() for message in messages)

    def has(self, prefix: str, count: int) -> bool:
        with self._lock:
            return sum(body.startswith(prefix) for body in self.bodies) == count


FAR_MS = 10**15  # TIMESTAMP begins at the end, too
QUICK = evenq.PushOptions(commit_interval_ms=200, route_refresh_ms=1_000, rebalance_interval_ms=1_000)


@contextmanager
def pushing(cluster: LocalCluster, topic: str, seen: Seen, folder: Path, start: str) -> Iterator[None]:
    with evenq.PushConsumer(
        group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, listener=seen, start_from=start,
        start_timestamp_ms=FAR_MS if start == "TIMESTAMP" else 0,
        options=QUICK,
    ) as consumer:  # fmt: skip
        until(lambda: len(consumer.queues) == 4, "all queues are read")
        yield


@contextmanager
def broadcasting(cluster: LocalCluster, topic: str, seen: Seen, folder: Path, start: str) -> Iterator[None]:
    options = evenq.PushOptions(commit_interval_ms=200, rebalance_interval_ms=1_000, offsets_folder=folder)
    with evenq.PushConsumer(
        group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, listener=seen, start_from=start,
        start_timestamp_ms=FAR_MS if start == "TIMESTAMP" else 0,
        model="BROADCASTING", options=options,
    ) as consumer:  # fmt: skip
        until(lambda: len(consumer.queues) == 4, "all queues are read")
        yield


@contextmanager
def polling(cluster: LocalCluster, topic: str, seen: Seen, folder: Path, start: str) -> Iterator[None]:
    stop = threading.Event()
    with evenq.PullConsumer(
        group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, start_from=start,
        start_timestamp_ms=FAR_MS if start == "TIMESTAMP" else 0,
    ) as consumer:  # fmt: skip

        def poll() -> None:
            while not stop.is_set():
                with suppress(evenq.errors.TopicNotFound):  # said once while there is none
                    seen(consumer.poll(wait_ms=200))

        reader = threading.Thread(target=poll)
        reader.start()
        try:
            until(lambda: len(consumer.queues) == 4, "all queues are read")
            yield
        finally:
            stop.set()
            reader.join(60)


@contextmanager
def receiving(cluster: LocalCluster, topic: str, seen: Seen, folder: Path, start: str) -> Iterator[None]:
    stop, began = threading.Event(), threading.Event()
    with evenq.SimpleConsumer(
        group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, start_from=start
    ) as consumer:

        def receive() -> None:
            while not stop.is_set():
                messages = consumer.receive(32, wait_ms=200)
                began.set()
                seen(messages)
                if messages:
                    consumer.ack(*messages)

        reader = threading.Thread(target=receive)
        reader.start()
        try:
            until(began.is_set, "the group has begun")
            yield
        finally:
            stop.set()
            reader.join(60)


Reader = Callable[[LocalCluster, str, Seen, Path, str], AbstractContextManager[None]]
READERS = [pytest.param(one, id=one.__name__) for one in (pushing, broadcasting, polling)]


def send(cluster: LocalCluster, topic: str, prefix: str, count: int) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in range(count):
            producer.send(evenq.Message(topic=topic, body=f"{prefix} {number}".encode()))


def lag(admin: evenq.Admin, topic: str) -> tuple[int, int]:
    """How much of the topic the group has committed, and what is left."""
    queues = [queue for queue in admin.describe_group(f"g-{topic}").queues if queue.queue.topic == topic]
    return sum(max(0, queue.committed) for queue in queues), sum(queue.lag for queue in queues)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow  # each waits for real members
def test_a_topic_that_is_deleted_and_created_again_is_read_whole(
    cluster: LocalCluster, reader: Reader, tmp_path: Path
) -> None:
    """RB-41, RB-48: with fewer messages than the old one had, and with more, so that no offset shows the difference."""
    topic = f"anew-{reader.__name__}"
    seen = Seen()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=2)
        with reader(cluster, topic, seen, tmp_path, "LAST"):
            for round_number, count in enumerate((40, 12, 120)):
                if round_number:
                    admin.delete_topic(topic)
                    admin.create_topic(topic, queues=2)
                send(cluster, topic, f"round {round_number}:", count)
                until(lambda at=round_number, many=count: seen.has(f"round {at}:", many), f"round {round_number}")
            if reader is not broadcasting:
                until(lambda: lag(admin, topic) == (120, 0), "all is committed, and nothing beyond")
    assert set(seen.bodies.values()) == {1}, "nothing came twice"


@pytest.mark.slow  # it waits for real members
def test_a_topic_that_is_created_by_its_first_message_is_read_whole(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = "anew-by-use"
    seen = Seen()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=2)
        with pushing(cluster, topic, seen, tmp_path, "LAST"):
            send(cluster, topic, "old", 40)
            until(lambda: seen.has("old", 40), "the old ones")
            admin.delete_topic(topic)
            send(cluster, topic, "new", 300)
            until(lambda: seen.has("new", 300), "the new ones")
    assert set(seen.bodies.values()) == {1}


@pytest.mark.parametrize("reader", [*READERS, pytest.param(receiving, id="receiving")])
@pytest.mark.slow  # each waits for real members
def test_who_was_offline_reads_a_topic_that_was_made_anew_whole(
    cluster: LocalCluster, reader: Reader, tmp_path: Path
) -> None:
    topic = f"offline-{reader.__name__}"
    seen = Seen()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=2)
        with reader(cluster, topic, seen, tmp_path, "LAST"):
            send(cluster, topic, "old", 20)
            until(lambda: seen.has("old", 20), "the old ones")
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=2)
        send(cluster, topic, "new", 60)
        with reader(cluster, topic, seen, tmp_path, "LAST"):
            until(lambda: seen.has("new", 60), "the new ones")
    assert set(seen.bodies.values()) == {1}


@pytest.mark.slow  # it waits for real members
def test_a_message_id_and_a_receipt_handle_of_a_deleted_topic_mean_nothing_in_the_new_one(
    cluster: LocalCluster,
) -> None:
    topic = "handles"
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, brokers={"broker-a": 1})
        with evenq.SimpleConsumer(
            group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, start_from="FIRST"
        ) as consumer:
            send(cluster, topic, "old", 1)
            (old,) = consumer.receive(1, wait_ms=20_000)
            admin.delete_topic(topic)
            admin.create_topic(topic, brokers={"broker-a": 1})
            send(cluster, topic, "new", 1)
            with pytest.raises(evenq.errors.InvalidReceiptHandle):
                consumer.ack(old)
            (new,) = consumer.receive(1, wait_ms=20_000)
            assert new.body == b"new 0"
        with pytest.raises(evenq.errors.MessageNotFound):
            admin.get_message(old.message_id)
        assert admin.get_message(new.message_id).queue.topic == topic


@pytest.mark.slow  # it waits for real members
def test_what_was_given_back_before_its_topic_was_deleted_is_delivered_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A given back message is the group's."""
    topic = "given-back"
    tries: list[str] = []

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> bool:
        tries.extend(message.body.decode() for message in messages)
        return tries.count("once 0") > 1

    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=2)
        admin.create_group(f"g-{topic}", retry=RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(3_000,)))
        with evenq.PushConsumer(
            group=f"g-{topic}", endpoint=cluster.endpoint, subscriptions={topic: "*"}, listener=listen,
            start_from="FIRST", options=QUICK,
        ):  # fmt: skip
            send(cluster, topic, "once", 1)
            until(lambda: bool(tries), "the first delivery")
            admin.delete_topic(topic)
            admin.create_topic(topic, queues=2)
            until(lambda: tries.count("once 0") == 2, "the retry")


@contextmanager
def traffic(cluster: LocalCluster, topic: str) -> Iterator[list[str]]:
    """A producer that never rests; what it has sent."""
    sent: list[str] = []
    stop = threading.Event()

    def run() -> None:
        options = evenq.ProducerOptions(route_refresh_ms=500)
        with evenq.Producer(endpoint=cluster.endpoint, options=options) as producer:
            while not stop.wait(0.002):
                body = f"{len(sent)}"
                producer.send(evenq.Message(topic=topic, body=body.encode()))
                sent.append(body)

    sender = threading.Thread(target=run)
    sender.start()
    try:
        yield sent
    finally:
        stop.set()
        sender.join(60)


@pytest.mark.parametrize("joins", [False, True], ids=["queues", "broker"])
@pytest.mark.parametrize("start", ["LAST", "TIMESTAMP"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow  # each waits for real members
def test_queues_that_come_under_load_are_read_from_their_first_message(
    cluster: LocalCluster, reader: Reader, start: str, joins: bool, tmp_path: Path
) -> None:
    """RB-42: the policy counts once for a group and topic. `broker`: another one gets the topic."""
    topic = f"grows-{reader.__name__}-{start}-{joins}"
    seen = Seen()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, brokers={"broker-a": 4} if joins else {"broker-a": 2, "broker-b": 2})
        with reader(cluster, topic, seen, tmp_path, start):
            with traffic(cluster, topic) as sent:
                until(lambda: len(sent) >= 200, "messages flow")
                if joins:
                    admin.create_topic(topic, brokers={"broker-a": 4, "broker-b": 8})
                else:
                    admin.scale_topic(topic, queues=12)
                now = len(sent)
                until(lambda: len(sent) >= now + 600, "messages flow into the new queues")
            until(lambda: set(seen.bodies) >= set(sent), "all messages are read")
