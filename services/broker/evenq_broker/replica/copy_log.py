"""The log of one copy: its data folder, its writer, and what it fetches from the other copies.

The identity is loaded first, because the replica is created from it. A log that was written without copies may found a
group (`replication.from_one_copy`); if that start fails, the folder stays that of a broker without copies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evenq.errors import NotFound, StoreCorrupted, StoreError
from evenq.store.copies.copy_index import CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import Disk
from evenq.store.log import lock
from evenq.store.log.log_pieces import LogPieces
from evenq.store.opening import owned_folder
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.disk_messages import unusable
from evenq_broker.core.state.keys import keys_of
from evenq_broker.loops.coordinators.coordinator import Coordinator
from evenq_broker.loops.coordinators.places import forget_record
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.record_repair import CommittedLog, RecordRepair, fetch_records
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog
from evenq_broker.loops.replication.replica_parts import LeaderTerm
from evenq_broker.loops.replication.shared_pieces import SharedPieces
from evenq_broker.loops.replication.snapshot_fetch import fetch_snapshot
from evenq_broker.loops.replication.snapshots import FetchedSnapshot, IncomingSnapshot
from evenq_broker.loops.state.ledger import store_options
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import LinkOpening
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings

MODES = {"sync": Mode.REPL_SYNC, "memory": Mode.REPL_MEMORY}
SEGMENT_BYTES = 64 << 20
"""Default size of a log file: the same for all copies, whatever the size of their volumes."""
OPENS_MAX = 1_000
"""Most attempts to open a folder: each may find damage that earlier ones did not reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMachine:
    """Replacements for the machine of a copy and the place of the group record, for simulations; None: the real one."""

    disk: Disk | None = None
    coordinator: Coordinator | None = None
    boot_id: str | None = None
    """Changes with each loss of power."""
    new_store_id: Callable[[], str] | None = None


async def load_identity(settings: BrokerSettings, machine: ReplicaMachine) -> ReplicaIdentity:
    """Returns the identity of the data folder, which is in use from now on. Raises StoreLocked, StoreError."""
    path, own, disk = settings.store.path, settings.replication, machine.disk
    assert path is not None, "the settings require a folder"
    if disk is None:
        disk = await asyncio.to_thread(owned_folder.disk_of, path, store_options(settings.store))
    try:
        known = await asyncio.to_thread(lock.load, disk)
        return await asyncio.to_thread(
            ReplicaIdentity.load,
            disk,
            cluster=settings.cluster,
            broker_id=own.broker_id,
            mode=MODES[own.mode],
            restored_epoch=known.epoch_floor if known is not None else 0,
            boot_id=machine.boot_id,
            new_store_id=machine.new_store_id,
        )
    except OSError as error:
        raise unusable(path, error) from error


