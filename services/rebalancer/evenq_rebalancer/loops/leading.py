"""Leading or following: carries out what `core/election.py` decides, on any lease that can be compared and set.

Started by `app.py` when there is a lease. `began` and `ended` are called on the loop, in turn; `leads()` is asked
before each answer and each publication, because a process that was paused learns of it only afterwards. A lease that
cannot be reached is logged once until it can be reached again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq_rebalancer.core.election import Begin, Command, Elector, End, LeaseTiming, Read, Record, SeenRecord, Write

__all__ = ["UNKNOWN", "Lease", "LeaseCandidate", "identity_of"]

log = logging.getLogger(__name__)

UNKNOWN = "?"
"""Address of the leader when none leads, or it is not known which does."""
_SEPARATOR = "_"


class Lease(Protocol):
    """One record that several processes read and compare-and-set. Both calls end within a second or two."""

    async def read(self) -> SeenRecord | None:
        """What the lease says; None: there is none. Raises an Error of `evenq.errors` if it is not known."""
        ...

    async def write(self, record: Record, version: str) -> str | None:
        """Set it if it still has `version` (empty: if there is none); the new version, or None for a lost race.

        Raises an Error if it is not known whether it was written.
        """
        ...


def identity_of(address: str, nonce: str) -> str:
    """The identity of one start of the rebalancer that is reached at `address`."""
    return f"{address}{_SEPARATOR}{nonce}"


class LeaseCandidate:
    """One candidate at work."""

    def __init__(
        self,
        lease: Lease,
        *,
        identity: str,
        timing: LeaseTiming,
        clock: Clock,
        began: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:
        self._lease = lease
        self._elector = Elector(identity, timing)
        self._timing = timing
        self._clock = clock
        self._began = began
        self._ended = ended
        self._reached = True
        self._busy = asyncio.Lock()
        self.transitions = 0
        """How often this process began to lead."""

    def leads(self) -> bool:
        """True while this process may decide."""
        return self._elector.leads(self._clock.monotonic_ms())

    def leader(self) -> str:
        """`host:port` of the leader, or `UNKNOWN`."""
        holder = self._elector.holder(self._clock.monotonic_ms())
        return holder.rpartition(_SEPARATOR)[0] or UNKNOWN

    async def run(self) -> None:
        """One round after the other. Never ends."""
        while True:
            await self.round()
            await self._clock.sleep_ms(self._timing.retry_ms)

    async def watch(self) -> None:
        """End the leadership when its time is over, even while a round hangs. Never ends."""
        while True:
            await self._clock.sleep_ms(max(1, min(100, self._timing.retry_ms // 4)))
            self._carry_out(self._elector.tick(self._clock.monotonic_ms()))

    async def round(self) -> None:
        """Look at the lease, or renew it, or take it."""
        async with self._busy:
            call = self._carry_out(self._elector.due(now_ms=self._clock.monotonic_ms()))
            for _ in range(2):  # a look, and what follows from it
                if call is None:
                    return
                call = await self._call(call)

    async def resign(self) -> None:
        """Stop leading and let go of the lease, so that the next leader begins at once. Never raises."""
        async with self._busy:  # a renewal under way would make the release lose its race
            call = self._carry_out(self._elector.resign(now_ms=self._clock.monotonic_ms()))
            if call is not None:
                await self._call(call)

    async def _call(self, call: Read | Write) -> Read | Write | None:
        try:
            if isinstance(call, Read):
                seen = await self._lease.read()
                now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
                commands = self._elector.observed(seen, now_ms=now_ms, wall_ms=wall_ms)
            else:
                version = await self._lease.write(call.record, call.version)
                now_ms = self._clock.monotonic_ms()
                if version is None:
                    commands = self._elector.lost_race(now_ms=now_ms)
                else:
                    commands = self._elector.written(call, version, now_ms=now_ms)
        except Error as error:
            if self._reached:
                log.warning("the lease cannot be read or written: %s", error.message)
            self._reached = False
            commands = self._elector.failed(now_ms=self._clock.monotonic_ms())
        else:
            if not self._reached:
                log.info("the lease can be read and written again")
            self._reached = True
        return self._carry_out(commands)

    def _carry_out(self, commands: Iterable[Command]) -> Read | Write | None:
        """Begin and end at once; the call that is to be made, if any."""
        call: Read | Write | None = None
        for command in commands:
            match command:
                case Begin(epoch):
                    self.transitions += 1
                    identity = self._elector.identity
                    log.info(
                        "rebalancer %s became the leader, epoch %d", identity, epoch,
                        extra={"identity": identity, "epoch": epoch},
                    )  # fmt: skip
                    self._began(epoch)
                case End(reason):
                    log.warning("rebalancer is no longer the leader: %s", reason)
                    self._ended()
                case Read() | Write():
                    call = command
        return call
