"""Drives one replica: tells the core what happened, and carries out what it asks for.

The core decides (`core/replication/replica.py`); here is what it must not know: time, peers, the coordinator, the log's
files. What concerns the log goes through `ReplicaLog` in the order given; everything else is done at once, bounded: one
read of the group record, one compare-and-set and one read of the log for each peer are under way at a time. What is
lost on the way the core asks for again. Belongs to one loop; its end by itself is `failed`.
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

__all__ = ["ReplicaDriver"]

log = logging.getLogger(__name__)

TICK_MS = 50
WATCH_PAUSE_MS = 1_000
TOO_OLD_LOG_MS = 30_000
SETTLE_MS = 500
"""How long a hand-over waits for the outcome of what was taken before; a commit takes some milliseconds."""
ALONE_MS = 1_000
"""How long a broker that ends waits for a peer when it is connected to none: all may be stopping, too."""
AWAIT_MS = 30_000
"""A copy that may lead counts as one that clients may wait at for this time; then it says that it is not ready."""
PIECE_BYTES = 1 << 20
"""Of records in one message, unless one group of them is larger."""


class ReplicaDriver:
    """See the module. `log` and `peers` are set before `start`."""

    log: LogActions
    peers: PeerSender

    def __init__(self, replica: Replica, coordinator: Coordinator, *, clock: Clock, group: str) -> None:
        """`group`: the broker's name, for log lines."""
        self.replica = replica
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done with the error when only the end of the process helps."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each event: what may be appended, or who leads, may have changed."""
        self.on_copies: Callable[[GroupRecord], None] = lambda _: None
        """Called with a record in which other copies stand than before, or other addresses; with the first, too."""
        self.watch = PeerWatch(set(replica.config.members) - {replica.config.broker_id})
        """Who answers, for people."""
        self._coordinator, self._clock, self._group = coordinator, clock, group
        self.remembered: GroupRecord | None = None
        """What the last start knew of the group record, until this one has read it. May be set before `start`."""
        self._feeding: set[int] = set()
        """Peers that have a task that reads for them."""
        self._epochs = EpochReplies(replica, begin=self._spawn)
        self._connected: set[int] = set()
        self._met = False
        """The leader's process was linked to since the start, or is known to be gone."""
        self._may_append = False
        self._reading = self._setting = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drained: asyncio.Future[HandedOver] | None = None
        self._draining_to_end = False
        """The broker ends: it does not go on leading."""
        self._alone_ms = 0
        """Since when this broker was connected to no peer, or ends."""
        self._led_ms = clock.monotonic_ms()
        """When a leader was reached last, or the start."""
        self._role = replica.role
        self._record: GroupRecord | None = None
        """The newest one whose copies were looked at."""
        self._too_old_ms = -TOO_OLD_LOG_MS
        self._unwritten = ""
        """Why the group record could not be written last; it is logged once."""
        self.reaches_record = True
        """False while the group record cannot be read, written or watched: the leader goes on, no copy is elected."""
        self._writes = True
        """False: the last write of the record failed, and nobody was seen to write it since."""
        self._closed = False

    def start(self) -> None:
        """Begin with time and the group record. The log was reported before (`recovered`)."""
        self._spawn(self._tick(), name="replica time")
        self._spawn(self._watch(), name="group record")

    def tell(self, actions: list[Action]) -> None:
        """Carry out what an event of the replica asked for."""
        # First, so that a message to a copy that was just added finds a link.
        if self.replica.followed is not self._record:
            self._look_at_copies()
        for action in actions:
            self._carry_out(action)
        if self.replica.role is not self._role:
            before, self._role = self._role, self.replica.role
            if self._role is Role.STARTING:
                self._connected = set(self._members())  # who is not there now was lost
            log.info(
                "replica %s: %s, was %s", self._group, self._role, before,
                extra={"broker": self._group, "epoch": self.replica.max_epoch, "leader": self.replica.leader_id()},
            )  # fmt: skip
        may_append = self.replica.may_append()
        if actions or may_append is not self._may_append:
            self._may_append = may_append
            self.on_change()

    def _members(self) -> tuple[int, ...]:
        record = self.replica.followed
        return self.replica.config.members if record is None else record.members

    def _look_at_copies(self) -> None:
        """The record is a newer one: say what changed of the copies, and let the links follow."""
        before, self._record = self._record, self.replica.followed
        record, own_id = self._record, self.replica.config.broker_id
        assert record is not None
        if record.unclean and (before is None or before.unclean != record.unclean):
            log.warning(
                "replica %s: %s", self._group, in_words(record.unclean[-1]),
                extra={"broker": self._group, "epoch": record.unclean[-1].epoch, "reason": record.unclean[-1].reason},
            )  # fmt: skip
        if before is not None and (before.members, before.addresses, before.min_isr) == (
            record.members, record.addresses, record.min_isr,
        ):  # fmt: skip
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
                self._group, own_id, copies, self._group, own_id, extra=facts,
            )  # fmt: skip
        if before is None or (before.members, before.addresses) != (record.members, record.addresses):
            self.watch.set_others(set(record.members) - {own_id})
            self.on_copies(record)
            self.log.remember()

    def receive(self, envelope: Envelope) -> None:
        """A message of a peer came."""
        if not self._closed:
            self.watch.heard(envelope)
            self.tell(self.replica.receive(envelope, self._clock.monotonic_ms()))

    async def drain(self) -> HandedOver:
        """Let another broker take over; ends within `drain_ms` of the timing and `SETTLE_MS`, and if the replica
        fails. Only a leader that serves waits.
        """
        self._draining_to_end = True  # also a hand-over that is under way: nothing is taken any more
        self._alone_ms = self._clock.monotonic_ms()
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._spawn(self._begin_drain(), name="hand-over")
        ends: set[asyncio.Future[Any]] = {self._drained, self.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return self._drained.result() if self._drained.done() else HandedOver(NO_LEADER, self.replica.max_epoch)

    async def hand_over(self, to: int, *, within_ms: int) -> HandedOver:
        """Let the broker `to` take over, and go on leading if it has not `within_ms`. It is carried out to its end also
        when who waits for it is cancelled; a second one meanwhile waits for the first.
        """
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._drained.add_done_callback(self._handed_over)
            self._spawn(self._begin_drain(to, within_ms), name="hand-over")
        return await asyncio.shield(self._drained)

    async def _begin_drain(self, to: int = NOTHING, within_ms: int = 0) -> None:
        """Senders whose records are on their way to the copies are answered first: the successor may begin its epoch
        before they are committed here, and they would be told that it is not known whether their records are kept.
        """
        try:
            await self.log.settle(SETTLE_MS)
            self.tell(self.replica.drain(self._clock.monotonic_ms(), to=to, within_ms=within_ms))
        finally:
            self.log.settled()

    def change_copies(self, change: CopyChange) -> None:
        """Propose another state of the group's copies, if nothing else is under way; `Replica.why_not_changed` says
        whether it may be, the record whether it is done.
        """
        self.tell(self.replica.change_copies(change))

    def stand_unclean(self, *, reason: str) -> None:
        """Propose to lead without being in sync; `Replica.why_not_unclean` says whether it may be, the record whether
        it is done.
        """
        self.tell(self.replica.stand_unclean(reason=reason, time_ms=self._clock.now_ms()))

    def _handed_over(self, drained: asyncio.Future[HandedOver]) -> None:
        if not self._draining_to_end:
            self._drained = None
            if not drained.cancelled() and drained.result().leader == NO_LEADER:
                self.tell(self.replica.resume())

    async def close(self) -> None:
        """End all tasks; nothing is carried out any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """Only the end of the process helps."""
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
                log.warning("replica %s leads no more: %s", self._group, reason, extra={"broker": self._group})
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
        if action.to in self._feeding:  # whose task asks for more when it has sent what it reads
            return
        data = self.log.at_hand(action.start, action.end)
        if data is not None:
            self._send_read(action, data)
            return
        self._feeding.add(action.to)
        self._spawn(self._feed_on(action), name=f"records for broker {action.to}")

    async def _feed_on(self, action: SendRecords) -> None:
        """Read and send records, until enough is on the way to the peer, or it has all."""
        to, start, epoch = action.to, action.start, self.replica.max_epoch
        try:
            more: list[SendRecords] = [action]
            while more:
                start, end = more[0].start, more[0].end
                data = b"" if start == end else await self.log.read(start, end, PIECE_BYTES)
                if self.replica.max_epoch != epoch:
                    return  # the log may have been cut since the read began, and another term has other bytes there
                self._send_read(more[0], data)
                # What was written while the file was read leaves with this task, without another turn of the loop.
                more = self.replica.more_for(to) if data else []
        except WithinRecord:
            self.replica.not_sent(to)
            self.peers.close_peer(to, ends_elsewhere(start))
        except Error as error:  # it is asked for again
            log.warning(
                "replica %s cannot read records for broker %d: %s", self._group, to, error.message,
                extra={"broker": self._group, "to": to, "start": start},
            )  # fmt: skip
            self.replica.not_sent(to)
        finally:
            self._feeding.discard(to)

    def _send_read(self, action: SendRecords, data: bytes) -> None:
        envelope = self.replica.records(action, action.start + len(data), data)
        if envelope is not None and self.peers.send(action.to, envelope) is False:
            self.replica.not_sent(action.to)

    # The group record.

    def _set(self, action: CompareAndSet) -> None:
        if not self._setting:  # the core asks again for the one whose answer it does not know
            self._setting = True
            self._spawn(self._set_on(action), name="group record, written")

    async def _set_on(self, action: CompareAndSet) -> None:
        replica = self.replica
        try:
            try:
                passing("replica.record_proposed")
                seen = await self._coordinator.compare_and_set(action.expected, action.proposed)
                passing("replica.record_set")
            # Of no error of this call it is known that nothing was written: both sets count until the record is read
            # (R7).
            except (Error, RecordRefused) as error:
                self.reaches_record, self._writes = False, False
                if str(error) != self._unwritten:
                    self._unwritten = str(error)
                    log.log(
                        _level(error), "replica %s: the group record was not written: %s", self._group, self._unwritten,
                        extra={"broker": self._group},
                    )  # fmt: skip
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
            log.debug("replica %s: the group record was not read: %s", self._group, error)  # the watch says it once
            self._go_by_memory()
            return
        finally:
            self._reading = False
        self.reaches_record, self.remembered = self._writes, None
        replica = self.replica
        self.tell(replica.absent() if seen is None else replica.observed(seen, self._clock.monotonic_ms()))

    def _go_by_memory(self) -> None:
        """The record was not read: a start that has not read it yet follows whom it followed before (R23)."""
        replica, record = self.replica, self.remembered
        self.remembered = None
        if record is None or replica.followed is not None:
            return
        actions = replica.unreadable(record)
        if replica.followed is record:
            log.warning(
                "replica %s: the group record cannot be read since the start, so this copy follows copy %d, which led "
                "epoch %d when it was read last; until it is read again this copy is not ready, and will not lead",
                self._group, record.leader, record.epoch,
                extra={"broker": self._group, "epoch": record.epoch, "leader": record.leader},
            )  # fmt: skip
        self.tell(actions)

    async def _watch(self) -> None:
        said = ""
        while True:
            try:
                async for seen in self._coordinator.watch():
                    said, self.reaches_record, self._writes = "", True, True  # it was changed: somebody writes it
                    self.tell(self.replica.observed(seen, self._clock.monotonic_ms()))
            except (Error, RecordRefused) as error:
                self.reaches_record = False
                if str(error) != said:
                    said = str(error)
                    log.log(
                        _level(error), "replica %s: the group record cannot be watched: %s", self._group, error,
                        extra={"broker": self._group},
                    )  # fmt: skip
            await self._clock.sleep_ms(WATCH_PAUSE_MS)

    def _too_old(self, epoch: int, epoch_seen: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._too_old_ms >= TOO_OLD_LOG_MS:
            self._too_old_ms = now_ms
            log.warning(
                "replica %s: the group record is at epoch %d, this broker has acted in epoch %d: it is not used. If "
                "this lasts, the record was lost or put back from a backup", self._group, epoch, epoch_seen,
                extra={"broker": self._group},
            )  # fmt: skip

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
        """The leader of the record, once, if this copy starts and finds nobody at its address: as much as a link that
        breaks says, so a group whose processes all ended waits no longer for it than one that lost it.
        """
        leader = self.replica.leader_id()
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
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # A replica without its clock or its watch would look well and do nothing: the process ends, and its next start
        # recovers.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    @property
    def leads(self) -> bool:
        """True while this broker serves clients, or is about to."""
        return self.replica.leads

    @property
    def awaits_leader(self) -> bool:
        """True while no copy leads that this one reaches, and this one, with its store, is among those that may: for
        `AWAIT_MS` at most. Also while it begins to lead. Not yet where a copy that starts has not tried to reach the
        leader: in a rolling restart it would be ready before it is in sync, and the next one would be stopped.
        """
        record = self.replica.record
        if record is None or self.replica.own_pair not in record.isr:
            return False
        tried = self._met or record.leader in (NO_LEADER, self.replica.config.broker_id)
        return tried and self._lacks_leader() and self._clock.monotonic_ms() - self._led_ms < AWAIT_MS

    def _lacks_leader(self) -> bool:
        leader = self.replica.leader_id()
        if leader == self.replica.config.broker_id:
            return self.replica.role is Role.STARTING
        return leader not in self.peers.connected

    @property
    def is_member(self) -> bool:
        """True unless the group record has other copies only."""
        return self.replica.config.broker_id in self._members()

    @property
    def in_sync(self) -> bool:
        """True if this broker and its store stand in the group record, and its log follows it."""
        replica = self.replica
        record = replica.record
        good = replica.role in {Role.FETCHING, Role.STARTING, Role.READY, Role.DRAINING}
        return good and record is not None and replica.own_pair in record.isr


def _level(error: Exception) -> int:
    """Of an outage of the record's place there is one line at its begin, and the place may have written it."""
    return logging.DEBUG if isinstance(error, CoordinatorUnknown) and error.is_logged else logging.WARNING
