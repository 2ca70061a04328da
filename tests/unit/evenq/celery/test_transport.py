"""The transport as kombu finds it: its names, its errors, its connections."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.signals import worker_init
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from kombu import Connection
from kombu.exceptions import OperationalError

import evenq.celery
from evenq import errors
from evenq.celery.codec import encoded
from evenq.celery.deliveries import QueueDeliveries
from evenq.celery.inbox import Inbox
from evenq.celery.names import QueueNames
from evenq.celery.session import SESSIONS
from evenq.celery.settings import TransportSettings
from evenq.celery.transport import EvenqTransport, SecureEvenqTransport
from evenq.client.wiring import ClientContext
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import SystemClock


def nobody() -> int:
    """A port where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_one_import_registers_both_schemes() -> None:
    evenq.celery.register()
    assert isinstance(Connection("evenq://h:1").transport, EvenqTransport)
    assert isinstance(Connection("evenqs://h:1").transport, SecureEvenqTransport)
    assert Celery(broker="evenq://h:1/shop").connection_for_write().virtual_host == "shop"


def test_errors_that_pass_are_recoverable_and_others_are_not() -> None:
    connection = Connection("evenq://h:1")
    for passes in (errors.ConnectionFailed, errors.TlsFailed, errors.RequestTimeout, errors.HaNotAvailable,
                   errors.TooManyRequests, errors.PersistenceTimeout, errors.TopicNotFound):  # fmt: skip
        assert issubclass(passes, connection.recoverable_connection_errors), passes
    for stays in (errors.Forbidden, errors.Unauthorized, errors.SettingsError, errors.BodyTooLarge):
        assert not issubclass(stays, connection.recoverable_connection_errors), stays
        assert issubclass(stays, connection.channel_errors), stays


def test_a_cluster_that_does_not_answer_is_recoverable_and_holds_nothing() -> None:
    with Connection(f"evenq://127.0.0.1:{nobody()}") as connection:
        with pytest.raises(OperationalError, match="no evenq server answers"):
            connection.ensure_connection(max_retries=1, interval_start=0)
        assert not SESSIONS._sessions


def test_an_option_that_is_wrong_ends_the_attempt() -> None:
    with (
        Connection("evenq://h:1", transport_options={"visibility": 3}) as connection,
        pytest.raises(errors.SettingsError, match="'visibility'"),
    ):
        connection.connect()


def test_workers_start_mingle_and_gossip() -> None:
    worker_init.send(sender=None)
    assert {"evenq", "amqp", "redis"} <= Gossip.compatible_transports & Mingle.compatible_transports


def test_without_celery_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['celery'] = None; import evenq.celery"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "evenq.errors.Unsupported: evenq.celery needs the package celery" in done.stderr
    assert 'pip install "evenq[celery]"' in done.stderr


def message(number: int) -> ReceivedMessage:
    payload = {"body": str(number), "headers": {}, "properties": {"delivery_info": {}}}
    return ReceivedMessage(
        topic="q", body=encoded(payload), message_id=f"q{number}", tag=None, keys=(), properties={},
        message_group=None, queue=MessageQueue("q", "broker-a", 0), queue_offset=QueueOffset(number), born_ms=0,
        store_ms=0, delivery_attempt=1, receipt_handle="0",
    )  # fmt: skip


