"""Runner of one candidate: carries out the commands of `core/election.py` on any lease with compare-and-set.

`began` and `ended` are called on the loop, alternately. `leads()` is called before each answer and publication, because
a paused process notices its pause only afterwards. Each kind of failure of the lease is logged once until a call
succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq_rebalancer.core.election import Begin, Command, Elector, End, LeaseTiming, Read, Record, SeenRecord, Write

log = logging.getLogger(__name__)

UNKNOWN = "?"
"""Address of the leader if none leads or it is not known."""
_SEPARATOR = "_"


class Lease(Protocol):
    """One record that several processes read and compare-and-set. Both calls end within about 2 s."""

    async def read(self) -> SeenRecord | None:
        """Returns the record; None: there is none. Raises an Error of `evenq.errors` if that is not known."""
        ...

    async def write(self, record: Record, version: str) -> str | None:
        """Writes if the lease has `version` (empty: does not exist). Returns the new version; None: a lost race.

        Raises an Error if the outcome is not known.
        """
        ...


def identity_of(address: str, nonce: str) -> str:
    """Returns the identity of one start of the rebalancer at `address`."""
    return f"{address}{_SEPARATOR}{nonce}"


class LeaseCandidate:
    """One candidate for a lease."""

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
        self._logged: set[type[Error]] = set()
        """Failures in the log since the last call that went well, each once."""
        self._busy = asyncio.Lock()
        self.transitions = 0
        """Number of terms of this process."""

    def leads(self) -> bool:
        """True while this process may decide."""
        return self._elector.leads(self._clock.monotonic_ms())

    def leader(self) -> str:
        """Returns the address of the leader, or `UNKNOWN`."""
        holder = self._elector.holder(self._clock.monotonic_ms())
        return holder.rpartition(_SEPARATOR)[0] or UNKNOWN

    async def run(self) -> None:
        """Runs one round after the other. Never ends."""
        while True:
            await self.round()
            await self._clock.sleep_ms(self._timing.retry_ms)

    async def watch(self) -> None:
        """Ends a term that was not renewed in time, even while a round hangs. Never ends."""
        while True:
            await self._clock.sleep_ms(max(1, min(100, self._timing.retry_ms // 4)))
            self._carry_out(self._elector.tick(self._clock.monotonic_ms()))

    async def round(self) -> None:
        """Reads, renews or takes the lease."""
        async with self._busy:
            call = self._carry_out(self._elector.due(now_ms=self._clock.monotonic_ms()))
            for _ in range(2):  # a read, and the write that follows from it
                if call is None:
                    return
                call = await self._call(call)

    async def resign(self) -> None:
        """Stops leading and releases the lease, so that the next leader begins immediately. Never raises."""
        async with self._busy:  # with a renewal under way the release would lose its race
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
            if type(error) not in self._logged:
                self._logged.add(type(error))
                log.warning("the lease cannot be read or written: %s", error.message)
            commands = self._elector.failed(now_ms=self._clock.monotonic_ms())
        else:
            if self._logged:
                log.info("the lease can be read and written again")
            self._logged.clear()
        return self._carry_out(commands)

    def _carry_out(self, commands: Iterable[Command]) -> Read | Write | None:
        """Begins and ends terms immediately. Returns the call to make, if any."""
        call: Read | Write | None = None
        for command in commands:
            match command:
                case Begin(epoch):
                    self.transitions += 1
                    identity = self._elector.identity
                    fields = {"identity": identity, "epoch": epoch}
                    log.info("rebalancer %s became the leader, epoch %d", identity, epoch, extra=fields)
                    self._began(epoch)
                case End(reason):
                    log.warning("rebalancer is no longer the leader: %s", reason)
                    self._ended()
                case Read() | Write():
                    call = command
        return call
