"""Questions to v2 clients over their telemetry streams: a stack trace, a listener's verdict on a message (wire contract
4.5).

A command carries a nonce; the answer brings it back (`loops.wire.telemetry`). Nobody waits longer than
`client_answer_ms`, and at most `ASKED_MAX` questions are open at once.
"""

from __future__ import annotations

import asyncio

from evenq.errors import NotFound, RequestTimeout, TooManyRequests
from evenq_broker.loops.clients.streams import Streams
from evenq_broker.loops.state.signals import done_within
from evenq_broker.loops.wire.telemetry import TelemetryCommand, nonce_of
from evenq_broker.runtime import Runtime

__all__ = ["Commands"]

ASKED_MAX = 256


class Commands:
    """The open questions of one broker."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime, self._streams = runtime, streams
        self._pending: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        self._answers: dict[str, TelemetryCommand] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def nonce(self) -> str:
        """Unique, and not to be guessed by another client."""
        return f"{self._runtime.rng.getrandbits(128):032x}"

    async def ask(self, client_id: str, nonce: str, command: TelemetryCommand) -> TelemetryCommand:
        """The client's answer. Raises NotFound (it has no stream here), RequestTimeout, TooManyRequests."""
        if len(self._pending) >= ASKED_MAX:
            raise TooManyRequests(f"{len(self._pending)} questions to clients are open, the limit is {ASKED_MAX}; wait")
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
        """Something came from a client that is no settings; what was not requested is dropped."""
        nonce = nonce_of(command)
        pending = None if nonce is None else self._pending.get(nonce)
        if nonce is not None and pending is not None and pending[0] == client_id and not pending[1].done():
            self._answers[nonce] = command
            pending[1].set_result(True)
