"""One mutant for each rule, and each part of one that can be wrong alone: the real core with it switched off, by a
subclass.

Production code has no switches; each mutant replaces one predicate of `core/replication/rules.py`, or lets the world
keep what the rule forbids. A model that does not kill all of them proves nothing.
"""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.messages import Records
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role

from replication_model.world import Rules

__all__ = ["FOUNDING_MUTANTS", "MEMBER_MUTANTS", "MUTANTS", "REMEMBERING_MUTANTS", "UNCLEAN_MUTANTS"]


class _NoAdmission(Replica):
    """R8 altogether: any copy that was heard of becomes in sync."""

    __slots__ = ()

    def _is_admissible(self, pair: Pair) -> bool:
        return True


class _HearsOldEpochs(Replica):
    """R3: lower epochs are not refused, in messages and in records that are read late."""

    __slots__ = ()

    def _is_over(self, epoch: int) -> bool:
        return False

    def _begins_epoch(self, record: GroupRecord) -> bool:
        return record.epoch != max(self.max_epoch, self.persisting)

    def _persisted(self, epoch: int) -> list:  # type: ignore[type-arg]
        self.max_epoch = epoch
        return super()._persisted(epoch)


class _CutsAtCommitted(Replica):
    """R4: cuts at what it knows to be committed, then takes what the leader has from there."""

    __slots__ = ()

    def _cut_end(self, theirs: EpochTable, their_end: int) -> int | None:
        return min(self.hw, their_end)


class _AnybodyStands(Replica):
    """R1: stands without being in sync."""

    __slots__ = ()

    def _may_stand(self, record: GroupRecord) -> bool:
        return True


class _ConfirmsUnsynced(Replica):
    """R5: confirms what is only written."""

    __slots__ = ()

    def _confirmed_end(self) -> int:
        return self.end


class _ForgetsProposal(Replica):
    """R6, R7: counts the old in-sync set only, while a new one may already be in the record."""

    __slots__ = ()

    def _pending(self) -> tuple[Pair, ...]:
        return ()


class _ResumesEpoch(Replica):
    """R2: a process that was restarted leads on in the epoch of its last life."""

    __slots__ = ()

    def _begins_epoch(self, record: GroupRecord) -> bool:
        own = record.leader == self.config.broker_id and record.epoch == self.max_epoch
        return super()._begins_epoch(record) or (own and self.role is Role.TRUNCATING and not self.persisting)

    def _is_own_attempt(self, record: GroupRecord) -> bool:
        return record.leader == self.config.broker_id


class _NoFloor(Replica):
    """R9: any number of copies is enough."""

    __slots__ = ()

    def _meets_floor(self, size: int) -> bool:
        return size >= 1


class _NoEpochCheck(Replica):
    """R8: a follower whose log ends before this epoch is admitted."""

    __slots__ = ()

    def _reached_epoch(self, confirmed: int) -> bool:
        return True


class _CountsBrokers(Replica):
    """R6: what any store of a broker confirmed counts for the broker."""

    __slots__ = ()

    def _end_of(self, pair: Pair) -> int:
        ends = [end for known, end in self.acks.items() if known.broker_id == pair.broker_id]
        return super()._end_of(pair) if pair == self.own_pair else max(ends, default=-1)

    def _forget_replaced(self, before: tuple[Pair, ...]) -> None:
        """A broker's word counts whatever disk it had; without this the other rule would hide the mutant."""


class _TakesAnything(Replica):
    """R21: what a leader sent ahead is written wherever it begins."""

    __slots__ = ()

    def _is_next(self, records: Records) -> bool:
        return True

    def _last_epoch(self, records: Records) -> int:
        return records.previous_epoch


class _KeepsQueued(Replica):
    """R21: what an earlier leader sent ahead stays, and what the next one sends is taken behind it. The epoch of the
    record before would tell, so it is not looked at either.
    """

    __slots__ = ()

    def _last_epoch(self, records: Records) -> int:
        return records.previous_epoch

    def _forget_queued(self) -> None:
        pass


class _AdmitsNewcomers(Replica):
    """R15: a copy that was added counts as soon as it is heard of."""

    __slots__ = ()

    def _is_admissible(self, pair: Pair) -> bool:
        record = self.record
        is_new = record is not None and bool(record.address_of(pair.broker_id))
        return is_new or super()._is_admissible(pair)


class _RemovesBelowFloor(Replica):
    """R16: a copy goes, no matter which is left in sync."""

    __slots__ = ()

    def _keeps_floor(self, rest: tuple[Pair, ...]) -> bool:
        return True


