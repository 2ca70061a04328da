"""The member's open lines, one per broker of the topics' routes (RG-2): joins, beats, events, rejoins.

`loops.ownership` says which brokers are wanted and hears of every event. A broken line is opened again with growing
pauses for as long as its broker is wanted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from evenq.client.core.calls import (
    BrokerLeaving,
    ConsumerCalls,
    Join,
    Leave,
    MemberInfo,
    MembersChanged,
    SessionEvent,
    SettingsChanged,
    Welcome,
)
from evenq.client.core.lock_trust import LockTrust
from evenq.client.loops.troubles import Troubles
from evenq.errors import ConnectionFailed, DuplicateClientId, Error
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Sessions"]

BEAT_MIN_MS = 200
GHOST_MS = 5_000
"""A restarted broker hears of the group's members one by one. So long, those it knew before count as well: else the
first to come back would take everybody's queues."""


class _End:
    """Last in an outbox: its reader should go away. gRPC waits for the reader's next word even after the call has
    ended.
    """


class _Line:
    """The line to one broker."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.outbox: asyncio.Queue[Join | Leave | _End | None] = asyncio.Queue(maxsize=100)
        self.members: Sequence[MemberInfo] | None = None
        """None while the line is not up."""
        self.ghosts: Sequence[MemberInfo] = ()
        """Members before the line broke."""
        self.ghosts_until_ms = 0
        self.locks = LockTrust()
        self.strategy = ""
        """Of the group, as the broker told last; it counts while the line is down too."""
        self.joined_as = ""
        """The client id it was opened with."""
        self.tried = False
        self.closing = False
        """True from the word of its broker that it goes until it takes us in again: nothing is to be had there."""
        self.leaving = False
        self.task: asyncio.Task[None] | None = None

    def post(self, request: Join | Leave | None) -> None:
        """Say something; a full outbox means a stuck line, which its broker will drop."""
        if not self.outbox.full():
            self.outbox.put_nowait(request)

    def end(self) -> None:
        """Let the outbox's reader go."""
        while not self.outbox.empty():
            self.outbox.get_nowait()
        self.outbox.put_nowait(_End())


