"""Election: every way in which a copy that does not lead proposes an epoch of its own.

It stands when the leader has shown no sign of life for too long, when it is nominated, or on an operator's command
(R1, R20); the founder of a group writes the first record (R19). One compare-and-set decides, and only an attempt of
this start of the process may lead (R2). Times decide when to try, never what is safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq_broker.core.replication.actions import Action, RecordTooOld
from evenq_broker.core.replication.following import Follower
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, UncleanElection, first_record, restored_record
from evenq_broker.core.replication.rules import NEVER, STANDING, LogView, OwnCopy, RecordView, Role


@dataclass(slots=True)
class Election:
    own: OwnCopy
    group: RecordView
    log: LogView
    follower: Follower
    attempted: int = 0
    """Epoch that this start of the process stood for last; set before the write is on its way (R2)."""
    sign_ms: int = 0
    """Begin of the wait for a sign of life in the record; earlier, if the link to the leader broke."""
    leader_ms: int = NEVER
    """When the leader's last message came over the present link; `NEVER`: none came."""
    lost_ms: int = NEVER  # when the link to the leader last broke

    def stand(self) -> list[Action]:
        """Stands for leader of the next epoch (R1). Returns nothing if this replica may not."""
        record = self.group.record
        if record is None or self.own.role not in STANDING or self.own.persisting:
            return []
        if not self.own.may_stand(record) or self.own.is_over(record.epoch):
            return []
        return self._propose(record.elected(self.own.broker_id))

    def _propose(self, proposed: GroupRecord) -> list[Action]:
        # Set before the answer: the write may happen without one, and only an own attempt may lead then (R2).
        self.attempted = proposed.epoch
        return self.group.compare_and_set(proposed)

    def is_own_attempt(self, record: GroupRecord) -> bool:
        """Returns True if the record makes this start of the process leader. A leadership belongs to the start that
        stood for it, and to its store. An attempt with the previous disk may be carried out late, while one with this
        disk is on its way (R2, R20).
        """
        return record.leader == self.own.broker_id and record.epoch == self.attempted and self.own.may_stand(record)

    def stand_by(self, now_ms: int) -> list[Action]:
        """Stands if the leader was silent for too long."""
        timing, record = self.own.config.timing, self.group.record
        if self.own.role not in STANDING or record is None:
            return []
        if now_ms - self.group.read_ms > timing.blind_ms or self.group.read_ms < self.lost_ms:
            return []  # what is proposed now may be carried out when the record is back, before its leader renews it
        if record.leader in {NO_LEADER, self.own.broker_id}:
            return self.stand()  # no leader yet, or this copy in an earlier start (R2): there is none to wait for
        # Any winner is safe (R1). The longest log stands first, so that less is cut and fewer stand at the same time.
        quiet_ms = timing.suspect_ms + self.follower.rank * timing.backoff_ms
        return self.stand() if now_ms - self._lived_ms() >= quiet_ms else []

    # Signs of life.

    def _lived_ms(self) -> int:
        """Returns when the leader last showed life: in the record, or to this copy while the record was away."""
        return max(self.sign_ms, min(self.group.again_ms, self.leader_ms))

    def begin_wait(self, now_ms: int) -> None:
        self.sign_ms = now_ms

    def heard(self, now_ms: int) -> None:
        self.leader_ms = now_ms

    def lost_leader(self, now_ms: int) -> None:
        timing = self.own.config.timing
        # One renewal may still be on its way; a leader that lives and lost only this link renews in this time.
        patience_ms = min(timing.suspect_ms, timing.renew_ms + timing.renew_ms // 2)
        self.sign_ms = min(self._lived_ms(), now_ms - timing.suspect_ms + patience_ms)
        self.leader_ms, self.lost_ms = NEVER, now_ms

    def paused(self, now_ms: int, paused_ms: int) -> None:
        """Moves times by a pause of this process: the leader was not silent meanwhile."""
        self.sign_ms = min(now_ms, self.sign_ms + paused_ms)
        if self.leader_ms != NEVER:
            self.leader_ms = min(now_ms, self.leader_ms + paused_ms)

    # Without a leader: the founding of a group, and an operator's command.

    def found(self) -> list[Action]:
        own, config, group = self.own, self.own.config, self.group
        asleep = own.role in {Role.OFFLINE, Role.CRASHED}
        if asleep or not config.founds or group.seen is not None or group.cas is not None:
            return []
        log_epoch, restored = self.log.table.last_epoch, config.restored_epoch
        # A log that came from a backup founds a group once: that raises its epoch. The record names this copy as leader
        # immediately.
        if restored and max(own.known_epoch, log_epoch) <= restored:
            return self._propose(
                restored_record(own.pair, members=config.members, min_isr=config.min_isr, epoch=restored + 1)
            )
        if own.max_epoch or (self.log.end and not config.adopts):
            return [RecordTooOld(0, own.max_epoch)]  # it was lost: an operator must say which log is the newest (D12)
        alone = not self.log.is_empty  # no other copy has these records
        members, min_isr = ((own.broker_id,), 1) if alone else (config.members, config.min_isr)
        return group.compare_and_set(first_record(own.pair, members=members, min_isr=min_isr, epoch=log_epoch))

    def is_of_others(self, record: GroupRecord) -> bool:
        """Returns True for a log that was written without copies and did not found the record's group. Its epochs have
        the same numbers as those of the group, and other bytes (R19).
        """
        never_acted = self.own.config.adopts and not self.own.known_epoch
        return never_acted and not self.log.is_empty and self.own.pair not in record.isr

    def stand_unclean(self, reason: str, time_ms: int) -> list[Action]:
        record, own = self.group.record, self.own.pair
        if record is None or self.group.cas is not None or self.why_not_unclean():
            return []
        election = UncleanElection(
            epoch=record.epoch + 1,
            broker_id=own.broker_id,
            store_id=own.store_id,
            time_ms=time_ms,
            log_end=self.log.end,
            lost=record.isr,
            reason=reason,
        )
        return self._propose(record.elected_unclean(election))

    def why_not_unclean(self) -> str:
        """Returns why this copy may not lead now without being in sync, as a sentence; empty: it may (R20)."""
        record, own, follower = self.group.record, self.own, self.follower
        copy = f"copy {own.broker_id}"
        if record is None:
            return f"{copy} has not read the group record"
        if own.broker_id not in record.members:
            return f"{copy} is not a copy of the group, whose copies are {', '.join(map(str, record.members))}"
        if own.may_stand(record):
            return f"{copy} has all that is committed, and leads without this as soon as no other copy does"
        if own.is_over(record.epoch):
            return (
                f"the group record is at epoch {record.epoch}, and {copy} has acted in epoch {own.known_epoch}: "
                "the record was lost or put back from a backup"
            )
        # While the writer cuts (a request below 0), it is not known how much of the log is left to vouch for.
        if own.role not in STANDING or own.persisting or follower.request < 0:
            return f"{copy} is busy ({own.role}); try again"
        if follower.writing is not None or self.log.durable < self.log.end:
            return f"{copy} still writes what it copied last; try again"
        return ""
