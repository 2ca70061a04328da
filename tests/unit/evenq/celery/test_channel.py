"""Where a channel sends and which queues it makes, with a session that notes the calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import ChannelError

import evenq.celery  # noqa: F401 - registers the transport
from evenq.celery.broadcasts import Binding
from evenq.celery.channel import EvenqChannel


class Notes:
    """The session of a channel; knows no topics but those that were declared."""

    alive = True

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self.transient: set[str] = set()
        self.bindings: list[tuple[str, Binding]] = []
        self.sent: list[str] = []
        self.broadcasts: list[tuple[str, str | None]] = []

    def declare(self, queue: str, *, levels: int) -> None:
        self.durable[queue] = levels

    def declare_transient(self, queue: str) -> None:
        self.transient.add(queue)

    def is_transient(self, queue: str) -> bool:
        return queue in self.transient

    def exists(self, queue: str) -> bool:
        return queue in self.durable

    def size(self, queue: str) -> int:
        return 0

    def bind(self, queue: str, binding: Binding) -> None:
        self.bindings.append((queue, binding))

    def send(self, queue: str, payload: dict[str, Any]) -> None:
        self.sent.append(queue)

    def broadcast(self, exchange: str, routing_key: str | None, payload: dict[str, Any]) -> None:
        self.broadcasts.append((exchange, routing_key))

    def check(self) -> None:
        """There is a cluster."""


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def channel(notes: Notes) -> Iterator[EvenqChannel]:
    connection = Connection("evenq://h:1")
    connection.transport._session = notes
    channel = connection.channel()
    yield channel
    connection.transport._session = None


def test_a_durable_queue_is_a_topic_and_its_messages_go_there(channel: EvenqChannel, notes: Notes) -> None:
    queue = Queue("jobs", Exchange("jobs"), routing_key="jobs")
    Producer(channel).publish({}, exchange="jobs", routing_key="jobs", declare=[queue])
    Producer(channel).publish({}, exchange="", routing_key="jobs")
    assert (notes.durable, notes.sent, notes.broadcasts) == ({"jobs": 0}, ["jobs", "jobs"], [])


def test_the_highest_priority_is_the_number_of_levels(channel: EvenqChannel, notes: Notes) -> None:
    Queue("jobs", max_priority=9)(channel).declare()
    assert notes.durable == {"jobs": 10}
    for wrong in (-1, 256, "9", True):
        with pytest.raises(ChannelError, match="x-max-priority is"):
            Queue("other", queue_arguments={"x-max-priority": wrong})(channel).declare()
    assert "other" not in notes.durable


@pytest.mark.parametrize("durable", [False, True])
def test_a_mailbox_is_transient_and_bound_to_its_exchange(channel: EvenqChannel, notes: Notes, durable: bool) -> None:
    exchange = Exchange("celery.pidbox", type="fanout")
    Queue("w@h.pidbox", exchange, auto_delete=True, durable=durable)(channel).declare()
    assert (notes.durable, notes.transient) == ({}, {"w@h.pidbox"})
    assert notes.bindings == [("w@h.pidbox", Binding("celery.pidbox", "fanout", ""))]


@pytest.mark.parametrize("durable", [False, True])
def test_a_mailbox_that_is_declared_again_is_bound_again(channel: EvenqChannel, notes: Notes, durable: bool) -> None:
    """Its consumer has ended, and with it the queue; kombu still knows the binding."""
    queue = Queue("me.reply", Exchange("reply", type="fanout"), auto_delete=True, durable=durable)
    queue(channel).declare()
    notes.transient.clear()
    queue(channel).declare()
    assert notes.transient == {"me.reply"}
    assert notes.bindings == [("me.reply", Binding("reply", "fanout", ""))] * 2


def test_an_auto_delete_queue_of_a_direct_exchange_is_shared_and_durable(channel: EvenqChannel, notes: Notes) -> None:
    Queue("jobs", Exchange("jobs"), routing_key="jobs", auto_delete=True)(channel).declare()
    assert (notes.durable, notes.transient) == ({"jobs": 0}, set())


def test_what_other_processes_may_have_bound_is_broadcast(channel: EvenqChannel, notes: Notes) -> None:
    producer = Producer(channel)
    producer.publish({}, exchange="f", routing_key="k", declare=[Exchange("f", type="fanout")])
    producer.publish({}, exchange="t", routing_key="a.b", declare=[Exchange("t", type="topic")])
    producer.publish({}, exchange="d", routing_key="me", declare=[Exchange("d", durable=False)])
    producer.publish({}, exchange="", routing_key="reply-queue")
    producer.publish({}, exchange="undeclared", routing_key="me")
    assert notes.broadcasts == [("f", None), ("t", None), ("d", "me"), ("", "reply-queue"), ("undeclared", "me")]
    assert notes.sent == []


def test_durable_queues_of_fanout_and_topic_exchanges_get_their_copy(channel: EvenqChannel, notes: Notes) -> None:
    fanout, topic = Exchange("f", type="fanout"), Exchange("t", type="topic")
    for queue in (Queue("all", fanout), Queue("some", topic, routing_key="a.*"), Queue("none", topic, routing_key="b")):
        queue(channel).declare()
    Producer(channel).publish({}, exchange="f", routing_key="")
    Producer(channel).publish({}, exchange="t", routing_key="a.b")
    assert notes.sent == ["all", "some"]
    assert notes.broadcasts == [("f", None), ("t", None)]


def test_a_passive_declaration_creates_nothing(channel: EvenqChannel, notes: Notes) -> None:
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        Queue("jobs")(channel).queue_declare(passive=True)
    assert notes.durable == {}
