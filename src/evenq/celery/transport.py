"""The kombu transport `evenq`: connections, the errors that kombu repeats after, and the two ways of consuming.

Celery's worker watches `inbox` in its event loop (`register_with_event_loop`); other programs wait in `drain_events`.
Receivers in the loop thread of the process repair themselves while brokers are away, so a connection of kombu that was
made stays usable; its publishers get the errors below.
"""

from __future__ import annotations

import contextlib
from typing import Any

from kombu.transport import virtual

from evenq import errors
from evenq.celery.channel import EvenqChannel
from evenq.celery.inbox import Inbox
from evenq.celery.session import SESSIONS, TransportSession
from evenq.celery.settings import DEFAULT_PORT, settings_of
from evenq.runtime.clock import SystemClock
from evenq.runtime.version import __version__

DELIVERIES_MAX = 100
"""Most deliveries of one turn of an event loop, which also serves the pool's results."""
_clock = SystemClock()


class EvenqTransport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """`evenq://host:port/name`."""

    Channel = EvenqChannel
    default_port = DEFAULT_PORT
    polling_interval = None
    driver_type = "evenq"
    driver_name = "evenq"
    secure = False

    connection_errors = (
        *virtual.Transport.connection_errors,
        errors.ConnectionFailed,
        errors.RequestTimeout,
        errors.HaNotAvailable,
        errors.TooManyRequests,
        errors.PersistenceTimeout,
        errors.InternalError,
        errors.NotFound,  # a topic or group was deleted: it is declared again with the next connection
    )
    channel_errors = (*virtual.Transport.channel_errors, errors.Error)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._session: TransportSession | None = None
        self._inbox: Inbox | None = None
        self._channel_of: dict[tuple[str, object | None], EvenqChannel] = {}
        """The consuming channel, by queue and source of its deliveries."""
        self._loop: Any = None
        """The event loop that watches the inbox."""

    def driver_version(self) -> str:
        return __version__

    # ------------------------------------------------------------------------------------------------- connections

    @property
    def session(self) -> TransportSession:
        """The clients of this process. Raises SettingsError, IllegalAccessPoint."""
        if self._session is None or not self._session.alive:
            client = self.client
            self._session = SESSIONS.acquire(
                settings_of(
                    hostname=client.hostname,
                    port=client.port,
                    userid=client.userid,
                    password=client.password,
                    virtual_host=client.virtual_host,
                    ssl=client.ssl,
                    options=client.transport_options or {},
                    secure=self.secure,
                )
            )
        return self._session

    @property
    def inbox(self) -> Inbox:
        """Deliveries for all channels of this connection."""
        if self._inbox is None:
            self._inbox = Inbox()
        return self._inbox

    def establish_connection(self) -> Any:
        """Raises ConnectionFailed if no broker answers."""
        try:
            self.session.check()
        except errors.Error:
            self._release()  # kombu closes only connections that were made
            raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self._release()
        self.unregister_from_event_loop(connection, self._loop)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()

    def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            SESSIONS.release(session)

    def verify_connection(self, connection: Any) -> bool:  # noqa: ARG002 - kombu's signature
        """Returns False in a forked child, whose pools then make their own connections."""
        return self._session is not None and self._session.alive

    # --------------------------------------------------------------------------------------------------- consuming

    def consumed_by(self, queue: str, source: object | None, channel: EvenqChannel) -> None:
        """Lets a channel get the deliveries of a queue that have this source."""
        self._channel_of[queue, source] = channel

    def not_consumed(self, queue: str, source: object | None) -> None:
        """Returns deliveries that were not taken. Call it when the source delivers nothing more: a later delivery would
        be dropped, and held as long as its channel is open.
        """
        for one in {None, source}:  # None: the queue was a transient one, and may have been deleted
            channel = self._channel_of.pop((queue, one), None)
            for delivery in self.inbox.drop(queue, one):
                if channel is not None:
                    channel.return_delivery(delivery)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's signature
        """Delivers one message; raises TimeoutError, which is `socket.timeout`, after `timeout` seconds without one."""
        until_ms = None if timeout is None else _clock.monotonic_ms() + timeout * 1_000
        while True:
            left = None if until_ms is None else max(0.0, until_ms - _clock.monotonic_ms()) / 1_000
            if not self.inbox.wait(left):
                raise TimeoutError
            if self._deliver_next():
                return

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        self._loop = loop
        loop.add_reader(self.inbox.fileno(), self.on_readable, self.inbox.fileno(), loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        if self._inbox is not None and loop is not None:
            with contextlib.suppress(ValueError, KeyError):
                loop.remove_reader(self._inbox.fileno())
        self._loop = None

    def on_readable(self, fileno: int, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Delivers what is there, in the event loop."""
        for _ in range(DELIVERIES_MAX):
            if not self._deliver_next():
                return

    def _deliver_next(self) -> bool:
        delivery = self.inbox.take()
        if delivery is None:
            return False
        channel = self._channel_of.get((delivery.queue, delivery.source))
        if channel is not None:
            channel.deliver(delivery)
        return True


class SecureEvenqTransport(EvenqTransport):
    """`evenqs://host:port/name`: with TLS."""

    secure = True
