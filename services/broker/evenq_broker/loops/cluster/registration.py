"""Telling the nameservers that this broker lives, and what it stores (NS-4, NS-5).

One loop per nameserver, none waits for another: everything at the start and at once after each change, "still here" in
between at the interval that this nameserver asked for, and everything again when it does not know us (it restarted, or
had dropped us). A closing broker says goodbye, so that it leaves the routes without a time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from evenq.errors import Error
from evenq.runtime.backoff import Backoff
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.cluster.own_view import OwnView
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.registry import (
    heartbeat,
    heartbeat_interval_ms,
    register,
    unregister,
    wants_everything,
)
from evenq_broker.runtime import Runtime

__all__ = ["Registration"]

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_MS = 1_000


class Registration:
    """The broker's line to one nameserver."""

    def __init__(
        self, runtime: Runtime, own: OwnView, address: str, changes: Signal, *, on_answer: Callable[[], None]
    ) -> None:
        """`on_answer` is called when the nameserver begins to answer."""
        self._on_answer = on_answer
        self._runtime, self._own = runtime, own
        self._address = address
        self._changes = changes
        self._interval_ms = runtime.settings.register_interval_ms
        self._registered: tuple[str, int, tuple[str, ...]] | None = None
        """Incarnation and data version this nameserver has; None: it must be sent everything."""
        self._talking = asyncio.Lock()
        self._left = False
        self.answers = False
        """True while the last call went well."""
        self.tried = asyncio.Event()
        """Set when the first try has ended, well or not."""

    async def run(self) -> None:
        """Ends after `goodbye` only; a nameserver that is away is asked again after a growing pause."""
        backoff = Backoff(self._runtime.rng, max_ms=2_000)
        while not self._left:
            seen = self._changes.count
            try:
                async with self._talking:
                    await self._tell()
                self._heard()
                backoff.reset()
                wait_ms = self._interval_ms
            except Error as error:
                self._lost(error)
                wait_ms = backoff.next_ms()
            self.tried.set()
            await self._changes.wait(seen, clock=self._runtime.clock, timeout_ms=wait_ms)

    async def goodbye(self) -> None:
        """Leave the routes now, for good. A nameserver that does not answer finds out by itself."""
        if self._left:
            return
        self._left = True
        request = unregister(self._own.now())
        try:
            async with self._talking:
                await self._call("Unregister", request, UNREGISTER_TIMEOUT_MS)
        except Error as error:
            log.info(
                "nameserver %s was not notified that this broker stops: %s",
                self._address,
                error.message,
                extra={"nameserver": self._address},
            )

    async def _tell(self) -> None:
        if self._left:
            return
        own = self._own.now()
        if self._registered != (own.incarnation, own.data_version, own.followers):
            await self._register(own)
            return
        if wants_everything(await self._call("Heartbeat", heartbeat(own))):
            await self._register(own)

    async def _register(self, own: RegisteredBroker) -> None:
        self._registered = None
        wanted_ms = heartbeat_interval_ms(await self._call("Register", register(own)))
        if wanted_ms:
            self._interval_ms = min(wanted_ms, self._runtime.settings.register_interval_ms)
        self._registered = (own.incarnation, own.data_version, own.followers)

    async def _call(self, rpc: str, request: bytes, timeout_ms: int | None = None) -> bytes:
        limit_ms = timeout_ms or self._runtime.settings.peer_timeout_ms
        return await self._runtime.net.unary(self._address, f"/evenq.v1.Registry/{rpc}", request, timeout_ms=limit_ms)

    def _heard(self) -> None:
        if not self.answers:
            log.info("registered at nameserver %s", self._address, extra={"nameserver": self._address})
            self.answers = True
            self._on_answer()

    def _lost(self, error: Error) -> None:
        if self.answers or not self.tried.is_set():
            log.warning(
                "not registered at nameserver %s: %s",
                self._address,
                error.message,
                extra={"nameserver": self._address},
            )
        self.answers = False
        self._registered = None
