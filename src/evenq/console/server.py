"""The HTTP server of the console: uvicorn in the loop of its caller.

A stranger may open connections and send nothing, or a request that never ends. Such a connection has `REQUEST_S`; when
there are `CONNECTIONS_MAX`, the one that waits longest is closed for a new one, so that users still get through.

A health probe is answered also when all places are used by requests, because a console that is busy must not be
restarted for it. It takes no place: `PROBES_MAX` connections more are accepted, on which any other request is refused,
and the connection of a probe ends with its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from evenq.console.app import HEALTH, create_app
from evenq.console.settings import ConsoleSettings
from evenq.errors import SettingsError
from evenq.model.route import WILDCARDS
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.binding import bind

CONNECTIONS_MAX = 512
PROBES_MAX = 64
"""Connections above `CONNECTIONS_MAX`: on them only health probes are answered."""
REQUEST_S = 60
"""For the head and the body of a request, and for reading a response."""
HEAD_BYTES_MAX = 32 << 10
SHUTDOWN_S = 3


class ConsoleServer:
    """A running console; an asynchronous context manager. Raises PortInUse, SettingsError."""

    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._sockets = bind(settings.host, settings.port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                create_app(replace(settings, port=self.port), clock),
                log_config=None,
                log_level="error",  # strangers can send broken requests at any rate; each would be a line
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                timeout_graceful_shutdown=SHUTDOWN_S,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
                ws="none",
                http=_HttpConnection,
                proxy_headers=False,
                loop="none",
                lifespan="on",
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._settings.certificate is None else "https"
        host = self._settings.host if self._settings.host not in WILDCARDS else "127.0.0.1"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self._settings.prefix}/"

    async def __aenter__(self) -> Self:
        try:
            self._server.config.load()
        except (OSError, ValueError) as error:  # also of ssl
            self._close()
            files = f"{self._settings.certificate}, {self._settings.key}"
            raise SettingsError(f"the certificate and its key cannot be used: {error}; see {files}") from error
        self._task = spawn(self._server.serve(self._sockets), name="console")
        while not self._server.started:
            if self._task.done():
                self._close()
                await self._task
                raise SettingsError("the console did not start; see the log")
            await self._clock.sleep_ms(10)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._close()

    def _close(self) -> None:
        for one in self._sockets:
            one.close()

    async def wait(self) -> None:
        """Returns when the server has ended."""
        if self._task is not None:
            await asyncio.shield(self._task)


class _HttpConnection(H11Protocol):
    """A connection with a limit for the time in which its client sends a request and reads the response."""

    waits_since = 0.0
    """Loop time since which the server waits for the client; 0: the client waits for the server."""
    is_probe = False
    """True: it carries a health probe, and takes no place of a user."""
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._console = self.app
        self.app = self._admitted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        others = [one for one in self.connections if isinstance(one, _HttpConnection) and one is not self]
        if sum(not one.is_probe for one in others) + 1 >= CONNECTIONS_MAX:
            waiting = [one for one in others if one.waits_since]
            if waiting:
                oldest = min(waiting, key=lambda one: one.waits_since)
                self.connections.discard(oldest)
                oldest.transport.abort()
            elif len(others) >= CONNECTIONS_MAX + PROBES_MAX:
                self.transport.abort()
        self._wait()

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request of the connection, or refuses it if users have all places."""
        self.is_probe = scope["path"] == HEALTH and scope["method"] in {"GET", "HEAD"}
        users = sum(isinstance(one, _HttpConnection) and not one.is_probe for one in self.connections)
        if not self.is_probe and users >= CONNECTIONS_MAX:
            text = "All places of this console are used by other requests; try again.\n"
            await PlainTextResponse(text, 503, {"connection": "close"})(scope, receive, send)
            return
        try:
            await self._console(scope, receive, send)
        except BaseException:
            self._wait()  # uvicorn closes the transport
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._judge()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._judge()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._judge()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._judge()

    def _judge(self) -> None:
        """Ends the time limit while the client waits for a response; otherwise begins one, unless there is one."""
        received = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        answered = self.cycle is None or self.cycle.response_complete
        # A closing transport waits for its client too: it sends its last output first.
        if received and not answered and not self.flow.write_paused and not self.transport.is_closing():
            self._go_on()
        else:
            self._wait()

    def _wait(self) -> None:
        """Begins a time limit, unless there is one or the connection has ended."""
        if self._deadline is None and self in self.connections:
            self.waits_since = self.loop.time()
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _go_on(self) -> None:
        self.waits_since = 0.0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """A server that leaves the signals to the program around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
