"""Composition of one copy: builds its parts and connects them. `ReplicatedApp` starts them and ends them in order.

A part gets the others that it needs in its constructor. Where two need each other, the earlier one gets a function: a
term opens the forwarding, whose `serves_here` returns whether a term is open.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from evenq.serving.program.metrics import exposition
from evenq.serving.rpc import Rpc
from evenq.store import MessageStore
from evenq_broker.app import BrokerApp
from evenq_broker.core.replication.config import ReplicationConfig, Timing
from evenq_broker.core.replication.record import GroupRecord
from evenq_broker.core.replication.replica import Replica
from evenq_broker.loops.coordinators.places import RecordPlace, record_place
from evenq_broker.loops.replication.group_control import ReplicaControl
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.isolation import watch_isolation
from evenq_broker.loops.replication.lite_sets import CopiedLiteSets
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.loops.replication.relief import watch_room
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.snapshots import FolderSnapshots
from evenq_broker.loops.state.ledger import store_options
from evenq_broker.metrics.broker_metrics import constant_labels, follower_disk_metrics
from evenq_broker.metrics.replication_metrics import replication_metrics
from evenq_broker.replica.client_access import BrokerTerm, ClientForwarding, Readiness
from evenq_broker.replica.copy_log import MODES, CopyLog, ReplicaMachine
from evenq_broker.rpc.delivery.follower_data import follower_rpcs
from evenq_broker.rpc.replication.copies import copy_rpcs
from evenq_broker.rpc.replication.replication import lite_set_rpcs, record_rpcs, replication_rpcs
from evenq_broker.runtime import Leadership, Runtime
from evenq_broker.settings import BrokerSettings

RETRY_MS = 500
GATHER_BYTES = 64 << 10
"""Bytes that a follower writes and syncs in one step (`AT_ONCE_BYTES` of its log)."""


class CopyParts:
    """The parts of one copy, none of which runs yet, and what they have in common: calls, loops and metrics."""

    def __init__(
        self, runtime: Runtime, machine: ReplicaMachine, identity: ReplicaIdentity, new_broker: Callable[..., BrokerApp]
    ) -> None:
        """`new_broker` returns the broker of a term, from the arguments of BrokerApp that differ between terms."""
        self.runtime, self.identity, self._new_broker = runtime, identity, new_broker
        settings, clock, group = runtime.settings, runtime.clock, runtime.settings.broker_name
        own, config = settings.replication, replica_config(settings, restored_epoch=identity.restored_epoch)
        session = runtime.rng.getrandbits(62)
        replica = Replica(config, store_id=identity.store_id, epoch_seen=identity.epoch, session=session)
        if machine.coordinator is not None:
            self.place = RecordPlace(machine.coordinator)
        else:
            self.place = record_place(own, identity.folder, clock=clock, rng=runtime.rng)
        driver = self.driver = ReplicaDriver(replica, self.place.coordinator, clock=clock, group=group)
        driver.remembered = identity.remembered.record
        addresses = self.addresses = dict(own.addresses)
        """Addresses of the copies by broker id: from the group record, otherwise from the settings."""
        snapshots = FolderSnapshots(identity.disk)
        links = self.links = PeerLinks(runtime, addresses, own.broker_id, driver.receive, snapshots=snapshots)
        self.control = ReplicaControl(
            driver, broker_name=group, addresses=addresses, serves=lambda: term.serves, clock=clock
        )
        self.lite_sets = CopiedLiteSets(
            runtime.net,
            group=group,
            clock=clock,
            news=lambda: None if term.opened is None else term.opened.broker.lite.news(),
            others=lambda: [addresses[one] for one in self.log.others()],
        )
        self.forwarding = ClientForwarding(runtime, driver, identity, addresses, lambda: term.opened is not None)
        term = self.term = BrokerTerm(self._broker, driver, self.forwarding, self.lite_sets)
        self.log = CopyLog(runtime, machine, identity, driver, addresses, term)
        self.readiness = Readiness(driver, term, self.forwarding, self.log.writer.disk)
        driver.peers, driver.log = links, self.log.writer
        driver.on_copies, driver.on_change = self._copies_changed, self._replica_changed

    def rpcs(self) -> list[Rpc]:
        """Returns the calls for other copies, and for readers that take any copy."""
        return [
            *replication_rpcs(self.links),
            *record_rpcs(self.links.incoming, self.log.repair),
            *copy_rpcs(self.runtime, self.control),
            *lite_set_rpcs(self.runtime.settings.broker_name, self.lite_sets.keep),
            *follower_rpcs(self.runtime, self.log.writer.reads),
        ]

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Returns loops to run for as long as the copy lives."""
        driver, writer, disk = self.driver, self.log.writer, self.identity.disk
        settings, clock, group = self.runtime.settings, self.runtime.clock, self.runtime.settings.broker_name
        options, size, blocks = store_options(settings.store), self.log.segment_bytes, disk.blocks
        room = watch_room(
            driver, writer, self.control, options, segment_bytes=size, blocks=blocks, clock=clock, group=group
        )
        isolation = watch_isolation(driver, writer, term=lambda: self.term.opened, clock=clock, group=group)
        return [*writer.spawned(), writer.disk.watch(disk), room, isolation, self.lite_sets.tell()]

    def metrics(self) -> bytes:
        """Returns the metrics page: the broker's metrics, or those of a follower's disk, and the replica's."""
        writer, opened, options = self.log.writer, self.term.opened, store_options(self.runtime.settings.store)
        of_role = follower_disk_metrics(writer.disk, options) if opened is None else opened.metrics()
        own = replication_metrics(self.driver, self.control.view, writer, self.log.repair)
        return exposition([*of_role, *own], constant_labels(self.runtime))

    def queue_metrics(self) -> Callable[[], bytes]:
        """Returns a function that formats the figures of single queues; a follower has none."""
        return self.term.opened.queue_metrics() if self.term.opened is not None else lambda: b""

    def _broker(self, epoch: int, attach: Callable[[MessageStore], None]) -> BrokerApp:
        settings = self.runtime.settings
        return self._new_broker(
            _term_settings(settings),
            leadership=Leadership(
                epoch,
                attach,
                self.control,
                copies=len(settings.replication.addresses),
                followers=lambda: _readable_copies(settings, self.addresses),
                lite_sets=self.lite_sets.newest(),
                lite_changed=self.lite_sets.changed,
                copies_read_crc32=self.links.incoming.all_read_crc32,
            ),
            before_listening=self.forwarding.stop_listening,
            after_listening=self.forwarding.open,
        )

    def _copies_changed(self, record: GroupRecord) -> None:
        """Adapts addresses and links to the group record. A copy that is not a member of its group opens no links."""
        known, addresses = self.runtime.settings.replication.addresses, self.addresses
        addresses.clear()
        addresses.update({number: record.address_of(number) or known.get(number, "") for number in record.members})
        self.links.set_members(addresses if self.driver.is_member else {})
        if self.term.opened is not None:
            self.term.opened.broker.cluster.followers_changed()

    def _replica_changed(self) -> None:
        self.log.writer.look()
        self.forwarding.look()