class _RemembersStrangers(Replica):
    """R17: what a copy confirmed before it was removed still counts."""

    __slots__ = ()

    def _is_of_group(self, broker_id: int) -> bool:
        return True


class _JoinsWithItsLog(Replica):
    """R19: a log that was written without copies passes for one of the group's."""

    __slots__ = ()

    def _is_of_others(self, record: GroupRecord) -> bool:
        return False


class _FoundsInNoEpoch(Replica):
    """R19, R2: the first record does not say in which epoch the founder's log is, so the group's first has its number."""

    __slots__ = ()

    def _set(self, proposed: GroupRecord) -> list:  # type: ignore[type-arg]
        if self.seen is None:
            proposed = replace(proposed, epoch=0, leader=NO_LEADER)
        return super()._set(proposed)


class _NeedsMoreThanThereAre(Replica):
    """R18: the minimum rises over what is in sync."""

    __slots__ = ()

    def _may_need(self, copies: int) -> bool:
        return True


class _CutsCommitted(Replica):
    """R20: forgets what it knows to be committed for every new leader, not only after an unclean election."""

    __slots__ = ()

    def _may_lose_committed(self) -> bool:
        return True


class _OldPairsCount(Replica):
    """R20: who was in sync before an unclean election stays it, with what it has."""

    __slots__ = ()

    def _unclean_set(self, record: GroupRecord) -> tuple[Pair, ...]:
        return (*(pair for pair in record.isr if pair.broker_id != self.config.broker_id), self.own_pair)


class _LeadsForItsOldDisk(Replica):
    """R20, R2: an attempt with the disk before, carried out late, passes for the one of this disk."""

    __slots__ = ()

    def _is_own_attempt(self, record: GroupRecord) -> bool:
        return record.leader == self.config.broker_id and record.epoch == self.attempted


class _TakesMemoryForTheRecord(Replica):
    """R23: what a start remembers passes for the record, so it stands, and changes who is in sync, on that ground."""

    __slots__ = ()

    def _unreadable(self, remembered: GroupRecord) -> list:  # type: ignore[type-arg]
        if not self._may_follow_remembered(remembered):
            return []
        self.seen = Seen(remembered, str(remembered.version))
        return self._request_epochs()


MUTANTS = {
    "R8 altogether": Rules(_NoAdmission),
    "R3 refuse lower epochs": Rules(_HearsOldEpochs),
    "R4 cut at committed": Rules(_CutsAtCommitted),
    "R10 store id": Rules(keeps_store_id=True),
    "R1 only from in sync": Rules(_AnybodyStands),
    "R5 durable confirmations": Rules(_ConfirmsUnsynced),
    "R6 union": Rules(_ForgetsProposal),
    "R2 new epoch": Rules(_ResumesEpoch),
    "R9 floor": Rules(_NoFloor),
    "R8 epoch start": Rules(_NoEpochCheck),
    "R3 synced epoch": Rules(forgets_epochs=True),
    "R6 by broker, not by pair": Rules(_CountsBrokers),
    "R21 only what is next": Rules(_TakesAnything),
    "R21 of this match of the logs": Rules(_KeepsQueued),
}
"""Name of the rule that is switched off -> the world without it."""

MEMBER_MUTANTS = {
    "R15 admission of who is added": Rules(_AdmitsNewcomers),
    "R16 floor of a removal": Rules(_RemovesBelowFloor),
    "R17 only members count": Rules(_RemembersStrangers),
    "R18 minimum of what is in sync": Rules(_NeedsMoreThanThereAre),
}
"""The same of the rules about changes of the copies; `ChangingCopies` walks find them."""

FOUNDING_MUTANTS = {
    "R19 joins with its log": Rules(_JoinsWithItsLog),
    "R19 epoch of the founder's log": Rules(_FoundsInNoEpoch),
}
"""The same of the founding of a group; `Founding` walks find them."""

UNCLEAN_MUTANTS = {
    "R20 cut below committed": Rules(_CutsCommitted),
    "R20 old pairs count": Rules(_OldPairsCount),
    "R20 attempt of the old disk": Rules(_LeadsForItsOldDisk),
}
"""The same of unclean elections; `Unclean` walks find them."""

REMEMBERING_MUTANTS = {"R23 memory for the record": Rules(_TakesMemoryForTheRecord)}
"""The same of starts that cannot read the record; `Remembering` walks find them."""
