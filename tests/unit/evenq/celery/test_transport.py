"""The transport as kombu finds it: its names, its errors, its connections."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from celery import Celery
from celery.signals import worker_init
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from kombu import Connection
from kombu.exceptions import OperationalError

import evenq.celery
from evenq import errors
from evenq.celery.session import SESSIONS
from evenq.celery.transport import EvenqTransport, SecureEvenqTransport


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
