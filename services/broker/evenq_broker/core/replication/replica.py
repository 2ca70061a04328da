"""One replica of a broker group: every event that may happen to it, the actions that follow, and the parts that own
its state.

Pure: no clock, no I/O, no loop. The owner (the broker, a simulation or a model) calls the method of each event and
carries out the returned actions in their order. `actions.py` names those of the log's writer. Every event may come at
any time, late, twice, or never; only the writer's own answers come once and in order. After a broken invariant or a
failed disk the replica is CRASHED: its last action is `Fence`, and it does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from evenq_broker.core.replication.actions import (
    Action,
    ClosePeer,
    Fence,
    HandedOver,
    PersistEpoch,
    ReadRecord,
    RecordTooOld,
    Send,
    StopServing,
)
from evenq_broker.core.replication.config import ReplicationConfig
from evenq_broker.core.replication.copies import Copies
from evenq_broker.core.replication.election import Election
from evenq_broker.core.replication.epoch_table import EpochTable, TableRefused
from evenq_broker.core.replication.following import Follower
from evenq_broker.core.replication.leading import Leader
from evenq_broker.core.replication.messages import (
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Nomination,
    Records,
    Refusal,
    fault_of,
)
from evenq_broker.core.replication.record import GroupRecord, Pair, Seen
from evenq_broker.core.replication.rules import NEVER, STANDING, InvariantBroken, LogView, OwnCopy, RecordView, Role

PARTS = ("own", "group", "log", "follower", "election", "copies", "leader")
"""Parts of a replica, each behind those to which it refers."""
P = ParamSpec("P")


def guarded(event: Callable[Concatenate[Replica, P], list[Action]]) -> Callable[Concatenate[Replica, P], list[Action]]:
    """Checks the invariants after an event; a broken one ends the replica."""

    @wraps(event)
    def run(self: Replica, /, *args: P.args, **kwargs: P.kwargs) -> list[Action]:
        if self.own.role is Role.CRASHED:
            return []
        try:
            actions = event(self, *args, **kwargs)
            self.check()
        except (InvariantBroken, TableRefused) as error:
            return self._crash(error)
        return actions

    return run


class Replica:
    """See the module. Parts and their attributes are for reading; only events change them."""

    __slots__ = (*PARTS, "retried_ms", "ticked_ms")

    def __init__(self, config: ReplicationConfig, *, store_id: str, epoch_seen: int, session: int) -> None:
        self.own = own = OwnCopy(config, Pair(config.broker_id, store_id), session, epoch_seen)
        self.group = group = RecordView(own)
        self.log = log = LogView(config.mode)
        self.follower = Follower(own, group, log)
        self.election = Election(own, group, log, self.follower)
        self.copies = Copies(own, group, log)
        self.leader = Leader(own, group, log, self.copies)
        self.retried_ms = 0  # when what may have been lost was last repeated
        self.ticked_ms = 0  # when the owner last reported the time

    @property
    def config(self) -> ReplicationConfig:
        return self.own.config

    @property
    def role(self) -> Role:
        return self.own.role

    @property
    def leads(self) -> bool:
        return self.own.leads

    @property
    def max_epoch(self) -> int:
        return self.own.max_epoch

    @property
    def record(self) -> GroupRecord | None:
        return self.group.record

    # The process and its disk.

    @guarded
    def recovered(self, table: EpochTable, end: int, now_ms: int) -> list[Action]:
        """Starts from a log that was scanned, its torn tail cut, and all of it synced. Must be the first event."""
        self.log.recovered(table, end)
        self.group.begin(now_ms)
        self.election.begin_wait(now_ms)
        self.retried_ms = self.ticked_ms = now_ms
        # Not FETCHING: nothing may be taken from a leader before the logs are matched in its epoch (R4).
        self.own.move(Role.TRUNCATING)
        return [ReadRecord()]

    @guarded
    def epoch_persisted(self, epoch: int) -> list[Action]:
        """Acts in the epoch that the writer synced: earlier appends are done, later ones of lower epochs refused."""
        if not self.own.persisted(epoch):
            return []
        if self.own.role is not Role.ELECTED:
            return self.follower.follow()
        self.log.elected(epoch)
        return self.leader.begin(self.ticked_ms)

    @guarded
    def appended(self, epoch: int, end: int) -> list[Action]:
        """Handles the end of an append: a leader's records, or the epoch-start record, were written up to `end`."""
        return self.leader.appended(epoch, end)

    @guarded
    def copied(self, end: int, *, synced: bool = False) -> list[Action]:
        """Handles the end of an AppendRecords: its records, or the first whole ones, were written up to `end`.
        `synced`: all below `end` is on disk, too, so one report has both.
        """
        return self.follower.copied(end, synced=synced)

    @guarded
    def not_copied(self) -> list[Action]:
        """Handles the failure of an AppendRecords: what it carried was damaged, or found no space, and nothing was
        written. It is requested again with the next repeat.
        """
        return self.follower.not_copied()

    @guarded
    def truncated(self, end: int) -> list[Action]:
        """Handles the end of a Truncate, which is synced."""
        self.log.truncated(end)
        return self.follower.matched()

    @guarded
    def emptied(self, start: int) -> list[Action]:
        """Handles the end of a Reset, which is synced."""
        self.log.emptied(start)
        return self.follower.matched()

    @guarded
    def synced(self, end: int) -> list[Action]:
        """Handles a sync: all below `end` is on disk."""
        if not self.log.synced(end):
            return []
        # Not `wants`: the report of the write requested more already; a second one would bring the same records.
        return self.leader.advance() if self.own.leads else self.follower.report(wants=False)

    @guarded
    def trimmed(self, start: int) -> list[Action]:
        """Handles retention, which removed all below `start`; that must be committed."""
        self.log.trimmed(start)
        return []

    def disk_measured(self, *, has_room: bool) -> list[Action]:
        """Handles a measurement of the disk, which goes to the leader with the next report, within `retry_ms` (R22)."""
        self.follower.has_room = has_room
        return []

    # The record.

    @guarded
    def observed(self, seen: Seen, now_ms: int) -> list[Action]:
        """Handles a record that was read, or came by a watch. One that is older than the known one is not used."""
        own, group, record = self.own, self.group, seen.record
        # Before anything is taken from the record: not even its epoch may be synced into a folder of another history.
        if self.election.is_of_others(record):
            raise InvariantBroken(
                f"R19: the log is of a broker that was alone, and a group is there already: {record}; a copy of it "
                "begins with an empty folder"
            )
        if own.is_over(record.epoch):
            return [RecordTooOld(record.epoch, own.known_epoch)]
        before = group.isr
        if not group.observed(seen, now_ms):
            return []
        self.election.begin_wait(now_ms)
        if own.begins_epoch(record):
            return self._enter_epoch(record)
        if own.leads:
            return self.leader.observed(before)
        if own.role is Role.FENCED and not own.persisting:
            return self.follower.follow()
        return self.follower.request_epochs() if own.role is Role.TRUNCATING and self.follower.request == 0 else []

    def _enter_epoch(self, record: GroupRecord) -> list[Action]:
        """Enters the higher epoch of the record: its number is synced before anything is done in it (R3)."""
        actions: list[Action] = []
        if self.own.role is Role.DRAINING:
            actions.append(HandedOver(record.leader, record.epoch))
        if self.own.leads:
            actions.append(StopServing(f"epoch {record.epoch} began, led by broker {record.leader}"))
        self.own.enter(record.epoch, Role.ELECTED if self.election.is_own_attempt(record) else Role.FENCED)
        self.follower.forget_queued()
        self.leader.end_term()
        self.election.heard(NEVER)  # no message of this epoch's leader came yet
        return [*actions, PersistEpoch(record.epoch)]

    @guarded
    def unreadable(self, remembered: GroupRecord) -> list[Action]:
        """Handles that no read of the record has succeeded since the start. `remembered`: the record that this store
        knew in an earlier one. Its leader is followed if this copy is still in that epoch; nothing else is based on it
        (R23).
        """
        return self.follower.request_epochs() if self.group.remember(remembered) else []

    @guarded
    def absent(self) -> list[Action]:
        """Handles that there is no record. The founder of the group writes the first one if its log never had anything,
        or was written without copies and is to be the first of them.
        """
        return self.election.found()

    def cas_done(self, number: int, seen: Seen, now_ms: int) -> list[Action]:
        """Handles a compare-and-set that was carried out; `seen` is what it wrote."""
        # Not the number but the record shows what happened, also after a repeat or a restart (R7).
        del number
        return self.observed(seen, now_ms)

    def cas_conflict(self, number: int, seen: Seen | None, now_ms: int) -> list[Action]:
        """Handles a compare-and-set whose token was not the record's; `seen` is the record now, if that is known. The
        answer to a repeat may mean that the first try was carried out: only the record shows that.
        """
        del number
        return [ReadRecord()] if seen is None else self.observed(seen, now_ms)

    def cas_unknown(self, number: int) -> list[Action]:
        """Handles the unknown outcome of a compare-and-set: both sets count until the record shows it (R7)."""
        cas = self.group.cas
        return [ReadRecord()] if cas is not None and cas.number == number else []

    @guarded
    def stand_unclean(self, *, reason: str, time_ms: int) -> list[Action]:
        """Stands for leader of the next epoch without being in sync, on an operator's command: what only the copies in
        sync had is given up (R20, D12). Returns nothing while another change of the record is under way, or if
        `why_not_unclean`, which the caller checks first, forbids it.
        """
        return self.election.stand_unclean(reason, time_ms)

    # Peers and time.

    @guarded
    def lost(self, broker_id: int, now_ms: int) -> list[Action]:
        """Handles a broken link to a broker, which its process may have ended. A leader counts that copy as silent now;
        it is admitted again once it has caught up. A follower that lost its leader waits for one sign of life in the
        record and not for several. Earlier messages of the leader do not count.
        """
        self._pass_time(now_ms)
        if self.own.leads and broker_id != self.own.broker_id:
            return self.leader.lost(broker_id, now_ms)
        if self.own.role in STANDING and broker_id == self.group.leader_id():
            self.election.lost_leader(now_ms)
        return []

    @guarded
    def receive(self, envelope: Envelope, now_ms: int) -> list[Action]:
        own, record = self.own, self.group.followed
        if record is None:
            return []
        known = max(own.known_epoch, record.epoch)
        fault = fault_of(envelope, cluster=own.config.cluster, own_id=own.broker_id, epoch=known, record=record)
        if fault:
            return [ClosePeer(envelope.sender, fault)]
        if own.is_over(envelope.epoch):
            # A refusal is never answered by a refusal: two copies that are both behind would continue for ever.
            return [] if isinstance(envelope.body, Refusal) else [Send(envelope.sender, own.envelope(Refusal()))]
        # Followers may learn of an election before the winner does, and request epochs immediately. If they had to
        # repeat it, 500 ms later, a planned hand-over would take that long.
        if isinstance(envelope.body, EpochsRequest) and not own.leads:
            self.leader.asked_early(envelope)
        if envelope.epoch > known:
            return self._overtaken(envelope)
        if envelope.epoch > own.max_epoch or own.persisting:
            return []  # the record has that epoch already, and this replica enters it first
        return self._hear(envelope, now_ms)

    def _overtaken(self, envelope: Envelope) -> list[Action]:
        """Handles a peer in a higher epoch. Only the record shows who leads it; a leader stops immediately (R3)."""
        # No epoch is synced because a peer claims it: a broken one that claims 2^60 would make every later, true epoch
        # a lower one (decision 47).
        if not self.own.leads:
            return [ReadRecord()]
        # A draining leader waited for a higher epoch; HandedOver comes before StopServing ends its calls.
        handed = [HandedOver(envelope.sender, envelope.epoch)] if self.own.role is Role.DRAINING else []
        self.own.move(Role.FENCED)
        return [*handed, StopServing(f"broker {envelope.sender} is in epoch {envelope.epoch}"), ReadRecord()]

    def _hear(self, envelope: Envelope, now_ms: int) -> list[Action]:
        of_leader = envelope.sender == self.group.leader_id()
        if of_leader:
            self.election.heard(now_ms)
        match envelope.body:
            case EpochsRequest() as request:
                return self.leader.on_request(envelope, request)
            case FollowerProgress() as progress:
                return self.leader.on_progress(envelope, progress, now_ms)
            case EpochsReply() as reply if of_leader:
                return self.follower.on_epochs(reply)
            case Records() as records if of_leader:
                return self.follower.on_records(records)
            case Nomination(end) if of_leader and end == self.log.end:
                return self.election.stand() if self.own.role is Role.FETCHING else []
            case _:
                return []

    @guarded
    def tick(self, now_ms: int) -> list[Action]:
        """Handles the passing of time: repeats what may have been lost, and does what is due."""
        self._pass_time(now_ms)
        own, actions = self.own, list[Action]()
        again = now_ms - self.retried_ms >= own.config.timing.retry_ms
        if again:
            self.retried_ms = now_ms
            actions += self._repeat()
        elif own.leads:
            actions += self.leader.announce_committed(repeat=False)
        # One change of the record at a time, renewals included: two unknown ones would make three sets count (R7).
        if self.group.cas is None:
            actions += self.leader.lead_on(now_ms) if own.leads else self.election.stand_by(now_ms)
        if again and own.role is Role.DRAINING:
            actions += self.leader.drain_tick(now_ms)
        return actions

    def _pass_time(self, now_ms: int) -> None:
        """Moves the times of peers if this process did not run for a while: nobody was silent meanwhile. Messages
        wait to be read, and broken links do not show who is dead, since all copies may have been paused together.
        """
        paused_ms = now_ms - self.ticked_ms - self.own.config.timing.pause_ms
        self.ticked_ms = now_ms
        if paused_ms > 0:
            self.copies.paused(now_ms, paused_ms)
            self.election.paused(now_ms, paused_ms)

    def _repeat(self) -> list[Action]:
        # The same proposal with the same token: if it was carried out it is refused now, and the read shows that.
        actions: list[Action] = [] if self.group.cas is None else [self.group.cas, ReadRecord()]
        match self.own.role:
            case Role.FETCHING:
                # While the writer works, its end makes the next report; a request now would repeat what is on its way.
                idle = self.follower.writing is None
                actions += [ReadRecord(), *self.follower.report(wants=idle, again=idle)]
            case Role.TRUNCATING:
                actions += [ReadRecord(), *self.follower.request_epochs()]
            case Role.FENCED:
                actions.append(ReadRecord())
            case Role.STARTING | Role.READY | Role.DRAINING:
                actions += [*self.leader.more(), *self.leader.announce_committed(repeat=True)]
            case _:
                pass
        return actions

    # Invariants.

    def check(self) -> None:
        """Recomputes the invariants that one replica can see. Raises InvariantBroken."""
        self.log.check()
        if self.own.leads:
            self._check_leader()

    def _check_leader(self) -> None:
        record, own, epoch = self.group.record, self.own.pair, self.own.max_epoch
        if record is None or record.epoch != epoch or record.leader != own.broker_id:
            raise InvariantBroken(f"I7: leads epoch {epoch}, but the record says {record}")
        if own not in record.isr:
            raise InvariantBroken(f"I3: leads epoch {epoch}, but {own} is not in sync: {record.isr}")
        if self.log.table.last_epoch != epoch:
            raise InvariantBroken(f"I4: leads epoch {epoch}, but its log is at {self.log.table.last_epoch}")
        begin = self.leader.epoch_start_end
        if self.own.role is not Role.STARTING and self.log.hw < begin:
            raise InvariantBroken(f"R11: serves, but its epoch begins at {begin} over {self.log.hw}")

    def _crash(self, error: Exception) -> list[Action]:
        if self.own.role is Role.CRASHED:
            return []
        self.own.role = Role.CRASHED
        return [StopServing(str(error)), Fence(error)]
