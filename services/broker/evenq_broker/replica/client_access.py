"""Clients at one copy: served by the broker of a term while the copy leads, otherwise forwarded to the leader.

For clients, a failover is the restart of a broker at another address, with the same name and the same log. They may
connect to any copy: one that follows forwards connections, and holds them while no leader is known. Broker and
forwarder have the same ports, so each listens only when the other does not (decisions 55, 72 and 83).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from evenq.runtime.tasks import spawn
from evenq.serving.front.connection_forwarder import HERE, ConnectionForwarder
from evenq.store import MessageStore
from evenq_broker.app import BrokerApp, client_addresses
from evenq_broker.core.replication.record import NO_LEADER
from evenq_broker.loops.replication.follower_disk import FollowerDisk
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.lite_sets import CopiedLiteSets
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.runtime import Runtime

LEAVE_MS = 2_000
"""How long a stopping copy still forwards clients: until load balancers have noticed that it is not ready."""
LEADERLESS_MS = 500
"""A stopping copy that reaches no leader for this time ends its forwarding; a successor is known sooner."""
LOOK_MS = 50


class ClientForwarding:
    """Forwarding to the leader. Does nothing without `replication.forward_clients`."""

    def __init__(
        self,
        runtime: Runtime,
        driver: ReplicaDriver,
        identity: ReplicaIdentity,
        addresses: Mapping[int, str],
        serves_here: Callable[[], bool],
    ) -> None:
        """`addresses`: of the present copies, by broker id. `serves_here`: whether the broker of a term is open."""
        self._settings, self._clock = runtime.settings.replication, runtime.clock
        self._driver, self._identity = driver, identity
        self._addresses, self._serves_here = addresses, serves_here
        self._founder = min(self._settings.addresses)
        limit = runtime.settings.front_limits.connections_per_address_max
        places = client_addresses(runtime.settings) if self._settings.forward_clients else []
        self._forwarder = ConnectionForwarder(places, per_address_max=limit) if places else None
        self._closed = False

    @property
    def holds_clients(self) -> bool:
        """True while no leader is reached, or the group grows: clients that connect are held, or reach the founder."""
        return self._forwarder is not None and not self._serves_here() and (self._driver.awaits_leader or self._grows)

    async def open(self) -> None:
        """Starts to listen, unless it does, or the copy ends. Raises PortInUse, SettingsError."""
        if self._forwarder is not None and not self._closed:
            await self._forwarder.open()
            self.look()

    async def stop_listening(self) -> None:
        """Closes the ports; connections stay."""
        if self._forwarder is not None:
            await self._forwarder.stop_listening()

    def look(self) -> None:
        """Directs connections to the leader: another copy, or this one once its term is open."""
        if self._forwarder is None:
            return
        leader = self._driver.replica.group.leader_id()
        if leader == NO_LEADER and self._grows:
            leader = self._founder
        if leader != self._settings.broker_id:
            self._forwarder.lead_to(self._addresses.get(leader, "").rpartition(":")[0].strip("[]"))
        else:
            self._forwarder.lead_to(HERE if self._serves_here() else "")

    async def drain(self, *, leads_elsewhere: bool) -> None:
        """The copy ends: opens no more. Before, with `leads_elsewhere`, forwards new clients, and those that the
        hand-over cut off, for `LEAVE_MS` or until no leader is left.
        """
        now_ms = reached_ms = self._clock.monotonic_ms()
        until_ms = now_ms + LEAVE_MS if leads_elsewhere and self._forwarder is not None else now_ms
        while now_ms < min(until_ms, reached_ms + LEADERLESS_MS):
            await self._clock.sleep_ms(LOOK_MS)
            now_ms = self._clock.monotonic_ms()
            # Not the leader of the epoch that was synced here: that one changes only after this term's log is closed.
            record = self._driver.replica.group.followed
            if record is not None and record.leader in self._driver.peers.connected:
                reached_ms = now_ms
        self._closed = True

    async def leave(self) -> None:
        """Closes ports and connections, after the leader's last answers."""
        if self._forwarder is not None:
            await self._forwarder.leave()

    @property
    def _grows(self) -> bool:
        """True while the group grows from its founder and may lack this copy: the founder serves alone until then."""
        settings, record = self._settings, self._driver.replica.group.followed
        if not settings.from_one_copy or settings.broker_id == self._founder:
            return False
        return self._identity.epoch == 0 if record is None else record.min_isr < settings.min_in_sync


class BrokerTerm:
    """The present term of leadership, if any. The LeaderTerm of `ReplicaLog`."""

    def __init__(
        self,
        new_broker: Callable[[int, Callable[[MessageStore], None]], BrokerApp],
        driver: ReplicaDriver,
        forwarding: ClientForwarding,
        lite_sets: CopiedLiteSets,
    ) -> None:
        """`new_broker` takes the arguments of `begin`."""
        self._new_broker, self._driver = new_broker, driver
        self._forwarding, self._lite_sets = forwarding, lite_sets
        self.app: BrokerApp | None = None
        """The broker, from the begin to the end of a term."""
        self._is_open = False
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def opened(self) -> BrokerApp | None:
        """The broker once its store is open: before, its parts have no figures to show."""
        return self.app if self._is_open else None

    @property
    def serves(self) -> bool:
        """Whether clients are answered here."""
        return self.app is not None and self.app.serves

    async def begin(self, epoch: int, attach: Callable[[MessageStore], None]) -> None:
        """See LeaderTerm."""
        app = self.app = self._new_broker(epoch, attach)
        await app.start()
        self._is_open = True
        self._lite_sets.changed()
        self._forwarding.look()
        self._watching = spawn(self._watch(app), name="term of leadership")
        self._watching.add_done_callback(self._driver.ended)

    async def end(self) -> None:
        """See LeaderTerm. Completes even if the caller is cancelled."""
        app = self.app
        if app is None:
            return
        self._is_open = False
        self._forwarding.look()
        if self._ending is None:
            self._ending = spawn(app.close(drain_ms=0), name="end of a term")
        await asyncio.shield(self._ending)
        self.app = self._ending = None
        if self._watching is not None:  # it would keep the whole term in memory
            self._watching.cancel()
        await self._forwarding.open()

    async def _watch(self, app: BrokerApp) -> None:
        """Raises the error of a failed loop, unless the term has ended: then its store appends nothing any more."""
        try:
            await app.wait()
        except Exception:
            if self.app is app and self._driver.leads:
                raise


class Readiness:
    """Readiness for clients, the answer of `/readyz`."""

    def __init__(
        self, driver: ReplicaDriver, term: BrokerTerm, forwarding: ClientForwarding, disk: FollowerDisk
    ) -> None:
        self._driver, self._term, self._forwarding, self._disk = driver, term, forwarding, disk
        self.stopping = False

    def why_not(self) -> str:
        """Returns why clients should not connect, in a few words; empty: they may."""
        if self.stopping:
            return "it stops"
        # A client that connects is held or forwarded, not refused: its calls outlast a change of leader.
        if self._forwarding.holds_clients:
            return ""
        if self._term.app is not None:
            return self._term.app.why_not_ready()
        if self._driver.leads:
            return "it begins to lead"
        if not self._driver.is_member:
            return "it is not a copy of its group: it was removed, or not added yet"
        if self._disk.problem:
            return f"it copies nothing from its leader: {self._disk.problem}"
        return "" if self._driver.in_sync else "it is not in sync with its group"
