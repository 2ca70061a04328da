"""One mutant for each rule, and each part of one that can be wrong alone: the real core with it switched off.

Production code has no switches; each mutant replaces methods of one part of a replica, or lets the world keep what the
rule forbids. A model that does not kill all of them proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evenq_broker.core.replication.actions import Action
from evenq_broker.core.replication.copies import Copies
from evenq_broker.core.replication.election import Election
from evenq_broker.core.replication.following import Follower
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, Seen
from evenq_broker.core.replication.rules import LogView, OwnCopy, RecordView, Role

from replication_model.world import Rules


def without(part: type, **methods: Callable[..., object]) -> Rules:
    """Returns the world whose replicas have these methods in that part."""
    return Rules(parts={part: type(part.__name__, (part,), {"__slots__": (), **methods})})


def entered(self: OwnCopy, epoch: int) -> bool:
    self.max_epoch = epoch
    return OwnCopy.persisted(self, epoch)


def resumes(self: OwnCopy, record: GroupRecord) -> bool:
    own = record.leader == self.broker_id and record.epoch == self.max_epoch
    return OwnCopy.begins_epoch(self, record) or (own and self.role is Role.TRUNCATING and not self.persisting)


def end_of_broker(self: Copies, pair: Pair) -> int:
    ends = [end for known, end in self.acks.items() if known.broker_id == pair.broker_id]
    return Copies.end_of(self, pair) if pair == self.own.pair else max(ends, default=-1)


def admits_newcomers(self: Copies, pair: Pair) -> bool:
    record = self.group.record
    is_new = record is not None and bool(record.address_of(pair.broker_id))
    return is_new or Copies.is_admissible(self, pair)


def founds_in_no_epoch(self: RecordView, proposed: GroupRecord) -> list[Action]:
    if self.seen is None:
        proposed = replace(proposed, epoch=0, leader=NO_LEADER)
    return RecordView.compare_and_set(self, proposed)


def keeps_old_pairs(self: RecordView, proposed: GroupRecord) -> list[Action]:
    if self.record is not None and proposed.unclean != self.record.unclean:
        old = (pair for pair in self.record.isr if pair.broker_id != self.own.broker_id)
        proposed = replace(proposed, isr=tuple(sorted((*old, self.own.pair))))
    return RecordView.compare_and_set(self, proposed)


def takes_memory_for_the_record(self: RecordView, record: GroupRecord) -> bool:
    remembers = RecordView.remember(self, record)
    if remembers:
        self.seen = Seen(record, str(record.version))
    return remembers


MUTANTS = {
    # Any copy that was heard of becomes in sync.
    "R8 altogether": without(Copies, is_admissible=lambda _, __: True),
    # Lower epochs are entered, and not refused, in messages and in records that are read late.
    "R3 refuse lower epochs": without(
        OwnCopy,
        is_over=lambda _, __: False,
        begins_epoch=lambda self, record: record.epoch != self.known_epoch,
        persisted=entered,
    ),
    # A log is cut at what it knows to be committed, and takes what the leader has from there.
    "R4 cut at committed": without(LogView, cut_end=lambda self, _, their_end: min(self.hw, their_end)),
    "R10 store id": Rules(keeps_store_id=True),
    # A copy stands without being in sync.
    "R1 only from in sync": without(OwnCopy, may_stand=lambda _, __: True),
    # What is only written is confirmed.
    "R5 durable confirmations": without(LogView, confirmed_end=lambda self: self.end),
    # Only the old in-sync set counts, while a new one may already be in the record.
    "R6 union": without(RecordView, pending=lambda _: ()),
    # A process that was restarted leads on in the epoch of its last life.
    "R2 new epoch": Rules(
        parts={
            **without(OwnCopy, begins_epoch=resumes).parts,
            **without(Election, is_own_attempt=lambda self, record: record.leader == self.own.broker_id).parts,
        }
    ),
    # Any number of copies is enough.
    "R9 floor": without(RecordView, meets_floor=lambda _, size: size >= 1),
    # A follower whose log ends before this epoch is admitted.
    "R8 epoch start": without(Copies, reached_epoch=lambda _, __: True),
    "R3 synced epoch": Rules(forgets_epochs=True),
    # What any store of a broker confirmed counts for the broker. If replaced ones were forgotten, that would hide it.
    "R6 by broker, not by pair": without(Copies, end_of=end_of_broker, forget_replaced=lambda _, __: None),
    # What a leader sent ahead is written wherever it begins.
    "R21 only what is next": without(
        Follower, is_next=lambda _, __: True, last_epoch=lambda _, records: records.previous_epoch
    ),
    # What an earlier leader sent ahead stays, and what the next one sends is taken behind it. The epoch of the record
    # before would tell, so it is not looked at either.
    "R21 of this match of the logs": without(
        Follower, forget_queued=lambda _: None, last_epoch=lambda _, records: records.previous_epoch
    ),
}
"""Name of the rule that is switched off -> the world without it."""

MEMBER_MUTANTS = {
    # A copy that was added counts as soon as it is heard of.
    "R15 admission of who is added": without(Copies, is_admissible=admits_newcomers),
    # A copy goes, no matter which is left in sync.
    "R16 floor of a removal": without(Copies, keeps_floor=lambda _, __: True),
    # What a copy confirmed before it was removed still counts.
    "R17 only members count": without(RecordView, is_of_group=lambda _, __: True),
    # The minimum rises over what is in sync.
    "R18 minimum of what is in sync": without(Copies, may_need=lambda _, __: True),
}
"""The same of the rules about changes of the copies; `ChangingCopies` walks find them."""

FOUNDING_MUTANTS = {
    # A log that was written without copies passes for one of the group's.
    "R19 joins with its log": without(Election, is_of_others=lambda _, __: False),
    # The first record does not say in which epoch the founder's log is, so the group's first has its number (R2).
    "R19 epoch of the founder's log": without(RecordView, compare_and_set=founds_in_no_epoch),
}
"""The same of the founding of a group; `Founding` walks find them."""

UNCLEAN_MUTANTS = {
    # What is known to be committed is forgotten for every new leader, not only after an unclean election.
    "R20 cut below committed": without(Follower, may_lose_committed=lambda _: True),
    # Pairs that were in sync before an unclean election stay it, with what they have.
    "R20 old pairs count": without(RecordView, compare_and_set=keeps_old_pairs),
    # An attempt with the disk before, carried out late, passes for the one of this disk (R2).
    "R20 attempt of the old disk": without(
        Election,
        is_own_attempt=lambda self, record: record.leader == self.own.broker_id and record.epoch == self.attempted,
    ),
}
"""The same of unclean elections; `Unclean` walks find them."""

REMEMBERING_MUTANTS = {
    # What a start remembers passes for the record, so it stands, and changes who is in sync, on that ground.
    "R23 memory for the record": without(RecordView, remember=takes_memory_for_the_record),
}
"""The same of starts that cannot read the record; `Remembering` walks find them."""