def replica_config(broker_settings: BrokerSettings, *, restored_epoch: int) -> ReplicationConfig:
    """`restored_epoch`: of a restored backup, or 0. The copy with the lowest broker id founds the group."""
    settings = broker_settings.replication
    members = tuple(sorted(settings.addresses))
    return ReplicationConfig(
        cluster=broker_settings.cluster,
        broker_id=settings.broker_id,
        members=members,
        min_isr=settings.min_in_sync,
        founds=settings.broker_id == members[0],
        restored_epoch=restored_epoch,
        adopts=settings.from_one_copy and settings.broker_id == members[0],
        mode=MODES[settings.mode],
        gather=GATHER_BYTES,
        timing=Timing(
            renew_ms=settings.renew_ms,
            suspect_ms=settings.suspect_ms,
            lag_ms=settings.lag_ms,
            retry_ms=min(settings.renew_ms, RETRY_MS),
            drain_ms=max(1, broker_settings.drain_ms),
            relief_ms=settings.relief_ms,
        ),
    )


def _term_settings(settings: BrokerSettings) -> BrokerSettings:
    """Sets `flush` to sync unless copies count in memory: the leader's own copy counts like the others."""
    if settings.replication.mode == "memory":
        return settings
    return settings.model_copy(update={"store": settings.store.model_copy(update={"flush": "sync"})})


def _readable_copies(settings: BrokerSettings, addresses: Mapping[int, str]) -> tuple[str, ...]:
    """Returns where the other copies answer reads, for routes. `addresses`: of all copies, by broker id."""
    if not settings.replication.follower_reads:
        return ()
    own, scheme = settings.replication.broker_id, "evenqs://" if settings.tls.peers else ""
    return tuple(scheme + address for number, address in sorted(addresses.items()) if number != own)
