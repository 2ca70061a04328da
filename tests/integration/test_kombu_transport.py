"""The transport of kombu against real brokers, without a worker of Celery."""

from __future__ import annotations

import itertools
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

import evenq
import evenq.celery
from evenq.celery.names import QueueNames
from evenq.celery.session import SESSIONS
from evenq.errors import BadRequest, Forbidden, NotFound, SettingsError, Unauthorized
from evenq.testing import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S = 120
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, rebalancer=False, ready_ms_max=300_000) as running:
        yield running


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[Connection]:
    with connected(cluster) as made:
        yield made


@pytest.fixture
def queue() -> Queue:
    return new_queue()


@contextmanager
def connected(cluster: LocalCluster, **options: Any) -> Iterator[Connection]:
    with Connection(f"evenq://{cluster.endpoint}", transport_options=options) as made:
        yield made


def new_queue(**options: Any) -> Queue:
    name = f"q{next(_numbers)}.a@b"
    return Queue(name, Exchange(name, type="direct"), routing_key=name, **options)


def send(connection: Connection, queue: Queue, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        producer = Producer(channel)
        for body in bodies:
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


def waiting(connection: Connection, queue: Queue) -> int:
    with connection.channel() as channel:
        return int(queue(channel).queue_declare(passive=True).message_count)


class Reader:
    """Consumes queues and keeps what comes, unsettled."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.messages: list[Any] = []
        self.consumer = Consumer(self.channel, list(queues), on_message=self.messages.append, no_ack=no_ack)
        self.consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def drain(self, count: int) -> list[Any]:
        deadline = time.monotonic() + WAIT_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"{self.bodies} instead of {count}"
            try:
                self.connection.drain_events(timeout=1)
            except TimeoutError:
                continue
        return self.messages

    def nothing_for(self, seconds: float) -> None:
        """Nothing else comes in this time; a slow machine makes the check weaker, never wrong."""
        had = len(self.messages)
        until_s = time.monotonic() + seconds
        while (left := until_s - time.monotonic()) > 0:
            try:
                self.connection.drain_events(timeout=left)
            except TimeoutError:
                break
        assert len(self.messages) == had, self.bodies[had:]


def test_a_queue_keeps_messages_that_were_sent_before_any_consumer(connection: Connection, queue: Queue) -> None:
    send(connection, queue, *range(20))
    until(lambda: waiting(connection, queue) == 20, seconds=WAIT_S)
    reader = Reader(connection, queue)
    assert sorted(message.payload for message in reader.drain(20)) == list(range(20))
    assert waiting(connection, queue) == 0
    for message in reader.messages:
        message.ack()
    reader.channel.close()
    with evenq.Admin(endpoint=connection.transport.session.context.endpoint) as admin:
        topic = QueueNames("celery-").topic_of(queue.name)
        assert sum(one.lag for one in admin.group_offsets(topic)) == 0


def test_a_message_that_is_rejected_comes_again_or_never(connection: Connection, queue: Queue) -> None:
    send(connection, queue, "again", "never")
    reader = Reader(connection, queue)
    for message in list(reader.drain(2)):
        message.reject(requeue=message.payload == "again")
    reader.drain(3)
    assert reader.messages[2].payload == "again"
    assert reader.messages[2].delivery_info["redelivered"] is True
    assert "redelivered" not in reader.messages[0].delivery_info
    reader.messages[2].ack()
    reader.channel.close()
    assert waiting(connection, queue) == 0


def test_a_channel_holds_at_most_its_prefetch_limit_over_all_its_queues(connection: Connection) -> None:
    queues = [new_queue(), new_queue()]
    for queue in queues:
        send(connection, queue, *range(5))
    reader = Reader(connection, *queues, prefetch=3)
    reader.drain(3)
    reader.nothing_for(1)
    assert len(reader.messages) == 3
    reader.messages[0].ack()
    reader.drain(4)
    with connected_again(connection) as other:  # what the first may not hold, another consumer gets
        helper = Reader(other, *queues)
        helper.drain(6)
        assert sorted(reader.bodies + helper.bodies) == sorted([*range(5), *range(5)])
        for message in [*helper.messages, *reader.messages[1:]]:
            message.ack()
        helper.channel.close()
    reader.channel.close()


@contextmanager
def connected_again(connection: Connection) -> Iterator[Connection]:
    with connection.clone() as made:
        yield made


def test_what_a_closed_channel_held_goes_to_others(connection: Connection, queue: Queue) -> None:
    send(connection, queue, 1, 2)
    first = Reader(connection, queue)
    first.drain(2)
    first.messages[0].ack()
    kept = first.messages[1].payload
    assert waiting(connection, queue) == 0
    first.channel.close()
    assert waiting(connection, queue) == 1
    second = Reader(connection, queue)
    assert second.drain(1)[0].payload == kept
    second.messages[0].ack()
    second.channel.close()
    assert waiting(connection, queue) == 0


def test_a_held_message_stays_hidden_for_as_long_as_it_is_held(cluster: LocalCluster, queue: Queue) -> None:
    with connected(cluster, visibility_timeout=5) as connection:
        send(connection, queue, "long")
        reader = Reader(connection, queue)
        reader.drain(1)
        with connected(cluster, visibility_timeout=5, wait_time_seconds=14) as other:  # a session of its own
            thief = Reader(other, queue)
            thief.nothing_for(12)
            reader.messages[0].ack()
            thief.nothing_for(6)
            thief.channel.close()
        reader.channel.close()


def test_get_takes_one_message_at_a_time(connection: Connection, queue: Queue) -> None:
    send(connection, queue, "a")
    with connection.channel() as channel:
        bound = queue(channel)
        message = until(bound.get, seconds=WAIT_S)
        assert message.payload == "a"
        assert bound.get() is None
        message.requeue()
        again = until(lambda: bound.get(no_ack=True), seconds=WAIT_S)
        assert again.payload == "a"
        assert bound.get() is None
    assert waiting(connection, queue) == 0


def test_purge_removes_what_waits_and_nothing_else(connection: Connection, queue: Queue) -> None:
    send(connection, queue, "held")
    reader = Reader(connection, queue, prefetch=1)
    reader.drain(1)
    send(connection, queue, *range(4))
    until(lambda: waiting(connection, queue) == 4, seconds=WAIT_S)
    with connection.channel() as channel:
        assert queue(channel).purge() == 4
    assert waiting(connection, queue) == 0
    reader.messages[0].ack()
    reader.nothing_for(1)
    send(connection, queue, "after")
    assert reader.drain(2)[1].payload == "after"
    reader.messages[1].ack()
    reader.channel.close()


def test_a_deleted_queue_is_gone_from_the_cluster(connection: Connection, queue: Queue) -> None:
    send(connection, queue, 1)
    reader = Reader(connection, queue)
    reader.drain(1)
    with connection.channel() as other, pytest.raises(BadRequest, match="has 1 members"):
        queue(other).delete()
    queue(reader.channel).delete()
    reader.channel.close()
    with connection.channel() as channel, pytest.raises(ChannelError, match="NOT_FOUND"):
        queue(channel).queue_declare(passive=True)
    with evenq.Admin(endpoint=connection.transport.session.context.endpoint) as admin:
        topic = QueueNames("celery-").topic_of(queue.name)
        until(lambda: topic not in {one.topic for one in admin.list_topics()}, seconds=WAIT_S)
        assert topic not in {one.group for one in admin.list_groups()}


def test_a_queue_that_somebody_deletes_is_an_error_for_its_consumer_and_is_declared_again(
    cluster: LocalCluster, queue: Queue
) -> None:
    with connected(cluster) as connection:
        send(connection, queue, 1)
        reader = Reader(connection, queue)
        reader.drain(1)[0].ack()
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            topic = QueueNames("celery-").topic_of(queue.name)
            admin.delete_topic(topic)
        with pytest.raises(connection.recoverable_connection_errors) as raised:
            reader.drain(2)
        assert isinstance(raised.value, NotFound)
        reader.channel.close()  # as Celery does; otherwise it would take the message
        with connected(cluster) as other:  # shares the session
            send(other, queue, 2)
            again = Reader(other, queue)
            assert again.drain(1)[0].payload == 2
            again.messages[0].ack()
            again.channel.close()


def test_high_priorities_come_first(connection: Connection) -> None:
    """Each broker orders its own messages."""
    queue = new_queue(max_priority=5)
    with connection.channel() as channel:
        queue(channel).declare()
    for priority in (0, 5, 3, 9):
        send(connection, queue, priority, priority=priority)
    reader = Reader(connection, queue, prefetch=1)
    seen: dict[str, list[int]] = {}
    for number in range(1, 5):
        message = reader.drain(number)[-1]
        seen.setdefault(broker_of(message), []).append(min(5, message.payload))
        message.ack()
    assert sorted(itertools.chain(*seen.values())) == [0, 3, 5, 5]
    assert all(levels == sorted(levels, reverse=True) for levels in seen.values())
    reader.channel.close()
    with connection.channel() as channel, pytest.raises(ChannelError, match="x-max-priority is 256"):
        new_queue(max_priority=256)(channel).declare()


def broker_of(message: Any) -> str:
    return str(message.channel._made._held[message.delivery_tag].message.queue.broker_name)


def test_a_task_with_an_eta_waits_at_the_broker(cluster: LocalCluster, connection: Connection, queue: Queue) -> None:
    due = datetime.now(UTC) + timedelta(seconds=3)
    headers = {"task": "t", "id": "1", "eta": due.isoformat()}
    send(connection, queue, "later", headers=headers)
    reader = Reader(connection, queue)
    reader.drain(1)
    assert datetime.now(UTC) >= due - timedelta(milliseconds=5)
    reader.messages[0].ack()
    with connected(cluster, native_delay=False) as plain:
        headers["eta"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        send(plain, queue, "now", headers=headers)
    assert reader.drain(2)[1].payload == "now"
    reader.messages[1].ack()
    reader.channel.close()


def test_an_eta_that_is_later_than_the_broker_keeps_messages_is_left_to_the_worker(
    connection: Connection, queue: Queue
) -> None:
    eta = (datetime.now(UTC) + timedelta(days=60)).isoformat()
    send(connection, queue, "far", headers={"task": "t", "id": "1", "eta": eta})
    reader = Reader(connection, queue)
    reader.drain(1)[0].ack()
    reader.channel.close()


def test_fanout_reaches_each_connection_of_each_process(connection: Connection) -> None:
    exchange = Exchange(f"news{next(_numbers)}", type="fanout")
    names = [f"bcast.{next(_numbers)}" for _ in range(2)]
    one = Queue(names[0], exchange, auto_delete=True, durable=False)
    two = Queue(names[1], exchange, auto_delete=True)  # as kombu.common.Broadcast
    first = Reader(connection, one)
    with connected_again(connection) as other:
        second = Reader(other, two)
        child_publishes(connection, exchange, "hello")
        for reader in (first, second):
            assert reader.drain(1)[0].payload == "hello"
            reader.messages[0].ack()
            reader.nothing_for(0.5)
        second.channel.close()
    first.channel.close()
    with evenq.Admin(endpoint=connection.transport.session.context.endpoint) as admin:
        assert not [topic.topic for topic in admin.list_topics() if "bcast" in topic.topic]


def child_publishes(connection: Connection, exchange: Exchange, body: Any) -> None:
    """From a forked process, while this one receives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads is the point here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not connection.connected
            with connection.clone() as own:
                Producer(own.channel()).publish(body, exchange=exchange, routing_key="", declare=[exchange])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_topic_exchanges_reach_transient_queues_by_pattern(connection: Connection) -> None:
    exchange = Exchange(f"events{next(_numbers)}", type="topic")
    queue = Queue(f"ev.{next(_numbers)}", exchange, routing_key="worker.#", auto_delete=True, durable=False)
    reader = Reader(connection, queue, no_ack=True)
    with connected_again(connection) as other:
        producer = Producer(other.channel(), exchange)
        producer.publish(1, routing_key="task.sent", declare=[exchange])
        producer.publish(2, routing_key="worker.online")
    assert reader.drain(1)[0].payload == 2
    reader.channel.close()


def test_a_reply_queue_is_used_again_by_its_connection(connection: Connection) -> None:
    """As each `celery inspect` of one process does."""
    exchange = Exchange("replies", type="direct", durable=False)
    queue = Queue(f"reply.{next(_numbers)}", exchange, routing_key="me", auto_delete=True, durable=False)
    channel = connection.channel()
    for number in range(3):
        seen: list[Any] = []
        queue(channel).declare()
        with connected_again(connection) as other:
            Producer(other.channel()).publish(number, exchange=exchange, routing_key="me", declare=[exchange])
        with Consumer(channel, [queue], on_message=seen.append, no_ack=True):
            connection.drain_events(timeout=WAIT_S)
        assert [message.payload for message in seen] == [number]


def test_a_reply_finds_the_queue_of_another_connection_by_its_name(connection: Connection) -> None:
    reply = Queue(f"reply.{next(_numbers)}", auto_delete=True, durable=False)
    reader = Reader(connection, reply)
    with connected_again(connection) as other:
        Producer(other.channel()).publish("pong", exchange="", routing_key=reply.name)
    reader.drain(1)[0].requeue()
    assert reader.drain(2)[1].payload == "pong"
    reader.channel.close()


def test_a_cluster_that_does_not_answer_is_an_operational_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with (
        Connection(f"evenq://127.0.0.1:{port}") as connection,
        pytest.raises(OperationalError, match="no evenq server"),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)
    assert not SESSIONS._sessions


def test_wrong_options_are_named() -> None:
    with (
        Connection("evenq://127.0.0.1:1", transport_options={"prefetch": 3}) as connection,
        pytest.raises(SettingsError, match="'prefetch'"),
    ):
        connection.connect()


def test_a_broker_that_restarts_neither_ends_consumers_nor_loses_messages(
    cluster: LocalCluster, connection: Connection, queue: Queue
) -> None:
    send(connection, queue, *range(10))
    reader = Reader(connection, queue, prefetch=4)
    reader.drain(4)
    for broker in cluster.brokers:
        broker.restart(timeout_ms=300_000)
    for number in range(10):
        reader.drain(number + 1)[number].ack()
    reader.channel.close()
    assert sorted(set(reader.bodies)) == list(range(10))
    until(lambda: waiting(connection, queue) == 0, seconds=WAIT_S)


def test_tls_and_keys(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(
        '[users.ann]\nsecret = "canary-ann"\nadmin = true\n'
        '[users.evenq-internal]\nsecret = "canary-internal"\ninternal = true\n'
        '[users.bob]\nsecret = "canary-bob"\n'
        'allow = [{ resource = "topic:celery-*", actions = ["publish", "consume"] },\n'
        '{ resource = "group:celery-*", actions = ["consume"] }]\n'
    )
    users.chmod(0o600)
    secured = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    brokers = {**secured, "AUTO_CREATE_TOPICS": "false"}
    with LocalCluster(
        tls=True, broker_settings=brokers, nameserver_settings=secured, rebalancer=False, ready_ms_max=300_000
    ) as running:
        address = running.endpoint.removeprefix("evenqs://")
        assert running.client_tls is not None
        options = {"tls": {"ca": str(running.client_tls.ca)}}
        queue = new_queue()
        with Connection(f"evenqs://ann:canary-ann@{address}", transport_options=options) as connection:
            assert "canary" not in connection.as_uri()
            send(connection, queue, "secret")
            with connection.channel() as channel:
                Queue("mailbox", Exchange("news", type="fanout"), auto_delete=True, durable=False)(channel).declare()
            reader = Reader(connection, queue)
            reader.drain(1)[0].ack()
            reader.channel.close()
        with Connection(f"evenqs://bob:canary-bob@{address}", transport_options=options) as connection:
            news = Exchange("news", type="fanout")
            send(connection, queue, "for bob")
            assert waiting(connection, queue) == 1
            reader = Reader(connection, queue, Queue("bobs", news, auto_delete=True, durable=False))
            Producer(reader.channel).publish("to all", exchange=news, routing_key="")
            assert sorted(message.payload for message in reader.drain(2)) == ["for bob", "to all"]
            for message in reader.messages:
                message.ack()
            reader.channel.close()
            with pytest.raises(Forbidden, match="has no topic"):
                send(connection, new_queue(), 1, retry=True, retry_policy={"max_retries": 1})
        with (
            Connection(f"evenqs://ann:wrong@{address}", transport_options=options) as connection,
            pytest.raises(Unauthorized),
        ):
            connection.ensure_connection(max_retries=1)
