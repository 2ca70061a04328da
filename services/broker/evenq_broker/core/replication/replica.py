"""One replica of a broker group: every event that may happen to it, and what it does then.

Pure: no clock, no I/O, no loop. The owner (the broker, a simulation or a model) tells events and carries out the
actions that come back, in their order (`actions.py` says which of them the log's writer does). Every event may be told
at any time, late, twice, or never; only the writer's own answers come once and in order. After a broken invariant or a
failed disk the replica is CRASHED, its last action is `Fence`, and it does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable

from evenq_broker.core.replication.actions import (
    Action,
    ClosePeer,
    Fence,
    HandedOver,
    ReadRecord,
    RecordTooOld,
    Send,
    StopServing,
)
from evenq_broker.core.replication.epoch_table import EpochTable, TableRefused
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
from evenq_broker.core.replication.record import (
    NO_LEADER,
    GroupRecord,
    Seen,
    UncleanElection,
    first_record,
    restored_record,
)
from evenq_broker.core.replication.rules import LEADING, NEVER, STANDING, InvariantBroken, Role

__all__ = ["Replica"]

ASLEEP = frozenset({Role.OFFLINE, Role.CRASHED})


class Replica(Leader):
    """See the module."""

    __slots__ = ()

    # The process and its disk.

    def recovered(self, table: EpochTable, end: int, now_ms: int) -> list[Action]:
        """The log was scanned, a torn tail cut, and all of it synced. Must be the first event."""
        self.table, self.end, self.durable = table, end, end
        self.changed_ms = self.retried_ms = self.read_ms = self.sign_ms = self.ticked_ms = now_ms
        return self._guarded(self._wake)

    def _wake(self) -> list[Action]:
        # Not FETCHING: nothing may be taken from a leader before the logs are matched in its epoch (R4).
        self._move(Role.TRUNCATING)
        return [ReadRecord()]

    def epoch_persisted(self, epoch: int) -> list[Action]:
        """The writer synced the epoch; every append before it is done, and refused if its epoch is lower, after it."""
        return self._guarded(lambda: self._persisted(epoch))

    def _persisted(self, epoch: int) -> list[Action]:
        self.max_epoch = max(self.max_epoch, epoch)
        if epoch != self.persisting:
            return []  # a higher one is on its way
        self.persisting = 0
        if self.role is not Role.ELECTED:
            return self._follow()
        # Who is in sync has confirmed what it knows to be committed; who was elected unclean may not have (R20).
        self.hw, self.hw_epoch = min(self.hw, self._confirmed_end()), epoch
        return self._begin()

    def appended(self, epoch: int, end: int) -> list[Action]:
        """A leader's records, or the epoch-start record, were written; the log ends at `end`."""
        return self._guarded(lambda: self._appended(epoch, end))

    def copied(self, end: int, *, synced: bool = False) -> list[Action]:
        """What an AppendRecords carried was written, or its first whole records up to `end`. `synced`: all below `end`
        is on disk, too, so one report says both.
        """
        return self._guarded(lambda: self._copied(end, synced=synced))

    def not_copied(self) -> list[Action]:
        """What an AppendRecords carried was damaged, or found no space: nothing of it was written. It is asked for
        again with the next repeat.
        """
        return self._guarded(self._not_copied)

    def truncated(self, end: int) -> list[Action]:
        """A Truncate is done and synced."""
        return self._guarded(lambda: self._truncated(end))

    def emptied(self, start: int) -> list[Action]:
        """A Reset is done and synced."""
        return self._guarded(lambda: self._emptied(start))

    def synced(self, end: int) -> list[Action]:
        """All below `end` is on disk."""
        return self._guarded(lambda: self._synced(end))

    def _synced(self, end: int) -> list[Action]:
        if end > self.end:
            raise InvariantBroken(f"synced {end} of a log that ends at {self.end}")
        if end <= self.durable:
            return []
        self.durable = end
        # Not `wants`: what was written already asked for more, and a second question would bring the same records
        # twice.
        return self._advance() if self.role in LEADING else self._report(wants=False)

    def trimmed(self, start: int) -> list[Action]:
        """Retention removed all below `start`, which must be committed."""
        return self._guarded(lambda: self._trimmed(start))

    def _trimmed(self, start: int) -> list[Action]:
        if start > self.hw:
            raise InvariantBroken(f"retention removed up to {start}, but only {self.hw} is committed")
        self.table = self.table.begun(start)
        return []

    def disk_measured(self, *, has_room: bool) -> list[Action]:
        """How full the disk is: a leader is told with the next report, within `retry_ms` (R22)."""
        self.has_room = has_room
        return []

    def disk_failed(self, error: Exception) -> list[Action]:
        """A write or sync failed. Nothing after that can be trusted (D9)."""
        return self._crash(error)

    # The record.

    def observed(self, seen: Seen, now_ms: int) -> list[Action]:
        """The record was read, or came by a watch. May be late: what is older than known is not used."""
        return self._guarded(lambda: self._observed(seen, now_ms))

    def _observed(self, seen: Seen, now_ms: int) -> list[Action]:
        record = seen.record
        # Before anything is taken from the record: not even its epoch may be synced into a folder of another history.
        if self._is_of_others(record):
            raise InvariantBroken(
                f"R19: the log is of a broker that was alone, and a group is there already: {record}; a copy of it "
                "begins with an empty folder"
            )
        if self._is_over(record.epoch):
            return [RecordTooOld(record.epoch, max(self.max_epoch, self.persisting))]
        # A watch and a read may overtake each other; the version, which every write raises, says which is older.
        if self.seen is not None and record.version <= self.seen.record.version:
            if record.version == self.seen.record.version:
                self._read_again(now_ms)
            return []
        before = self._view()
        self.seen, self.remembered, self.again_ms = seen, None, NEVER
        self.changed_ms = self.read_ms = self.sign_ms = now_ms
        cas = self.cas
        if cas is not None and (cas.expected is None or record.version > cas.expected.record.version):
            self.cas = None  # R7: now it is known what became of it, and that it cannot happen any more
        if self._begins_epoch(record):
            return self._enter_epoch(record)
        if self.role in LEADING:
            self._forget_strangers()
            self._forget_replaced(before)
            return self._advance()
        if self.role is Role.FENCED and not self.persisting:
            return self._follow()
        return self._request_epochs() if self.role is Role.TRUNCATING and self.request == 0 else []

    def unreadable(self, remembered: GroupRecord) -> list[Action]:
        """No read of the record has succeeded since the start. `remembered`: what this store knew of it in an earlier
        one. Its leader is followed if this copy is in that epoch still; nothing else is done on that ground (R23).
        """
        return self._guarded(lambda: self._unreadable(remembered))

    def _unreadable(self, remembered: GroupRecord) -> list[Action]:
        if not self._may_follow_remembered(remembered):
            return []
        self.remembered = remembered
        return self._request_epochs()

    def absent(self) -> list[Action]:
        """There is no record. The founder of the group writes the first one, if its log never had anything, or was
        written without copies and is to be the first of them.
        """
        return self._guarded(self._absent)

    def _absent(self) -> list[Action]:
        config = self.config
        if not config.founds or self.seen is not None or self.cas is not None or self.role in ASLEEP:
            return []
        if self._is_restored():
            # The record names this copy as leader at once, and only an own attempt may lead (R2).
            self.attempted = config.restored_epoch + 1
            return self._set(
                restored_record(
                    self.own_pair, members=config.members, min_isr=config.min_isr, epoch=self.attempted
                )
            )  # fmt: skip
        if self.max_epoch or (self.end and not config.adopts):
            return [RecordTooOld(0, self.max_epoch)]  # it was lost: an operator must say which log is the newest (D12)
        epoch = self.table.last_epoch
        alone = self.end > self.table.start  # what it has, no other copy has
        members, min_isr = ((config.broker_id,), 1) if alone else (config.members, config.min_isr)
        return self._set(first_record(self.own_pair, members=members, min_isr=min_isr, epoch=epoch))

    def _is_restored(self) -> bool:
        """This log came from a backup, and no group has been founded on it yet: once one was, its epoch is higher."""
        restored = self.config.restored_epoch
        return bool(restored) and max(self.max_epoch, self.persisting, self.table.last_epoch) <= restored

    def cas_done(self, number: int, seen: Seen, now_ms: int) -> list[Action]:
        """The compare-and-set was carried out; `seen` is what it wrote."""
        # The number would tell whose answer this is; the record tells what happened, also after a repeat or a restart
        # (R7).
        del number
        return self.observed(seen, now_ms)

    def cas_conflict(self, number: int, seen: Seen | None, now_ms: int) -> list[Action]:
        """Its token was not the record's; `seen` is the record now, if that is known. It may have been carried out
        before, when this is the answer of a repeat: only the record tells.
        """
        del number
        return [ReadRecord()] if seen is None else self.observed(seen, now_ms)

    def cas_unknown(self, number: int) -> list[Action]:
        """It is not known whether it was, or will be, carried out: both sets count until the record tells (R7)."""
        return [ReadRecord()] if self.cas is not None and self.cas.number == number else []

    def stand_unclean(self, *, reason: str, time_ms: int) -> list[Action]:
        """Try to become leader of the next epoch without being in sync, on an operator's command: what only the copies
        in sync had is given up (R20, D12). Gives nothing while another change of the record is under way, or if
        `why_not_unclean` forbids it: ask that first.
        """
        return self._guarded(lambda: self._stand_unclean(reason, time_ms))

    def _stand_unclean(self, reason: str, time_ms: int) -> list[Action]:
        record = self.record
        if record is None or self.cas is not None or self.why_not_unclean():
            return []
        election = UncleanElection(
            epoch=record.epoch + 1,
            broker_id=self.config.broker_id,
            store_id=self.store_id,
            time_ms=time_ms,
            log_end=self.end,
            lost=record.isr,
            reason=reason,
        )
        # Before the write is on its way: it may be carried out although no answer comes, and must then be known as this
        # start's.
        self.attempted = election.epoch
        return self._set(record.elected_unclean(election, self._unclean_set(record)))

    # Peers and time.

    def receive(self, envelope: Envelope, now_ms: int) -> list[Action]:
        """A message of a peer."""
        return self._guarded(lambda: self._receive(envelope, now_ms))

    def lost(self, broker_id: int, now_ms: int) -> list[Action]:
        """The link to a broker broke, as it does when its process ends. A leader counts it as silent now; it comes back
        as every copy does that has caught up. A follower that lost its leader waits for one sign of life in the record
        and not for several, and what it heard of it before does not count.
        """
        return self._guarded(lambda: self._lost(broker_id, now_ms))

    def _receive(self, envelope: Envelope, now_ms: int) -> list[Action]:
        record = self.followed
        if record is None:
            return []
        known = max(self.max_epoch, self.persisting, record.epoch)
        config = self.config
        fault = fault_of(envelope, cluster=config.cluster, own_id=config.broker_id, epoch=known, record=record)
        if fault:
            return [ClosePeer(envelope.sender, fault)]
        if self._is_over(envelope.epoch):
            # A refusal is never answered by a refusal, or two copies that are both behind would go on for ever.
            return [] if isinstance(envelope.body, Refusal) else [Send(envelope.sender, self._envelope(Refusal()))]
        # Followers may hear of an election before who won it, and ask at once; asked again 500 ms later, a planned
        # hand-over would take so long.
        if isinstance(envelope.body, EpochsRequest) and self.role not in LEADING:
            self.asked = {**self.asked, envelope.sender: envelope}
        if envelope.epoch > known:
            return self._overtaken(envelope)
        if envelope.epoch > self.max_epoch or self.persisting:
            return []  # the record tells of that epoch already, this replica enters it first
        return self._hear(envelope, now_ms)

    def _overtaken(self, envelope: Envelope) -> list[Action]:
        """A peer is in a higher epoch. Who leads it, the record tells; a leader stops at once (R3)."""
        # No epoch is synced on a peer's word: a broken peer that claims 2^60 would make every later, true epoch a lower
        # one (decision 47).
        if self.role not in LEADING:
            return [ReadRecord()]
        # To a leader that drains, a higher epoch is what it waited for, and it comes before StopServing ends its calls.
        handed = [HandedOver(envelope.sender, envelope.epoch)] if self.role is Role.DRAINING else []
        self._move(Role.FENCED)
        return [*handed, StopServing(f"broker {envelope.sender} is in epoch {envelope.epoch}"), ReadRecord()]

    def _hear(self, envelope: Envelope, now_ms: int) -> list[Action]:
        if envelope.sender == self.leader_id():
            self.leader_ms = now_ms
        match envelope.body:
            case EpochsRequest() as request:
                return self._on_request(envelope, request)
            case FollowerProgress() as progress:
                return self._on_progress(envelope, progress, now_ms)
            case EpochsReply() as reply if envelope.sender == self.leader_id():
                return self._on_epochs(reply)
            case Records() as records if envelope.sender == self.leader_id():
                return self._on_records(records)
            case Nomination(end) if envelope.sender == self.leader_id() and end == self.end:
                return self.stand() if self.role is Role.FETCHING else []
            case _:
                return []

    def tick(self, now_ms: int) -> list[Action]:
        """Time went by. Repeats what may have been lost, and does what is due."""
        return self._guarded(lambda: self._tick(now_ms))

    def _tick(self, now_ms: int) -> list[Action]:
        self._pass_time(now_ms)
        actions: list[Action] = []
        again = now_ms - self.retried_ms >= self.config.timing.retry_ms
        if again:
            self.retried_ms = now_ms
            actions += self._repeat()
        elif self.role in LEADING:
            actions += self._say_committed(repeat=False)
        # One change of the record at a time, renewals too: two that are unknown would make three sets count (R7).
        if self.cas is None:
            actions += self._lead_on(now_ms) if self.role in LEADING else self._stand_by(now_ms)
        if again and self.role is Role.DRAINING:
            actions += self._drain_tick(now_ms)
        return actions

    def _repeat(self) -> list[Action]:
        # The same proposal with the same token: carried out twice it is refused the second time, and the read tells
        # which.
        actions: list[Action] = [] if self.cas is None else [self.cas, ReadRecord()]
        match self.role:
            case Role.FETCHING:
                # While the writer works, its end makes the next report; asking now would bring what is on its way
                # already.
                idle = self.writing is None
                actions += [ReadRecord(), *self._report(wants=idle, again=idle)]
            case Role.TRUNCATING:
                actions += [ReadRecord(), *self._request_epochs()]
            case Role.FENCED:
                actions.append(ReadRecord())
            case Role.STARTING | Role.READY | Role.DRAINING:
                actions += [*self._feed(), *self._say_committed(repeat=True)]
            case _:
                pass
        return actions

    def _lead_on(self, now_ms: int) -> list[Action]:
        record = self.record
        changes = self._upkeep(now_ms)
        if changes or record is None:
            return changes
        # A leader that drains does not renew: its write would change the token under the nominee's compare-and-set.
        due = now_ms - self.changed_ms >= self.config.timing.renew_ms and self.role is not Role.DRAINING
        return self._set(record.renewed()) if due and self._is_heard(now_ms) else []

    def _stand_by(self, now_ms: int) -> list[Action]:
        timing, record = self.config.timing, self.record
        if self.role not in STANDING or record is None:
            return []
        if now_ms - self.read_ms > timing.blind_ms or self.read_ms < self.lost_ms:
            return []  # what is proposed now may be carried out when the record is back, before its leader renews it
        if record.leader in {NO_LEADER, self.config.broker_id}:
            return self.stand()  # no copy ever led, or this one did in an earlier start (R2): none is to be waited for
        # Any winner is safe (R1). The one with the longest log first, so that less is cut and fewer stand at once.
        quiet_ms = timing.suspect_ms + self.rank * timing.backoff_ms
        return self.stand() if now_ms - self._lived_ms() >= quiet_ms else []

    # Invariants.

    def _guarded(self, event: Callable[[], list[Action]]) -> list[Action]:
        if self.role is Role.CRASHED:
            return []
        try:
            actions = event()
            self.check()
        except (InvariantBroken, TableRefused) as error:
            return self._crash(error)
        return actions

    def _crash(self, error: Exception) -> list[Action]:
        if self.role is Role.CRASHED:
            return []
        self.role = Role.CRASHED
        return [StopServing(str(error)), Fence(error)]
