"""A broker that is one copy of its group, as an object: follows, leads for terms, and follows again.

It listens for the other copies at a port of its own, all the time. Clients are served by a `BrokerApp` that lives for
one term of leadership: it opens the log where the copy ended and is closed when another broker leads. So a failover is,
for clients, the restart of a broker at another address, with the same name and the same log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenq.errors import NotFound, StoreCorrupted, StoreError
from evenq.model import Listener
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.connection_forwarder import HERE, ConnectionForwarder
from evenq.serving.front.edges import EDGES, Edges
from evenq.serving.front.grpc_servers import GrpcServers, ListenAddress, open_grpc_servers
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.metrics import exposition
from evenq.serving.program.page import MetricsPage
from evenq.store import MessageStore
from evenq.store.copies.copy_index import CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import Disk
from evenq.store.log import lock
from evenq.store.log.log_pieces import LogPieces
from evenq.store.opening import owned_folder
from evenq_broker.app import BrokerApp, client_addresses
from evenq_broker.core.replication.disk_messages import copy_ends, unusable
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.state.keys import keys_of
from evenq_broker.loops.coordinators.coordinator import Coordinator
from evenq_broker.loops.coordinators.places import RecordPlace, forget_record, record_place
from evenq_broker.loops.replication.follower_reads import FollowerReads
from evenq_broker.loops.replication.group_control import ReplicaControl
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.lite_sets import CopiedLiteSets
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.loops.replication.record_fetch import fetch_records
from evenq_broker.loops.replication.record_repair import CommittedLog, RecordRepair
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog
from evenq_broker.loops.replication.shared_pieces import SharedPieces
from evenq_broker.loops.replication.snapshot_fetch import fetch_snapshot
from evenq_broker.loops.replication.snapshots import FetchedSnapshot, FolderSnapshots, IncomingSnapshot
from evenq_broker.loops.state.ledger import store_options
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import Opening
from evenq_broker.metrics.broker_metrics import constant_labels
from evenq_broker.metrics.cluster_metrics import follower_disk_metrics
from evenq_broker.metrics.replication_metrics import replication_metrics
from evenq_broker.replica.config import MODES, readable_copies, replica_config, term_settings
from evenq_broker.replica.watches import watches
from evenq_broker.rpc.delivery.follower_data import follower_rpcs
from evenq_broker.rpc.replication.copies import copy_rpcs
from evenq_broker.rpc.replication.lite_sets import lite_set_rpcs
from evenq_broker.rpc.replication.records import RecordSource, record_rpcs
from evenq_broker.rpc.replication.replication import replication_rpcs
from evenq_broker.runtime import Leadership, Runtime
from evenq_broker.settings import BrokerSettings

__all__ = ["ReplicaMachine", "ReplicatedApp"]

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 2 << 20
"""Of one message between copies; larger groups of records come in pieces."""
SEGMENT_BYTES = 64 << 20
"""Of a log file, where the settings do not say: the same for all copies, whatever volume each has."""
OPENS_MAX = 1_000
"""Each opening of a folder may meet damage that was not met before."""
LEAVE_MS = 2_000
"""How long a copy that stops still leads clients on: until load balancers have noticed that it is not ready."""
LEADERLESS_MS = 500
"""A copy that stops has not reached a leader for this time: there is none to lead clients on to, as where all copies
stop at once. The successor of a leader is known sooner.
"""
LOOK_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMachine:
    """What a simulation gives a copy in place of its machine and of the place of the group record."""

    disk: Disk
    coordinator: Coordinator
    boot_id: str
    """Another one after each loss of power."""
    new_store_id: Callable[[], str]


class ReplicatedApp:
    """The program as an object. Belongs to one event loop."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock, rng: random.Random, net: Net, edges: Edges = EDGES,
        machine: ReplicaMachine | None = None,
    ) -> None:  # fmt: skip
        """`machine` stands in for the data folder and the record's place of the settings."""
        self.settings = settings
        self._machine = machine
        self._clock, self._rng, self._net, self._edges = clock, rng, net, edges
        self._addresses = dict(settings.replication.addresses)
        """Where the copies reach each other: as the group record says, or else the settings."""
        self._adopts = False
        """The log was written without copies, and founds the group."""
        self._segment_bytes = settings.store.segment_bytes or SEGMENT_BYTES
        self._auth = Auth(settings.auth, clock=clock, plain=settings.tls.certificate is None)
        self._term: BrokerApp | None = None
        self._is_open = False
        """The term's store is open: before, its parts have no figures to show."""
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._place: RecordPlace | None = None
        self._driver: ReplicaDriver | None = None
        self._log: ReplicaLog | None = None
        self._links: PeerLinks | None = None
        limit = settings.front_limits.connections_per_address_max
        places = client_addresses(settings) if settings.replication.forward_clients else []
        self._forwarder = ConnectionForwarder(places, per_address_max=limit) if places else None
        """While the broker follows, its ports for clients lead to the leader; None: nothing listens there."""
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._pieces: SharedPieces | None = None
        self._repair: RecordRepair | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = self._closed = False

    @property
    def port(self) -> int:
        """The port that clients are served at; 0 while the broker follows."""
        return self._term.port if self._term is not None else 0

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page is not None else 0

    @property
    def driver(self) -> ReplicaDriver:
        """Of the replica; after `start`."""
        assert self._driver is not None
        return self._driver

    async def start(self) -> None:
        """Follow, or lead, from now on. Raises StoreLocked, StoreCorrupted, StoreError, PortInUse, SettingsError; then
        nothing of it is left running.
        """
        try:
            await self._start()
        except BaseException:
            if self._adopts and self._identity.is_new:  # it is still the folder of a broker that is alone
                await asyncio.to_thread(self._identity.forget)
                await asyncio.to_thread(forget_record, self._identity.folder)
            await self.close()
            raise

    async def _start(self) -> None:
        settings, clock = self.settings, self._clock
        folder = settings.store.path
        assert folder is not None, "the settings ask for a folder"
        machine = self._machine
        options = store_options(settings.store)
        disk = await asyncio.to_thread(owned_folder.disk_of, folder, options) if machine is None else machine.disk
        try:
            replica = await self._replica(disk)
        except OSError as error:
            raise unusable(folder, error) from error
        if machine is None:
            place = record_place(settings.replication, folder, clock=clock, rng=self._rng)
        else:
            place = RecordPlace(machine.coordinator)
        self._place = place
        self._adopts = replica.config.adopts and self._identity.epoch == 0
        driver = self._driver = ReplicaDriver(replica, place.coordinator, clock=clock, group=settings.broker_name)
        driver.remembered = self._identity.remembered.record
        self._control = ReplicaControl(
            driver, broker_name=settings.broker_name, addresses=self._addresses,
            serves=lambda: self._term is not None and self._term.serves, clock=clock,
        )  # fmt: skip
        own_id = settings.replication.broker_id
        self._runtime = runtime = Runtime(settings, clock=clock, rng=self._rng, net=self._auth.net(self._net))
        runtime.begin(())
        links = PeerLinks(runtime, self._addresses, own_id, driver.receive, snapshots=FolderSnapshots(disk))
        driver.peers = self._links = links
        driver.on_copies = self._copies_changed
        self._pieces = SharedPieces(LogPieces(disk, self._segment_bytes))
        self._log = driver.log = ReplicaLog(
            replica, self._identity, open_copy=self._open_copy, pieces=self._pieces, term=self,
            clock=clock, tell=driver.tell, fetch=self._fetch_snapshot,
            growth_bytes=settings.store.snapshot_log_bytes, group=settings.broker_name, refusal=self._no_reads,
            index=CopyIndex(keys_of) if settings.store.message_index else None,
        )  # fmt: skip
        driver.on_change = self._replica_changed
        self._repair = RecordRepair(
            disk, self._segment_bytes, known=self._known_log,
            copies=self._other_copies, ask=self._fetch_records, write=self._log.rewrite, clock=clock,
            group=settings.broker_name,
        )  # fmt: skip
        self._log.repair_by(self._repair)
        self._lite_sets = self._copied_lite_sets()
        await self._log.open()
        self._adopts = self._adopts and bool(self._log.holds_records)
        await self._check_adoption(place, replica)
        await self._listen(links, self._log.reads, self._repair)
        await self._forward_again()
        self._page = await self._edges.open_page(
            host=settings.host, port=settings.metrics_port, metrics=self._metrics,
            ready=lambda: not self._why_not_ready(), why=self._why_not_ready, queues=self._queue_metrics,
        )  # fmt: skip
        links.start()
        assert runtime.failed is not None
        runtime.failed.add_done_callback(lambda failed: None if failed.cancelled() else driver.fail(failed.result()))
        driver.start()
        looks = watches(
            settings, driver, self._log, self._control, options=options, segment_bytes=self._segment_bytes, disk=disk,
            term=lambda: self._term if self._is_open else None, clock=clock,
        )  # fmt: skip
        for loop in (*self._log.spawned(), self._log.disk.watch(disk), *looks, self._lite_sets.tell()):
            task = spawn(loop, name="replica log")
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        log.info(
            "broker %d of group %s follows or leads", own_id, settings.broker_name,
            extra={"broker": settings.broker_name, "members": settings.replication.members},
        )  # fmt: skip

    async def wait(self) -> None:
        """Until only the end of the process helps; then raises what says why."""
        error = await asyncio.shield(self.driver.failed)
        raise copy_ends(error, self.settings.broker_name, self.settings.replication.broker_id)

    async def close(self) -> None:
        """Hand over to another broker if this one leads, then end. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        driver, replica_log = self._driver, self._log
        if driver is not None and not driver.failed.done() and driver.leads:
            handed = await driver.drain()
            if handed.leader == NO_LEADER:
                log.warning("no other copy took over", extra={"broker": self.settings.broker_name})
        whole = driver is not None and not driver.failed.done()  # it may have failed meanwhile
        if self._forwarder is not None and driver is not None and whole and not driver.leads:
            await self._lead_on(driver)
        self._closed = True
        if driver is not None:
            await driver.close()
        if self._forwarder is not None:
            await self._forwarder.leave()
        if self._links is not None:  # the next leader waits for who is in sync and does not know that it ends
            await self._links.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._repair is not None:
            await self._repair.close()
        if replica_log is not None:
            await replica_log.close(clean=whole)
        if self._pieces is not None:
            self._pieces.close()
        if self._servers is not None:
            await self._servers.stop(0)
        if self._page is not None:
            await self._page.close()
        if self._place is not None:
            await self._place.close()
        await self._auth.close()

    async def _lead_on(self, driver: ReplicaDriver) -> None:
        """Clients that still come, and those that were cut off by the hand-over, find the way to the leader here. Ends
        within `LEAVE_MS`, and when no leader is left.
        """
        now_ms = reached_ms = self._clock.monotonic_ms()
        until_ms = now_ms + LEAVE_MS
        while now_ms < min(until_ms, reached_ms + LEADERLESS_MS):
            await self._clock.sleep_ms(LOOK_MS)
            now_ms = self._clock.monotonic_ms()
            # Not the leader of the epoch that was synced here: that waits until the log of the own term is closed.
            record = driver.replica.followed
            if record is not None and record.leader in driver.peers.connected:
                reached_ms = now_ms

    # The term of leadership (LeaderTerm).

    async def begin(self, epoch: int, attach: Callable[[MessageStore], None]) -> None:
        """See LeaderTerm."""
        term = self._term = BrokerApp(
            term_settings(self.settings), clock=self._clock, rng=self._rng, net=self._net, edges=self._edges,
            disk=None if self._machine is None else self._machine.disk,
            leadership=Leadership(
                epoch, attach, self._control, copies=len(self.settings.replication.addresses),
                followers=lambda: readable_copies(self.settings, self._addresses), lite_sets=self._lite_sets.newest(),
                lite_changed=self._lite_sets.changed,
            ),
            before_listening=self._stop_forwarding, after_listening=self._forward_again,
        )  # fmt: skip
        await term.start()
        self._is_open = True
        self._lite_sets.changed()
        self._lead_clients()
        self._watching = spawn(self._watch(term), name="term of leadership")
        self._watching.add_done_callback(self._ended)

    async def _stop_forwarding(self) -> None:
        if self._forwarder is not None:
            await self._forwarder.stop_listening()

    async def _forward_again(self) -> None:
        if self._forwarder is not None and not self._closed:
            await self._forwarder.open()
            self._lead_clients()

    async def end(self) -> None:
        """See LeaderTerm. Goes on to its end also when who waits for it is cancelled."""
        term = self._term
        if term is None:
            return
        self._is_open = False
        self._lead_clients()
        if self._ending is None:
            self._ending = spawn(term.close(drain_ms=0), name="end of a term")
        await asyncio.shield(self._ending)
        self._term = self._ending = None
        if self._watching is not None:  # it would keep all of the term in memory
            self._watching.cancel()
        await self._forward_again()

    async def _watch(self, term: BrokerApp) -> None:
        """A loop of the broker failed. If its term is over it may: its store appends nothing any more."""
        try:
            await term.wait()
        except Exception:
            if self._term is term and self.driver.leads:
                raise

    # Parts.

    async def _replica(self, disk: Disk) -> Replica:
        settings, machine = self.settings.replication, self._machine
        members = tuple(sorted(settings.addresses))
        known = await asyncio.to_thread(lambda: lock.load(disk))
        restored_epoch = known.epoch_floor if known is not None else 0
        self._identity = identity = await asyncio.to_thread(
            ReplicaIdentity.load, disk, cluster=self.settings.cluster, broker_id=settings.broker_id,
            mode=MODES[settings.mode], restored_epoch=restored_epoch,
            boot_id=None if machine is None else machine.boot_id,
            new_store_id=None if machine is None else machine.new_store_id,
        )  # fmt: skip
        config = replica_config(self.settings, members=members, restored_epoch=restored_epoch)
        return Replica(config, store_id=identity.store_id, epoch_seen=identity.epoch, session=self._rng.getrandbits(62))

    async def _check_adoption(self, place: RecordPlace, replica: Replica) -> None:
        """A log that was written without copies is of no group that is there. Raises StoreError, CoordinatorUnknown."""
        seen = await place.coordinator.read() if self._adopts else None
        if seen is not None and replica.own_pair not in seen.record.isr:
            members = ", ".join(map(str, seen.record.members))
            raise StoreError(
                f"replication.from_one_copy founds a group, and {self.settings.replication.record} holds the record of "
                f"one already, whose copies are {members}: give the new group another place, or let this broker begin "
                "as a copy of that one with an empty folder"
            )

    async def _open_copy(self) -> LogCopy:
        settings = self.settings
        for _ in range(OPENS_MAX):
            try:
                return await LogCopy.open(
                    settings.store.path, store_options(settings.store), broker_name=settings.broker_name,
                    segment_bytes=self._segment_bytes, clock=self._clock,
                    disk=None if self._machine is None else self._machine.disk,
                )  # fmt: skip
            except StoreCorrupted as error:
                if self._repair is None or error.log_offset < 0:
                    raise
                await self._repair.repair_unopened(error)
        raise StoreError(f"the data folder holds more than {OPENS_MAX} damaged places: give this copy an empty one")

    def _replica_changed(self) -> None:
        assert self._log is not None
        self._log.look()
        self._lead_clients()

    def _lead_clients(self) -> None:
        """Connections of clients go where the leader is: elsewhere, or here once the term listens."""
        if self._forwarder is None:
            return
        leader = self.driver.replica.leader_id()
        if leader == NO_LEADER and self._grows:
            leader = self._founder
        if leader != self.settings.replication.broker_id:
            self._forwarder.lead_to(self._addresses.get(leader, "").rpartition(":")[0].strip("[]"))
        else:
            self._forwarder.lead_to(HERE if self._is_open else "")

    @property
    def _founder(self) -> int:
        return min(self.settings.replication.addresses)

    @property
    def _grows(self) -> bool:
        """The group is to grow from the copy that founds it, or founded it, and may lose this one: it needs fewer
        copies than it shall. That copy serves, alone until it starts as the founder.
        """
        replication, record = self.settings.replication, self.driver.replica.followed
        if not replication.from_one_copy or replication.broker_id == self._founder:
            return False
        return self._identity.epoch == 0 if record is None else record.min_isr < replication.min_in_sync

    def _copies_changed(self, record: GroupRecord) -> None:
        """Links follow the group record. A copy that is no member of its group opens none."""
        known = self.settings.replication.addresses
        self._addresses.clear()
        self._addresses.update(
            {number: record.address_of(number) or known.get(number, "") for number in record.members}
        )
        assert self._links is not None
        self._links.set_members(self._addresses if self.driver.is_member else {})
        if self._term is not None and self._is_open:
            self._term.broker.cluster.followers_changed()

    def _metrics(self) -> bytes:
        assert self._log is not None
        replica_log = self._log
        if self._term is not None and self._is_open:
            of_term = self._term.metrics()
        else:
            of_term = follower_disk_metrics(replica_log.disk, store_options(self.settings.store))
        own = replication_metrics(
            self.driver.replica,
            self._control.view,
            replay_lag=lambda: replica_log.replay_lag,
            messages_out=lambda: replica_log.reads.messages_out,
            repair=self._repair,
            reaches_record=lambda: self.driver.reaches_record,
        )
        return exposition([*of_term, *own], constant_labels(self._runtime))

    def _queue_metrics(self) -> Callable[[], bytes]:
        return self._term.queue_metrics() if self._term is not None and self._is_open else lambda: b""

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.driver.fail(error)

    async def _fetch_snapshot(self, after: int, until: int) -> FetchedSnapshot | None:
        """See FollowerReplay. Raises Error."""
        settings, leader = self.settings, self.driver.replica.leader_id()
        address = self._addresses.get(leader)
        if not address or leader == settings.replication.broker_id:
            return None
        sink = IncomingSnapshot(origin=address, after=after, until=until)
        who = Opening(settings.cluster, settings.broker_name, settings.replication.broker_id, leader)
        with contextlib.suppress(NotFound):
            await fetch_snapshot(self._runtime.net, address, who, sink, clock=self._clock)
        return sink.known

    def _copied_lite_sets(self) -> CopiedLiteSets:
        return CopiedLiteSets(
            self._runtime.net, group=self.settings.broker_name, clock=self._clock,
            news=lambda: self._term.broker.lite.news() if self._term is not None and self._is_open else None,
            others=lambda: [self._addresses[one] for one in self._other_copies()],
        )  # fmt: skip

    def _other_copies(self) -> list[int]:
        """The leader first."""
        own, leader = self.settings.replication.broker_id, self.driver.replica.leader_id()
        return sorted((number for number in self._addresses if number != own), key=lambda one: (one != leader, one))

    def _known_log(self) -> CommittedLog:
        replica = self.driver.replica
        matched_end = 0 if self._log is None else self._log.matched_end
        led_end = replica.end if replica.leads else 0
        return CommittedLog(min(replica.hw, replica.end), replica.table, led_end, matched_end)

    async def _fetch_records(self, copy: int, wanted: WantedRecords) -> bytes:
        """See RecordRepair. Raises Error."""
        settings = self.settings
        who = Opening(settings.cluster, settings.broker_name, settings.replication.broker_id, copy)
        return await fetch_records(self._runtime.net, self._addresses[copy], who, wanted, clock=self._clock)

    def _why_not_ready(self) -> str:
        if self._stopping:
            return "it stops"
        # A client that comes is not refused but held, or led on: its calls outlast a change of leader.
        if self._forwarder is not None and not self._is_open and (self.driver.awaits_leader or self._grows):
            return ""
        if self._term is not None:
            return self._term.why_not_ready()
        if self.driver.leads:
            return "it begins to lead"
        if not self.driver.is_member:
            return "it is no copy of its group: it was removed, or not added yet"
        problem = "" if self._log is None else self._log.disk.problem
        if problem:
            return f"it copies nothing from its leader: {problem}"
        return "" if self.driver.in_sync else "it is not in sync with its group"

    def _no_reads(self) -> str:
        """Why readers that take any copy are not served here; empty: they are."""
        if not self.settings.replication.follower_reads:
            return "replication.follower_reads is off"
        return "" if self.driver.is_member else "it is no copy of its group"

    async def _listen(self, links: PeerLinks, reads: FollowerReads, records: RecordSource) -> None:
        settings = self.settings
        own = settings.replication.addresses[settings.replication.broker_id]
        port = settings.replication.port or int(own.rpartition(":")[2])
        encrypted = settings.tls.peers
        self._auth.start()
        self._servers = await open_grpc_servers(
            self._auth.rpcs(
                [
                    *replication_rpcs(links),
                    *record_rpcs(links.incoming, records),
                    *copy_rpcs(self._runtime, self._control),
                    *lite_set_rpcs(settings.broker_name, self._lite_sets.keep),
                    *follower_rpcs(self._runtime, reads),
                ]
            ),
            [ListenAddress(Listener("replication", tls=encrypted), settings.replication.host or settings.host, port)],
            settings.tls, clock=self._clock, options=GrpcServerOptions(receive_bytes_max=REQUEST_BYTES_MAX),
            edges=self._edges,
        )  # fmt: skip
