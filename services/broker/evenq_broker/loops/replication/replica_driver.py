"""Driver of one replica: reports events to the core, and carries out the actions that it returns.

The core (`core/replication/replica.py`) decides. This module has the parts that it must not know: time, peers, the
coordinator, the log's files. Actions on the log go to `ReplicaLog` in order. All others are carried out immediately and
bounded: at most one read of the group record, one compare-and-set, and one read of the log for each peer are running.
The core repeats lost requests. Belongs to one loop; `failed` is its unplanned end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from evenq.errors import Error, WithinRecord
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.runtime.tasks import spawn
from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    AppendRecords,
    ClosePeer,
    CommitAdvanced,
    CompareAndSet,
    Fence,
    HandedOver,
    PersistEpoch,
    ReadRecord,
    RecordTooOld,
    Reset,
    Send,
    SendEpochs,
    SendRecords,
    Serve,
    StopServing,
    Truncate,
)
from evenq_broker.core.replication.membership import CopyChange
from evenq_broker.core.replication.messages import Envelope
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, RecordRefused
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import NOTHING, Role
from evenq_broker.core.replication.unclean import in_words
from evenq_broker.loops.coordinators.coordinator import Coordinator, CoordinatorUnknown
from evenq_broker.loops.replication.epoch_replies import EpochReplies
from evenq_broker.loops.replication.other_history import ends_elsewhere
from evenq_broker.loops.replication.peer_watch import PeerWatch
from evenq_broker.loops.replication.replica_parts import LogActions, PeerSender

log = logging.getLogger(__name__)

TICK_MS = 50
WATCH_PAUSE_MS = 1_000
TOO_OLD_LOG_MS = 30_000
SETTLE_MS = 500
"""Longest wait of a hand-over for the outcome of earlier records; a commit takes some milliseconds."""
ALONE_MS = 1_000
"""Longest wait of a broker that ends for a peer while it is connected to none: all may be stopping, too."""
AWAIT_MS = 30_000
"""A copy that may lead counts for this time as one that clients may wait at; then it reports that it is not ready."""
PIECE_BYTES = 1 << 20
"""Of records in one message, unless one group of them is larger."""


class ReplicaDriver:
    """Driver of one replica. `log` and `peers` are set before `start`."""

    log: LogActions
    peers: PeerSender

    def __init__(self, replica: Replica, coordinator: Coordinator, *, clock: Clock, group: str) -> None:
        """`group`: the broker's name, for log lines."""
        self.replica = replica
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done with the error when the process must end."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each event: the leader, or the right to append, may have changed."""
        self.on_copies: Callable[[GroupRecord], None] = lambda _: None
        """Called with the first record, and with each one that has other copies or other addresses."""
        self.watch = PeerWatch(set(replica.config.members) - {replica.config.broker_id})
        self._coordinator, self._clock, self._group = coordinator, clock, group
        self.remembered: GroupRecord | None = None
        """The group record as the last start knew it, until this one has read it. May be set before `start`."""
        self._feeding: set[int] = set()
        """Peers with a task that reads records for them; a peer has one at most."""
        self._epochs = EpochReplies(replica, begin=self._spawn)
        self._connected: set[int] = set()
        self._met = False
        """The leader's process was connected since the start, or is known to be gone."""
        self._may_append = False
        self._reading = self._setting = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drained: asyncio.Future[HandedOver] | None = None
        self._draining_to_end = False
        """The broker ends: it does not continue to lead."""
        self._alone_ms = 0
        """Last time with a connected peer; at the end of the broker, not before the drain began."""
        self._led_ms = clock.monotonic_ms()
        """Last time when a leader was reached, or the start."""
        self._role = replica.role
        self._record: GroupRecord | None = None
        """The newest record whose copies were applied."""
        self._too_old_ms = -TOO_OLD_LOG_MS
        self._unwritten = ""
        """Why the group record could not be written last; it is logged once."""
        self.reaches_record = True
        """False while the group record cannot be read, written or watched: the leader continues, no copy is elected."""
        self._writes = True
        """False: the last write of the record failed, and no write of another copy was seen since."""
        self._closed = False

    def start(self) -> None:
        """Starts the clock and the watch of the group record. The log was reported before (`recovered`)."""
        self._spawn(self._tick(), name="replica time")
        self._spawn(self._watch(), name="group record")

    def tell(self, actions: list[Action]) -> None:
        """Carries out the actions of an event of the replica."""
        # First, so that a message to an added copy finds a link.
        if self.replica.group.followed is not self._record:
            self._look_at_copies()
        for action in actions:
            self._carry_out(action)
        if self.replica.role is not self._role:
            before, self._role, leader = self._role, self.replica.role, self.replica.group.leader_id()
            if self._role is Role.STARTING:
                self._connected = set(self._members())  # copies that are not connected now count as lost
            log.info(
                "replica %s: %s, was %s",
                self._group,
                self._role,
                before,
                extra={"broker": self._group, "epoch": self.replica.max_epoch, "leader": leader},
            )
        may_append = self.replica.leader.may_append()
        if actions or may_append is not self._may_append:
            self._may_append = may_append
            self.on_change()

    def _members(self) -> tuple[int, ...]:
        record = self.replica.group.followed
        return self.replica.config.members if record is None else record.members

    def _look_at_copies(self) -> None:
        """Logs changed copies of a newer record, and updates the links."""
        before, self._record = self._record, self.replica.group.followed
        record, own_id = self._record, self.replica.config.broker_id
        assert record is not None
        if record.unclean and (before is None or before.unclean != record.unclean):
            log.warning(
                "replica %s: %s",
                self._group,
                in_words(record.unclean[-1]),
                extra={"broker": self._group, "epoch": record.unclean[-1].epoch, "reason": record.unclean[-1].reason},
            )
        if before is not None and (before.members, before.addresses, before.min_isr) == (
            record.members,
            record.addresses,
            record.min_isr,
        ):
            return
        copies = ", ".join(map(str, record.members))
        facts = {"broker": self._group, "members": list(record.members), "in_sync_min": record.min_isr}
        if before is not None:
            log.info("replica %s: the copies are %s, %d are needed", self._group, copies, record.min_isr, extra=facts)
        if own_id not in record.members:
            log.warning(
                "replica %s: this is copy %d, and the copies of the group are %s: it was removed, or not added yet. "
                "It waits until `evenq broker add-replica %s --copy %d --at HOST:PORT`; if it is not for this group, "
                "stop it",
                self._group,
                own_id,
                copies,
                self._group,
                own_id,
                extra=facts,
            )
        if before is None or (before.members, before.addresses) != (record.members, record.addresses):
            self.watch.set_others(set(record.members) - {own_id})
            self.on_copies(record)
            self.log.remember()

    def receive(self, envelope: Envelope) -> None:
        """Handles a message of a peer."""
        if not self._closed:
            self.watch.heard(envelope)
            self.tell(self.replica.receive(envelope, self._clock.monotonic_ms()))

    async def drain(self) -> HandedOver:
        """Hands over to another broker, within `drain_ms` and `SETTLE_MS`. Only a serving leader waits."""
        self._draining_to_end = True  # also during a hand-over: no more records are accepted
        self._alone_ms = self._clock.monotonic_ms()
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._spawn(self._begin_drain(), name="hand-over")
        ends: set[asyncio.Future[Any]] = {self._drained, self.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return self._drained.result() if self._drained.done() else HandedOver(NO_LEADER, self.replica.max_epoch)

    async def hand_over(self, to: int, *, within_ms: int) -> HandedOver:
        """Hands over to the broker `to`, or continues to lead after `within_ms`. A second call waits for the first."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._drained.add_done_callback(self._handed_over)
            self._spawn(self._begin_drain(to, within_ms), name="hand-over")
        return await asyncio.shield(self._drained)

    async def _begin_drain(self, to: int = NOTHING, within_ms: int = 0) -> None:
        """Waits for the outcome of earlier records, then drains: otherwise senders would get PersistenceTimeout."""
        try:
            await self.log.settle(SETTLE_MS)
            self.tell(self.replica.leader.drain(self._clock.monotonic_ms(), to=to, within_ms=within_ms))
        finally:
            self.log.settled()

    def change_copies(self, change: CopyChange) -> None:
        """Proposes other copies, if `Copies.why_not_changed` has no reason; the record shows the result."""
        self.tell(self.replica.leader.change_copies(change))

    def stand_unclean(self, *, reason: str) -> None:
        """Proposes to lead without being in sync, if `why_not_unclean` has no reason; the record shows the result."""
        self.tell(self.replica.stand_unclean(reason=reason, time_ms=self._clock.now_ms()))

    def _handed_over(self, drained: asyncio.Future[HandedOver]) -> None:
        if not self._draining_to_end:
            self._drained = None
            if not drained.cancelled() and drained.result().leader == NO_LEADER:
                self.tell(self.replica.leader.resume())

    async def close(self) -> None:
        """Ends all tasks; no action is carried out any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """Ends the replica: only a new process can continue."""
        if not self.failed.done():
            self.failed.set_result(error)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(to, envelope):
                self.peers.send(to, envelope)
            case SendEpochs():
                self._epochs.send(action, log=self.log, peers=self.peers)
            case SendRecords():
                self._feed(action)
            case PersistEpoch() | AppendEpochStart() | AppendRecords() | Truncate() | Reset():
                self.log.do(action)
            case CommitAdvanced(end):
                self.log.committed(end)
            case CompareAndSet():
                self._set(action)
            case ReadRecord():
                self._read()
            case Serve(epoch):
                self.log.serve(epoch)
            case StopServing(reason):
                log.warning("replica %s does not lead any more: %s", self._group, reason, extra={"broker": self._group})
                self.log.stop_serving(reason)
            case HandedOver():
                if self._drained is not None and not self._drained.done():
                    self._drained.set_result(action)
            case ClosePeer(broker_id, reason):
                self.peers.close_peer(broker_id, reason)
            case RecordTooOld(epoch, epoch_seen):
                self._too_old(epoch, epoch_seen)
            case Fence(error):
                self.fail(error)

    # Records for followers.

    def _feed(self, action: SendRecords) -> None:
        if action.end == action.start:
            self._send_read(action, b"")
            return
        if action.to in self._feeding:  # its task continues with all records that the peer lacks
            return
        data = self.log.at_hand(action.start, action.end)
        if data is not None:
            self._send_read(action, data)
            return
        self._feeding.add(action.to)
        self._spawn(self._feed_on(action), name=f"records for broker {action.to}")

    async def _feed_on(self, action: SendRecords) -> None:
        """Reads and sends records until enough is on the way to the peer, or it has all."""
        to, start, epoch = action.to, action.start, self.replica.max_epoch
        try:
            more: list[SendRecords] = [action]
            while more:
                start, end = more[0].start, more[0].end
                data = b"" if start == end else await self.log.read(start, end, PIECE_BYTES)
                if self.replica.max_epoch != epoch:
                    return  # the log may have been cut since the read began, and another term has other bytes there
                self._send_read(more[0], data)
                # Records written during the read leave with this task, without another turn of the loop.
                more = self.replica.leader.more_for(to) if data else []
        except WithinRecord:
            self.replica.leader.not_sent(to)
            self.peers.close_peer(to, ends_elsewhere(start))
        except Error as error:  # the core repeats it
            log.warning(
                "replica %s cannot read records for broker %d: %s",
                self._group,
                to,
                error.message,
                extra={"broker": self._group, "to": to, "start": start},
            )
            self.replica.leader.not_sent(to)
        finally:
            self._feeding.discard(to)

    def _send_read(self, action: SendRecords, data: bytes) -> None:
        envelope = self.replica.leader.records(action, action.start + len(data), data)
        if envelope is not None and self.peers.send(action.to, envelope) is False:
            self.replica.leader.not_sent(action.to)

    # The group record.

    def _set(self, action: CompareAndSet) -> None:
        if not self._setting:  # the core repeats one whose outcome it does not know
            self._setting = True
            self._spawn(self._set_on(action), name="group record, written")

    async def _set_on(self, action: CompareAndSet) -> None:
        replica = self.replica
        try:
            try:
                passing("replica.record_proposed")
                seen = await self._coordinator.compare_and_set(action.expected, action.proposed)
                passing("replica.record_set")
            # No error of this call proves that nothing was written: both sets count until the record is read (R7).
            except (Error, RecordRefused) as error:
                self.reaches_record, self._writes = False, False
                if str(error) != self._unwritten:
                    self._unwritten = str(error)
                    log.log(
                        _level(error),
                        "replica %s: the group record was not written: %s",
                        self._group,
                        self._unwritten,
                        extra={"broker": self._group},
                    )
                actions = replica.cas_unknown(action.number)
            else:
                self._unwritten, self.reaches_record, self._writes = "", True, True
                now_ms = self._clock.monotonic_ms()
                if seen is None:
                    actions = replica.cas_conflict(action.number, None, now_ms)
                else:
                    actions = replica.cas_done(action.number, seen, now_ms)
        finally:
            self._setting = False
        self.tell(actions)

    def _read(self) -> None:
        if not self._reading:
            self._reading = True
            self._spawn(self._read_on(), name="group record, read")

    async def _read_on(self) -> None:
        try:
            seen = await self._coordinator.read()
        except (Error, RecordRefused) as error:
            self.reaches_record = False
            log.debug("replica %s: the group record was not read: %s", self._group, error)  # the watch logs it once
            self._go_by_memory()
            return
        finally:
            self._reading = False
        self.reaches_record, self.remembered = self._writes, None
        replica = self.replica
        self.tell(replica.absent() if seen is None else replica.observed(seen, self._clock.monotonic_ms()))

    def _go_by_memory(self) -> None:
        """Follows the remembered leader, if this start has not read the record yet (R23)."""
        replica, record = self.replica, self.remembered
        self.remembered = None
        if record is None or replica.group.followed is not None:
            return
        actions = replica.unreadable(record)
        if replica.group.followed is record:
            log.warning(
                "replica %s: the group record cannot be read since the start, so this copy follows copy %d, which led "
                "epoch %d when it was read last; until it is read again this copy is not ready, and will not lead",
                self._group,
                record.leader,
                record.epoch,
                extra={"broker": self._group, "epoch": record.epoch, "leader": record.leader},
            )
        self.tell(actions)

    async def _watch(self) -> None:
        said = ""
        while True:
            try:
                async for seen in self._coordinator.watch():
                    said, self.reaches_record, self._writes = "", True, True  # it changed, so some copy can write it
                    self.tell(self.replica.observed(seen, self._clock.monotonic_ms()))
            except (Error, RecordRefused) as error:
                self.reaches_record = False
                if str(error) != said:
                    said = str(error)
                    log.log(
                        _level(error),
                        "replica %s: the group record cannot be watched: %s",
                        self._group,
                        error,
                        extra={"broker": self._group},
                    )
            await self._clock.sleep_ms(WATCH_PAUSE_MS)

    def _too_old(self, epoch: int, epoch_seen: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._too_old_ms >= TOO_OLD_LOG_MS:
            self._too_old_ms = now_ms
            log.warning(
                "replica %s: the group record is at epoch %d, this broker has acted in epoch %d: it is not used. If "
                "this lasts, the record was lost or restored from a backup",
                self._group,
                epoch,
                epoch_seen,
                extra={"broker": self._group},
            )

    # Time and tasks.

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep_ms(TICK_MS)
            now_ms = self._clock.monotonic_ms()
            before, self._connected = self._connected, self.peers.connected
            self.watch.look(self._connected, self._clock.now_ms())
            for broker_id in sorted((before | self._never_met()) - self._connected - {self.replica.config.broker_id}):
                self.tell(self.replica.lost(broker_id, now_ms))
            self.tell(self.replica.tick(now_ms))
            if not self._lacks_leader():
                self._led_ms = now_ms
            if self._connected - {self.replica.config.broker_id}:
                self._alone_ms = now_ms
            elif self._draining_to_end and now_ms - self._alone_ms >= ALONE_MS:
                self._carry_out(HandedOver(NO_LEADER, self.replica.max_epoch))
            self.watch.measure(self.replica, now_ms)

    def _never_met(self) -> set[int]:
        """Returns the leader of the record, once, if a starting copy finds no process there: like a broken link."""
        leader = self.replica.group.leader_id()
        if self._met or leader == NO_LEADER or self.replica.record is None:
            return set()
        self._met = leader in self._connected or leader in self.peers.unreached
        return {leader} if self._met else set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> None:
        # A coroutine that is never awaited would warn.
        if self._closed:
            coroutine.close()
            return
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Ends the replica if the task failed. Called when a task of the copy is done."""
        self._tasks.discard(task)
        # A replica without its clock or watch would look healthy: the process ends, and its next start recovers.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    @property
    def leads(self) -> bool:
        """True while this broker serves clients, or is about to."""
        return self.replica.leads

    @property
    def awaits_leader(self) -> bool:
        """True while this copy reaches no leader and, with its store, is among those that may lead: for `AWAIT_MS` at
        most. Also while it begins to lead. False until a starting copy has tried to reach the leader: in a rolling
        restart it would be ready before it is in sync, and the next one would be stopped.
        """
        record = self.replica.record
        if record is None or self.replica.own.pair not in record.isr:
            return False
        tried = self._met or record.leader in (NO_LEADER, self.replica.config.broker_id)
        return tried and self._lacks_leader() and self._clock.monotonic_ms() - self._led_ms < AWAIT_MS

    def _lacks_leader(self) -> bool:
        leader = self.replica.group.leader_id()
        if leader == self.replica.config.broker_id:
            return self.replica.role is Role.STARTING
        return leader not in self.peers.connected

    @property
    def is_member(self) -> bool:
        """True unless the group record has other copies only."""
        return self.replica.config.broker_id in self._members()

    @property
    def in_sync(self) -> bool:
        """True if this broker and its store are in the group record, and its log follows it."""
        replica = self.replica
        record = replica.record
        good = replica.role in {Role.FETCHING, Role.STARTING, Role.READY, Role.DRAINING}
        return good and record is not None and replica.own.pair in record.isr


def _level(error: Exception) -> int:
    """Log level of an outage of the record's place: one line at its begin, which its coordinator may have written."""
    return logging.DEBUG if isinstance(error, CoordinatorUnknown) and error.is_logged else logging.WARNING
