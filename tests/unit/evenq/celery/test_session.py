"""Sessions are shared by connections with equal settings, and belong to their process."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from dataclasses import replace

import pytest

from evenq.celery.broadcasts import Binding
from evenq.celery.names import QueueNames
from evenq.celery.session import SESSIONS, TransportSession
from evenq.celery.settings import TransportSettings
from evenq.errors import ConnectionFailed, IllegalAccessPoint
from evenq.model import MessageType

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
