"""The member's sessions, one with each broker of the topics' routes (RG-2): joins, heartbeats, events, rejoins.

`loops.ownership` selects the brokers, and is notified of every event. A broken connection is reopened with growing
pauses while its broker is selected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from evenq.client.core.calls import Join, Leave, MemberInfo, SessionEvent, Welcome
from evenq.client.core.groups.lock_trust import LockTrust
from evenq.client.loops.clients.troubles import Troubles
from evenq.errors import ConnectionFailed, DuplicateClientId, Error
from evenq.model.session_events import BrokerLeaving, MembersChanged, SettingsChanged
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

BEAT_MIN_MS = 200
REVOKE_MS = 90_000
"""For a broker that does not send its `revoke_ms`: the default of that setting."""
GHOST_MS = 5_000
"""Time for which members before a broker's restart still count: the first one to rejoin must not take all queues."""


class _End:
    """Last element of an outbox, which ends its reader: gRPC waits for the reader even after the call has ended."""


class _Connection:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.outbox: asyncio.Queue[Join | Leave | _End | None] = asyncio.Queue(maxsize=100)
        self.members: Sequence[MemberInfo] | None = None
        """None while the connection is not open."""
        self.ghosts: Sequence[MemberInfo] = ()
        """Members before the connection broke."""
        self.ghosts_until_ms = 0
        self.locks = LockTrust()
        self.revoke_ms = REVOKE_MS
        self.strategy = ""
        """Of the group, by the last report of the broker; it counts while the connection is down, too."""
        self.joined_as = ""
        """The client id with which it was opened."""
        self.introduced = 0
        """`BrokerSessions._introduction` at the last join."""
        self.tried = False
        self.closing = False
        """True from the broker's `BrokerLeaving` to its next Welcome: it grants no locks."""
        self.leaving = False
        self.task: asyncio.Task[None] | None = None

    def post(self, request: Join | Leave | None) -> None:
        """Sends a request; a full outbox means a stuck connection, which its broker will end."""
        if not self.outbox.full():
            self.outbox.put_nowait(request)

    def end(self) -> None:
        while not self.outbox.empty():
            self.outbox.get_nowait()
        self.outbox.put_nowait(_End())


