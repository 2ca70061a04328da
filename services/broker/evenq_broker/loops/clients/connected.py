"""The v2 clients of this broker: their table, their telemetry streams, requests to them, and their end.

The end of a client releases its deliveries. Wire contract 3.6 and 5.1: deliveries of push consumers have no timer while
the client lives; after its end they become visible within about a second. `loops.groups.departures` decides when a
client is gone. Parts that keep state of a client register for its end (`on_end`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenq.errors import NotFound, RequestTimeout, TooManyRequests
from evenq.runtime.tasks import done_within
from evenq_broker.core.clients.client_table import ClientTable
from evenq_broker.loops.clients.streams import Streams, TelemetryStream
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.telemetry import TelemetryCommand, nonce_of
from evenq_broker.runtime import Runtime

RELEASE_MS = 1_000  # a last ack may still be on its way
JAVA = "JAVA"
ASKED_MAX = 256


class ConnectedClients:
    """All clients of the v2 protocol at one broker."""

    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._ledger = kernel.runtime, kernel.ledger
        settings = kernel.runtime.settings
        self.table = ClientTable(clients_max=settings.clients_max)
        """Clients with the time of their last sign of life."""
        self.streams = Streams(kernel.runtime.clock, commands_max=settings.stream_commands_max)
        self.commands = Commands(kernel.runtime, self.streams)
        self.on_release: Callable[[int], None] = lambda _: None
        """Called when deliveries of an ended client become visible, ms since the epoch; set at the start."""
        self._end_listeners: list[Callable[[str], None]] = []

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Calls `listener(client_id)` when a client is gone."""
        self._end_listeners.append(listener)

    def open_stream(self, client_id: str, language: str) -> TelemetryStream:
        """Opens a new telemetry stream of the client."""
        # A Java client may open one after its own end, if its NotifyClientTermination was lost, and waits for its end.
        on_trial = language == JAVA
        if on_trial:
            self.table.expect_call(client_id)
        return self.streams.open(client_id, on_trial=on_trial)

    def end(self, client_id: str, *, delay_ms: int = RELEASE_MS) -> None:
        """Ends the state of a client that is gone, and its deliveries `delay_ms` from now."""
        if not client_id:
            return
        self.table.forget(client_id)
        self.streams.retire(client_id)
        for listener in self._end_listeners:
            listener(client_id)
        visible_ms = self._runtime.now_ms() + delay_ms
        changed = self._ledger.progress.release(client_id, visible_ms)
        if changed:
            self._ledger.journal.record(*(queue.op(offset, queue.pending[offset]) for queue, offset in changed))
            self.on_release(visible_ms)

    def lives(self, client_id: str, silence_ms: int) -> bool:
        """True if this broker sees that the client lives: it has a stream here, or made a call within `silence_ms`."""
        return self.streams.reaches(client_id) or self.table.heard(client_id, self._runtime.now_ms(), silence_ms)


class Commands:
    """Requests to v2 clients over their telemetry streams: a stack trace, a listener's result for a message (wire
    contract 4.5).

    A command has a nonce, which the answer repeats (`loops.wire.telemetry`). A request waits `client_answer_ms` at
    most, and at most `ASKED_MAX` are open at the same time.
    """

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime, self._streams = runtime, streams
        self._pending: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        self._answers: dict[str, TelemetryCommand] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def nonce(self) -> str:
        """Returns a unique value that other clients cannot guess."""
        return f"{self._runtime.rng.getrandbits(128):032x}"

    async def ask(self, client_id: str, nonce: str, command: TelemetryCommand) -> TelemetryCommand:
        """Returns the client's answer. Raises NotFound (it has no stream here), RequestTimeout, TooManyRequests."""
        if len(self._pending) >= ASKED_MAX:
            raise TooManyRequests(
                f"{len(self._pending)} requests to clients are open, the limit is {ASKED_MAX}; try again later"
            )
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[nonce] = client_id, future
        patience_ms = self._runtime.settings.client_answer_ms
        try:
            if not self._streams.push(client_id, command.SerializeToString()):
                raise NotFound(
                    f"client {client_id!r} has no open telemetry stream at broker "
                    f"{self._runtime.settings.broker_name}; see `evenq client list`"
                )
            if not await done_within(future, patience_ms, clock=self._runtime.clock):
                raise RequestTimeout(
                    f"client {client_id!r} did not answer within {patience_ms} ms; SDKs for Python and Rust never do"
                )
            return self._answers[nonce]
        finally:
            del self._pending[nonce]
            self._answers.pop(nonce, None)
            future.cancel()

    def answered(self, client_id: str, command: TelemetryCommand) -> None:
        """Handles a message of a client that is not settings; one that was not requested is dropped."""
        nonce = nonce_of(command)
        pending = None if nonce is None else self._pending.get(nonce)
        if nonce is not None and pending is not None and pending[0] == client_id and not pending[1].done():
            self._answers[nonce] = command
            pending[1].set_result(True)