class Settled:
    """The consumer of a queue without messages; notes what is settled."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.returned: list[tuple[str, bool]] = []
        """Message id, and whether its delivery counts as no attempt."""

    async def start(self) -> None:
        """Nothing begins."""

    async def receive(self, *_: Any, **__: Any) -> list[ReceivedMessage]:
        await asyncio.Event().wait()
        raise AssertionError

    async def ack(self, *messages: ReceivedMessage) -> None:
        self.acked += [one.message_id for one in messages]

    async def change_invisible(self, one: ReceivedMessage, _: int, *, suspend: bool = False) -> ReceivedMessage:
        self.returned.append((one.message_id, suspend))
        return one

    async def close(self) -> None:
        """Nothing is open."""


class SlowSession:
    """A session whose loop runs only while a channel waits for it, or in `turn`."""

    alive = True

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.settled = Settled()
        self.made: list[QueueDeliveries] = []
        """Those of each channel."""

    def check(self) -> None:
        """There is a cluster."""

    def is_transient(self, queue: str) -> bool:
        return False

    def check_consumable(self, queue: str) -> None:
        """There is a topic."""

    def deliveries(self, inbox: Inbox) -> QueueDeliveries:
        return self.run(self._deliveries(inbox))

    async def _deliveries(self, inbox: Inbox) -> QueueDeliveries:
        settings = TransportSettings(endpoint="h:1", names=QueueNames(""))
        context = ClientContext(clock=SystemClock(), rng=random.Random(1))
        self.made.append(QueueDeliveries(context, settings, inbox, consumer_of=lambda _: self.settled))
        return self.made[-1]

    def deliver(self, channel: int, number: int) -> None:
        """Lets the loop receive a message for a channel, after what was called before."""
        made = self.made[channel]

        def receive() -> None:
            delivery = made.add("q", message(number), made.receiver("q"))
            assert delivery is not None
            made.inbox.put(delivery)

        self.call(receive)

    def call(self, function: Callable[[], object]) -> None:
        self.loop.call_soon(function)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def turn(self) -> None:
        for _ in range(10):
            self.run(asyncio.sleep(0))

    def close(self) -> None:
        for made in self.made:
            self.run(made.close())
        self.loop.close()


@pytest.fixture
def session() -> Iterator[SlowSession]:
    session = SlowSession()
    yield session
    session.close()


@pytest.fixture
def connection(session: SlowSession) -> Iterator[Connection]:
    connection = Connection("evenq://h:1")
    connection.transport._session = session
    yield connection
    connection.transport._session = None


def bodies_of(taken: list[Any]) -> list[str]:
    return [one.body.decode() for one in taken]


def test_a_message_that_arrives_while_its_consumer_is_cancelled_is_returned(
    connection: Connection, session: SlowSession
) -> None:
    channel, taken = connection.channel(), []
    channel.basic_consume("q", False, taken.append, "1")
    session.deliver(0, 1)
    channel.basic_cancel("1")
    session.turn()
    connection.transport.on_readable(0, None)
    session.turn()
    assert (taken, session.settled.returned) == ([], [("q1", True)])


def test_channels_that_consume_one_queue_settle_their_own_messages(
    connection: Connection, session: SlowSession
) -> None:
    first, second = connection.channel(), connection.channel()
    of_first, of_second = [], []
    first.basic_consume("q", False, of_first.append, "1")
    second.basic_consume("q", False, of_second.append, "2")
    for channel, number in ((0, 1), (1, 2), (1, 3)):
        session.deliver(channel, number)
    session.turn()
    connection.transport.on_readable(0, None)
    assert (bodies_of(of_first), bodies_of(of_second)) == (["1"], ["2", "3"])
    of_first[0].ack()
    session.turn()
    assert session.settled.acked == ["q1"]
    first.basic_cancel("1")
    session.deliver(1, 4)
    session.turn()
    connection.transport.on_readable(0, None)
    of_second[2].ack()
    session.turn()
    assert session.settled.acked == ["q1", "q4"]
    assert session.settled.returned == []


def test_a_queue_with_two_consumers_of_a_channel_is_delivered_after_one_is_cancelled(
    connection: Connection, session: SlowSession
) -> None:
    channel, taken = connection.channel(), []
    channel.basic_consume("q", False, taken.append, "1")
    channel.basic_consume("q", False, taken.append, "2")
    channel.basic_cancel("2")
    session.deliver(0, 1)
    session.turn()
    connection.transport.on_readable(0, None)
    session.turn()
    assert (bodies_of(taken), session.settled.returned) == (["1"], [])