class CopyLog:
    """The log of one copy: `writer` changes it, `repair` replaces its damaged records."""

    def __init__(
        self,
        runtime: Runtime,
        machine: ReplicaMachine,
        identity: ReplicaIdentity,
        driver: ReplicaDriver,
        addresses: Mapping[int, str],
        term: LeaderTerm,
    ) -> None:
        """`addresses`: of the present copies, by broker id."""
        self._runtime, self._machine, self._identity = runtime, machine, identity
        self._driver, self._addresses, settings = driver, addresses, runtime.settings
        self._adopts = driver.replica.config.adopts and identity.epoch == 0
        """True: the log was written without copies and founds the group."""
        self.segment_bytes = settings.store.segment_bytes or SEGMENT_BYTES
        self._pieces = SharedPieces(LogPieces(identity.disk, self.segment_bytes))
        self.writer = ReplicaLog(
            driver.replica,
            identity,
            open_copy=self._open_copy,
            pieces=self._pieces,
            term=term,
            clock=runtime.clock,
            tell=driver.tell,
            fetch=self._fetch_snapshot,
            growth_bytes=settings.store.snapshot_log_bytes,
            group=settings.broker_name,
            refusal=self._no_reads,
            index=CopyIndex(keys_of) if settings.store.message_index else None,
        )
        self.repair = RecordRepair(
            identity.disk,
            self.segment_bytes,
            known=self._known,
            copies=self.others,
            ask=self._fetch_records,
            write=self.writer.rewrite,
            clock=runtime.clock,
            group=settings.broker_name,
        )
        self.writer.repair_by(self.repair)

    def others(self) -> list[int]:
        """Returns the broker ids of the other copies, the leader first."""
        own, leader = self._runtime.settings.replication.broker_id, self._driver.replica.group.leader_id()
        return sorted((number for number in self._addresses if number != own), key=lambda one: (one != leader, one))

    async def open(self, coordinator: Coordinator) -> None:
        """Opens the folder to follow. Raises StoreLocked, StoreCorrupted, CoordinatorUnknown; StoreError, also if a log
        without copies would found a group whose record exists.
        """
        await self.writer.open()
        self._adopts = self._adopts and bool(self.writer.holds_records)
        seen = await coordinator.read() if self._adopts else None
        if seen is not None and self._driver.replica.own.pair not in seen.record.isr:
            place, members = self._runtime.settings.replication.record, ", ".join(map(str, seen.record.members))
            raise StoreError(
                f"replication.from_one_copy founds a group, but {place} holds the record of a group with the copies "
                f"{members}: set another replication.record, or start this broker as a copy of that group with an "
                "empty folder"
            )

    async def forget_group(self) -> None:
        """Makes the folder that of a broker without copies again, if it was one: the start failed. Raises OSError."""
        if self._adopts and self._identity.is_new:
            await asyncio.to_thread(self._identity.forget)
            await asyncio.to_thread(forget_record, self._identity.folder)

    async def close(self, *, clean: bool) -> None:
        """Gives the folder back after the loops of the writer have ended. See ReplicaLog."""
        await self.repair.close()
        await self.writer.close(clean=clean)
        self._pieces.close()

    async def _open_copy(self) -> LogCopy:
        settings = self._runtime.settings
        for _ in range(OPENS_MAX):
            try:
                return await LogCopy.open(
                    settings.store.path,
                    store_options(settings.store),
                    broker_name=settings.broker_name,
                    segment_bytes=self.segment_bytes,
                    clock=self._runtime.clock,
                    disk=self._machine.disk,
                )
            except StoreCorrupted as error:
                if error.log_offset < 0:
                    raise
                await self.repair.repair_unopened(error)
        raise StoreError(f"the data folder has more than {OPENS_MAX} damaged places: start this copy with an empty one")

    async def _fetch_snapshot(self, after: int, until: int) -> FetchedSnapshot | None:
        """See FollowerReplay. Raises Error."""
        leader = self._driver.replica.group.leader_id()
        address = self._addresses.get(leader)
        if not address or leader == self._runtime.settings.replication.broker_id:
            return None
        sink = IncomingSnapshot(origin=address, after=after, until=until)
        with contextlib.suppress(NotFound):
            await fetch_snapshot(self._runtime.net, address, self._opening(leader), sink, clock=self._runtime.clock)
        return sink.known

    async def _fetch_records(self, copy: int, wanted: WantedRecords) -> bytes:
        """See RecordRepair. Raises Error."""
        net, opening = self._runtime.net, self._opening(copy)
        return await fetch_records(net, self._addresses[copy], opening, wanted, clock=self._runtime.clock)

    def _opening(self, receiver: int) -> LinkOpening:
        settings = self._runtime.settings
        return LinkOpening(settings.cluster, settings.broker_name, settings.replication.broker_id, receiver)

    def _known(self) -> CommittedLog:
        replica = self._driver.replica
        led_end = replica.log.end if replica.leads else 0
        return CommittedLog(min(replica.log.hw, replica.log.end), replica.log.table, led_end, self.writer.matched_end)

    def _no_reads(self) -> str:
        """Returns why readers that take any copy are not served here; empty: they are."""
        if not self._runtime.settings.replication.follower_reads:
            return "replication.follower_reads is off"
        return "" if self._driver.is_member else "it is not a copy of its group"