class Sessions:
    """All lines of one consumer."""

    def __init__(
        self,
        calls: ConsumerCalls,
        *,
        clock: Clock,
        rng: random.Random,
        join: Callable[[], Join],
        heard: Callable[[str, SessionEvent], None],
        broken: Callable[[str], None],
        taken: Callable[[str, str], None],
        suspected: Callable[[str], None],
        troubles: Troubles,
    ) -> None:
        """Called in the loop: `heard(broker, event)`, `broken(broker)`, `taken(client id, why)` when another member
        has our client id, and `suspected(broker)` when this program stood still for so long that its locks may be gone.
        """
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._join = join
        self._heard = heard
        self._broken = broken
        self._taken = taken
        self._suspected = suspected
        self._troubles = troubles
        self._lines: dict[str, _Line] = {}
        self.joins = True
        """False: this consumer is no member of its group; no lines."""

    def want(self, brokers: Mapping[str, str]) -> None:
        """Have a line to each of these (name to address) and no other."""
        if not self.joins:
            return
        for name, line in list(self._lines.items()):
            if brokers.get(name) != line.address:
                self._end(line)
                del self._lines[name]
        for name, address in brokers.items():
            if name not in self._lines:
                line = self._lines[name] = _Line(name, address)
                line.task = spawn(self._keep(line), name=f"evenq-session-{name}")

    def up(self, broker: str) -> bool:
        """True if the broker knows us as a member now, and stays."""
        line = self._lines.get(broker)
        return line is not None and line.members is not None and not line.closing

    def closing(self, broker: str) -> bool:
        """True if the broker said that it goes, and has not come back yet."""
        line = self._lines.get(broker)
        return line is not None and line.closing

    def trusted(self, broker: str, *, trust_ms: int) -> bool:
        """True if our locks there surely hold: the line is up, or broke at most `trust_ms` ago."""
        line = self._lines.get(broker)
        return line is not None and line.locks.trusted(self._clock.monotonic_ms(), trust_ms=trust_ms)

    def sure(self, broker: str) -> bool:
        """False if our locks there may have gone to others, and nobody has asked for them since (`confirm`)."""
        line = self._lines.get(broker)
        return line is None or line.locks.sure(self._clock.monotonic_ms())

    def suspect(self) -> list[str]:
        """Brokers whose line is up and whose locks must be asked for again."""
        return [line.name for line in self._lines.values() if line.locks.state.suspect and self.up(line.name)]

    def suspicions(self, broker: str) -> int:
        """How often our locks there became suspect so far; for `confirm`."""
        line = self._lines.get(broker)
        return 0 if line is None else line.locks.suspicions

    def confirm(self, broker: str, suspicions: int) -> bool:
        """Our locks there were asked for, and what was lost was let go; False: ask once more (`LockTrust.confirm`)."""
        line = self._lines.get(broker)
        return line is not None and line.locks.confirm(self._clock.monotonic_ms(), suspicions=suspicions)

    def rename(self) -> None:
        """The client has another id now: leave everywhere as who we were and come back as who we are."""
        for line in self._lines.values():
            if line.members is not None and line.joined_as != self._calls.client_id:
                line.post(Leave())

    @property
    def settled(self) -> bool:
        """True if every line is up or was tried in vain."""
        return all(line.members is not None or line.tried for line in self._lines.values())

    def members(self) -> list[MemberInfo] | None:
        """Who is in the group, by all brokers that we hear; None: nobody tells (RB-10)."""
        now_ms = self._clock.monotonic_ms()
        up = [line for line in self._lines.values() if line.members is not None]
        if not up:
            return None
        told = [line.ghosts for line in up if now_ms < line.ghosts_until_ms]
        told += [line.members for line in up if line.members is not None]
        return list({member.client_id: member for members in told for member in members}.values())

    def strategy(self) -> str:
        """How the server shares the group's queues; empty: no broker knows of a strategy. A broker that was away when
        the group got one does not know it yet.
        """
        return max((line.strategy for line in self._lines.values()), default="")

    def rejoin(self) -> None:
        """Tell changed subscriptions everywhere."""
        for line in self._lines.values():
            if line.members is not None:
                line.post(self._join())

    def beat(self) -> None:
        """A heartbeat to all brokers (RB-38)."""
        for line in self._lines.values():
            if line.members is not None:
                line.post(None)

    async def leave(self, *, timeout_ms: int = 2_000) -> None:
        """Say goodbye everywhere and wait a little for the ends."""
        tasks: list[asyncio.Task[None]] = []
        for line in self._lines.values():
            line.leaving = True
            line.post(Leave())
            if line.task is not None:
                if line.members is None:
                    line.task.cancel()
                tasks.append(line.task)
        self._lines.clear()
        if tasks:
            timer = spawn(self._clock.sleep_ms(timeout_ms), name="evenq-leave-timer")
            everyone = asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.wait({everyone, timer}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(everyone, timer, return_exceptions=True)

    def _end(self, line: _Line) -> None:
        line.leaving = True
        if line.task is not None:
            line.task.cancel()

    async def _keep(self, line: _Line) -> None:
        # A broker that restarts is back within a second or a few: each wait is a small part of what has passed by then.
        backoff = Backoff(self._rng, first_ms=200, max_ms=1_000, factor=1.2)
        while not line.leaving:
            try:
                await self._once(line, backoff)
            except DuplicateClientId as error:
                self._taken(line.joined_as, str(error))
            except Error as error:
                if line.leaving:
                    return
                if line.joined_as != self._calls.client_id:
                    backoff.reset()
                    continue
                self._troubles.failed(f"broker {line.name}", error)
            finally:
                line.locks.end(self._clock.monotonic_ms())
                line.ghosts = line.members or line.ghosts
                line.members, line.tried = None, True
                if not line.leaving:
                    self._broken(line.name)
            if not line.leaving:
                await self._clock.sleep_ms(backoff.next_ms())

    async def _once(self, line: _Line, backoff: Backoff) -> None:
        line.outbox = asyncio.Queue(maxsize=100)
        line.joined_as = self._calls.client_id
        line.post(self._join())
        beats: asyncio.Task[None] | None = None
        try:
            async for event in self._calls.session(line.address, self._requests(line.outbox)):
                match event:
                    case Welcome():
                        backoff.reset()
                        self._troubles.well(f"broker {line.name}")
                        line.members, line.strategy, line.closing = event.members, event.strategy, False
                        line.locks.welcome(self._clock.monotonic_ms(), lease_ms=event.session_timeout_ms)
                        if line.joined_as != self._calls.client_id:
                            line.post(Leave())
                        line.ghosts_until_ms = self._clock.monotonic_ms() + (GHOST_MS if line.ghosts else 0)
                        if beats is None:
                            beats = spawn(self._beats(line, event.beat_interval_ms), name=f"evenq-beats-{line.name}")
                    case MembersChanged():
                        line.members = event.members
                    case SettingsChanged():
                        line.strategy = event.strategy
                    case BrokerLeaving():
                        line.closing = True
                    case _:
                        pass
                self._heard(line.name, event)
        finally:
            if beats is not None:
                beats.cancel()
            line.end()
        if not line.leaving:
            raise ConnectionFailed(f"broker {line.name} at {line.address} ended the session")

    async def _beats(self, line: _Line, interval_ms: int) -> None:
        while True:
            await self._clock.sleep_ms(max(BEAT_MIN_MS, interval_ms))
            if line.locks.speak(self._clock.monotonic_ms()):
                self._suspected(line.name)
            line.post(None)
            if line.ghosts and line.members is not None and self._clock.monotonic_ms() >= line.ghosts_until_ms:
                line.ghosts = ()
                self._heard(line.name, MembersChanged(line.members))

    @staticmethod
    async def _requests(outbox: asyncio.Queue[Join | Leave | _End | None]) -> AsyncIterator[Join | Leave | None]:
        while True:
            request = await outbox.get()
            if isinstance(request, _End):
                return
            yield request
            if isinstance(request, Leave):
                return