class BrokerSessions:
    def __init__(
        self,
        calls: RpcConsumerCalls,
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
        """Called in the loop: `heard(broker, event)`; `broken(broker)`; `taken(client id, why)` when another member has
        the client id; `suspected(broker)` when this program was suspended so long that its locks may be lost.
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
        self._connections: dict[str, _Connection] = {}
        self.joins = True
        """False: this consumer does not join its group, and has no connections."""
        self._introduction = 0
        """Incremented when the content of `join` changes."""

    def want(self, brokers: Mapping[str, str]) -> None:
        """Keeps a connection to exactly these brokers (name to address)."""
        if not self.joins:
            return
        for name, connection in list(self._connections.items()):
            # A broker at another address may be another process, without a session.
            if brokers.get(name) != connection.address:
                self._end(connection)
                del self._connections[name]
        for name, address in brokers.items():
            if name not in self._connections:
                connection = self._connections[name] = _Connection(name, address)
                connection.task = spawn(self._keep(connection), name=f"evenq-session-{name}")

    def up(self, broker: str) -> bool:
        """True if a session with the broker is open, and the broker is not closing."""
        connection = self._connections.get(broker)
        return connection is not None and connection.members is not None and not connection.closing

    def closing(self, broker: str) -> bool:
        """True if the broker announced that it closes, and is not back yet."""
        connection = self._connections.get(broker)
        return connection is not None and connection.closing

    def trusted(self, broker: str, *, trust_ms: int) -> bool:
        """True if the locks there surely hold: the connection is open, or broke at most `trust_ms` ago."""
        connection = self._connections.get(broker)
        return connection is not None and connection.locks.trusted(self._clock.monotonic_ms(), trust_ms=trust_ms)

    def sure(self, broker: str) -> bool:
        """False if other members may have the locks, and they have not been requested since (`confirm`)."""
        connection = self._connections.get(broker)
        return connection is None or connection.locks.sure(self._clock.monotonic_ms())

    def revoke_ms(self, broker: str) -> int:
        """Returns the time after which the broker takes a queue from a member that does not release it."""
        connection = self._connections.get(broker)
        return REVOKE_MS if connection is None else connection.revoke_ms

    def suspect(self) -> list[str]:
        """Returns the brokers with an open session whose locks must be requested again."""
        return [
            connection.name
            for connection in self._connections.values()
            if connection.locks.state.suspect and self.up(connection.name)
        ]

    def suspicions(self, broker: str) -> int:
        """Returns how often the locks there became suspect so far, for `confirm`."""
        connection = self._connections.get(broker)
        return 0 if connection is None else connection.locks.suspicions

    def confirm(self, broker: str, suspicions: int) -> bool:
        """Notes that the locks were requested again; False: they must be requested once more (`LockTrust.confirm`)."""
        connection = self._connections.get(broker)
        return connection is not None and connection.locks.confirm(self._clock.monotonic_ms(), suspicions=suspicions)

    def rename(self) -> None:
        """Leaves all sessions of an old client id; they are reopened with the new one."""
        for connection in self._connections.values():
            if connection.members is not None and connection.joined_as != self._calls.client_id:
                connection.post(Leave())

    @property
    def settled(self) -> bool:
        """True if every connection is open or has failed once."""
        return all(connection.members is not None or connection.tried for connection in self._connections.values())

    def members(self) -> list[MemberInfo] | None:
        """Returns the members of the group, by all brokers with a session; None: there is none (RB-10)."""
        now_ms = self._clock.monotonic_ms()
        up = [connection for connection in self._connections.values() if connection.members is not None]
        if not up:
            return None
        # Ghosts first: a present report of a member overwrites an old one.
        member_lists = [connection.ghosts for connection in up if now_ms < connection.ghosts_until_ms]
        member_lists += [connection.members for connection in up if connection.members is not None]
        return list({member.client_id: member for members in member_lists for member in members}.values())

    def strategy(self) -> str:
        """Returns the group's strategy; empty: no broker reports one. A broker that was down then may lack it."""
        return max((connection.strategy for connection in self._connections.values()), default="")

    def rejoin(self) -> None:
        """Sends changed subscriptions: immediately in open sessions, to other brokers when their sessions open."""
        self._introduction += 1
        for connection in self._connections.values():
            if connection.members is not None:
                self._introduce(connection)

    def _introduce(self, connection: _Connection) -> None:
        connection.introduced = self._introduction
        connection.post(self._join())

    def beat(self) -> None:
        """Sends a heartbeat to all brokers (RB-38)."""
        for connection in self._connections.values():
            if connection.members is not None:
                connection.post(None)

    async def leave(self, *, timeout_ms: int = 2_000) -> None:
        """Leaves all sessions, and waits up to `timeout_ms` for their ends."""
        tasks: list[asyncio.Task[None]] = []
        for connection in self._connections.values():
            connection.leaving = True
            connection.post(Leave())
            if connection.task is not None:
                if connection.members is None:
                    connection.task.cancel()
                tasks.append(connection.task)
        self._connections.clear()
        if tasks:
            timer = spawn(self._clock.sleep_ms(timeout_ms), name="evenq-leave-timer")
            everyone = asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.wait({everyone, timer}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(everyone, timer, return_exceptions=True)

    def _end(self, connection: _Connection) -> None:
        connection.leaving = True
        if connection.task is not None:
            connection.task.cancel()

    async def _keep(self, connection: _Connection) -> None:
        # A restarted broker is back within seconds: each pause is a small part of the time that has passed.
        backoff = Backoff(self._rng, first_ms=200, max_ms=1_000, factor=1.2)
        while not connection.leaving:
            try:
                await self._once(connection, backoff)
            except DuplicateClientId as error:
                self._taken(connection.joined_as, str(error))
            except Error as error:
                if connection.leaving:
                    return
                if connection.joined_as != self._calls.client_id:
                    backoff.reset()
                    continue
                self._troubles.failed(f"broker {connection.name}", error)
            finally:
                # Before `_broken` starts a round, which checks whether the locks there still count.
                connection.locks.end(self._clock.monotonic_ms())
                connection.ghosts = connection.members or connection.ghosts
                connection.members, connection.tried = None, True
                if not connection.leaving:
                    self._broken(connection.name)
            if not connection.leaving:
                await self._clock.sleep_ms(backoff.next_ms())

    async def _once(self, connection: _Connection, backoff: Backoff) -> None:
        # Older requests are obsolete: this session begins with a complete join.
        connection.outbox = asyncio.Queue(maxsize=100)
        connection.joined_as = self._calls.client_id
        self._introduce(connection)
        beats: asyncio.Task[None] | None = None
        try:
            async for event in self._calls.session(connection.address, self._requests(connection.outbox)):
                match event:
                    case Welcome():
                        backoff.reset()
                        self._troubles.well(f"broker {connection.name}")
                        connection.members, connection.strategy, connection.closing = (
                            event.members,
                            event.settings.strategy,
                            False,
                        )
                        connection.revoke_ms = event.revoke_ms or REVOKE_MS
                        connection.locks.welcome(self._clock.monotonic_ms(), lease_ms=event.session_timeout_ms)
                        # The client id changed meanwhile: leave; the next session joins with the new one.
                        if connection.joined_as != self._calls.client_id:
                            connection.post(Leave())
                        elif connection.introduced != self._introduction:
                            self._introduce(connection)  # subscriptions changed meanwhile
                        connection.ghosts_until_ms = self._clock.monotonic_ms() + (GHOST_MS if connection.ghosts else 0)
                        if beats is None:
                            beats = spawn(
                                self._beats(connection, event.beat_interval_ms), name=f"evenq-beats-{connection.name}"
                            )
                    case MembersChanged():
                        connection.members = event.members
                    case SettingsChanged():
                        connection.strategy = event.settings.strategy
                    case BrokerLeaving():
                        connection.closing = True
                    case _:
                        pass
                self._heard(connection.name, event)
        finally:
            if beats is not None:
                beats.cancel()
            connection.end()
        if not connection.leaving:
            raise ConnectionFailed(f"broker {connection.name} at {connection.address} ended the session")

    async def _beats(self, connection: _Connection, interval_ms: int) -> None:
        while True:
            await self._clock.sleep_ms(max(BEAT_MIN_MS, interval_ms))
            if connection.locks.speak(self._clock.monotonic_ms()):
                self._suspected(connection.name)
            connection.post(None)
            if (
                connection.ghosts
                and connection.members is not None
                and self._clock.monotonic_ms() >= connection.ghosts_until_ms
            ):
                connection.ghosts = ()
                self._heard(connection.name, MembersChanged(connection.members))

    @staticmethod
    async def _requests(outbox: asyncio.Queue[Join | Leave | _End | None]) -> AsyncIterator[Join | Leave | None]:
        while True:
            request = await outbox.get()
            if isinstance(request, _End):
                return
            yield request
            if isinstance(request, Leave):
                return
