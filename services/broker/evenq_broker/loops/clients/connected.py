"""The v2 clients that this broker knows: the table of them, their telemetry streams, questions to them, and their end.

A client that is gone gives back what only its life held. Wire contract 3.6 and 5.1: deliveries of push consumers have
no timer while the client lives; after its end they become visible within about a second. When a client is gone is
decided by `loops.groups.departures`. Parts that keep something for a client listen for its end (`on_end`).
"""

from __future__ import annotations

from collections.abc import Callable

from evenq_broker.core.clients.client_table import ClientTable
from evenq_broker.loops.clients.commands import Commands
from evenq_broker.loops.clients.streams import Streams, TelemetryStream
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["RELEASE_MS", "ConnectedClients"]

RELEASE_MS = 1_000  # a last ack may still be on its way
JAVA = "JAVA"


class ConnectedClients:
    """All clients of the v2 protocol at one broker."""

    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        self._runtime, self._ledger = runtime, ledger
        settings = runtime.settings
        self.table = ClientTable(clients_max=settings.clients_max)
        """Who gave a sign of life, and when."""
        self.streams = Streams(runtime.clock, commands_max=settings.stream_commands_max)
        self.commands = Commands(runtime, self.streams)
        self.on_release: Callable[[int], None] = lambda _: None
        """Told when deliveries of an ended client become visible, ms since the epoch; set at the start."""
        self._end_listeners: list[Callable[[str], None]] = []

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Call `listener(client_id)` when a client is gone."""
        self._end_listeners.append(listener)

    def open_stream(self, client_id: str, language: str) -> TelemetryStream:
        """A new telemetry stream of the client."""
        # Java may open one when its client was closed already, if its goodbye did not arrive, and waits for its end.
        on_trial = language == JAVA
        if on_trial:
            self.table.expect_call(client_id)
        return self.streams.open(client_id, on_trial=on_trial)

    def end(self, client_id: str, *, delay_ms: int = RELEASE_MS) -> None:
        """The client is gone: end what is kept for it, and its deliveries `delay_ms` from now."""
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
        """Whether this broker sees that the client lives: it has a stream here, or made a call within `silence_ms`."""
        return self.streams.reaches(client_id) or self.table.heard(client_id, self._runtime.now_ms(), silence_ms)
