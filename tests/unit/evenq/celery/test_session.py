"""Sessions are shared by connections with equal settings, and belong to their process."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from evenq.celery.broadcasts import Binding
from evenq.celery.names import QueueNames
from evenq.celery.session import SESSIONS, TransportSession
from evenq.celery.settings import TransportSettings
from evenq.errors import ConnectionFailed, Forbidden, IllegalAccessPoint, TopicNotFound
from evenq.model import Message, MessageType

SETTINGS = TransportSettings(endpoint="127.0.0.1:1", names=QueueNames("celery-"))


def test_equal_settings_share_a_session_until_the_last_release() -> None:
    one, same = SESSIONS.acquire(SETTINGS), SESSIONS.acquire(replace(SETTINGS))
    other = SESSIONS.acquire(replace(SETTINGS, visibility_ms=5_000))
    assert one is same
    assert one is not other
    SESSIONS.release(one)
    assert SESSIONS.acquire(SETTINGS) is one
    for session in (one, same, other):
        SESSIONS.release(session)
    assert SESSIONS.acquire(SETTINGS) is not one
    SESSIONS.release(SESSIONS._sessions[SETTINGS])
    assert not SESSIONS._sessions


def test_a_forked_child_has_no_sessions_and_leaves_those_of_its_parent_alone() -> None:
    session = SESSIONS.acquire(SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads is the point here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not session.alive
            assert not SESSIONS._sessions
            session.call(lambda: os._exit(2))
            session.close()
            SESSIONS.release(session)
            assert SESSIONS.acquire(SETTINGS) is not session
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.alive
    SESSIONS.release(session)


def test_a_cluster_that_does_not_answer_is_an_error() -> None:
    session = SESSIONS.acquire(SETTINGS)
    with pytest.raises(ConnectionFailed):
        session.check()
    SESSIONS.release(session)


def test_the_first_send_and_a_binding_in_the_loop_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SESSIONS.acquire(SETTINGS)

    def producer(**_: object) -> None:
        session.bind("mailbox", Binding("pidbox", "fanout", ""))
        session.run(asyncio.sleep(0))  # as the real one, which is made in the loop

    monkeypatch.setattr("evenq.celery.session.Producer", producer)
    sending = threading.Thread(target=session._producer, daemon=True)
    sending.start()
    sending.join(60)
    assert not sending.is_alive()
    SESSIONS.release(session)


def test_a_malformed_address_is_an_error() -> None:
    with pytest.raises(IllegalAccessPoint):
        TransportSession(replace(SETTINGS, endpoint="no port"))


@pytest.mark.parametrize(
    ("native", "kind", "delayed"),
    [
        (True, MessageType.MIXED, True),
        (True, MessageType.DELAY, True),
        (True, MessageType.NORMAL, False),
        (False, MessageType.MIXED, False),
    ],
)
def test_an_eta_is_left_to_the_broker_where_its_topic_takes_one(native: bool, kind: MessageType, delayed: bool) -> None:
    session = SESSIONS.acquire(replace(SETTINGS, native_delay=native))
    payload = {"headers": {"eta": "2100-01-01T00:00:00+00:00"}, "properties": {}}
    assert (session._message("celery-q", payload, kind).delivery_ms is not None) is delayed
    SESSIONS.release(session)


class Refused:
    """The clients of a user who may describe topics, and create none; no topic exists."""

    existing: frozenset[str] = frozenset()

    def describe_topic(self, topic: str) -> Any:
        if topic in self.existing:
            return SimpleNamespace(message_type=MessageType.MIXED)
        raise TopicNotFound(topic)

    def create_topic(self, topic: str, **_: object) -> None:
        raise Forbidden(f"user ann may not create topic {topic}")

    def send(self, message: Message) -> None:
        raise TopicNotFound(message.topic)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[TransportSession]:
    session = SESSIONS.acquire(SETTINGS)
    clients = Refused()

    async def declare(_: str) -> None:
        raise TopicNotFound("celery-%broadcast")

    monkeypatch.setattr(session, "_admin", clients)
    monkeypatch.setattr(session, "_producer", lambda: clients)
    monkeypatch.setattr(session, "_declare_transient", declare)
    yield session
    SESSIONS.release(session)


PAYLOAD: dict[str, Any] = {"headers": {}, "properties": {}}


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.broadcast("celeryev", None, PAYLOAD),
        lambda session: session.declare_transient("mailbox"),
    ],
)
def test_without_the_topic_of_broadcasts_the_error_is_not_a_lost_connection(
    refused: TransportSession, use: Callable[[TransportSession], None]
) -> None:
    """kombu repeats after a lost connection, and a worker's first heartbeat without end."""
    for _ in range(2):
        with pytest.raises(Forbidden, match="evenq topic create celery-%broadcast --queues 1"):
            use(refused)


def test_a_queue_that_the_user_may_not_create_is_an_error_for_senders_and_workers(refused: TransportSession) -> None:
    refused.declare("q", levels=0)
    with pytest.raises(Forbidden, match="`evenq group create celery-q --from FIRST`, or grant `create`"):
        refused.send("q", PAYLOAD)
    refused.declare("q", levels=0)
    with pytest.raises(Forbidden, match="queue 'q' has no topic, and user ann may not create topic celery-q"):
        refused.check_consumable("q")


def test_a_queue_that_an_administrator_has_created_meanwhile_is_consumed(refused: TransportSession) -> None:
    refused.declare("q", levels=0)
    refused._admin.existing = frozenset({"celery-q"})  # type: ignore[attr-defined]  # the fake
    refused.check_consumable("q")
    refused.check_consumable("unknown")


def test_a_topic_that_was_deleted_is_a_lost_connection(
    refused: TransportSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection declares it again."""
    monkeypatch.setattr(refused._admin, "create_topic", lambda *_, **__: None)
    with pytest.raises(TopicNotFound):
        refused.broadcast("celeryev", None, PAYLOAD)
    with pytest.raises(TopicNotFound):
        refused.send("q", PAYLOAD)
