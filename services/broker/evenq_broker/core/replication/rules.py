"""State that all parts of a replica read: the own copy, the group record and the log, with the rules about them.

Problem: several processes keep copies of one log. Each of them may die, hang or lose its disk at any moment, and
messages may be late, lost or repeated. Still no acknowledged record may be lost, and no two copies may ever show
different records at one offset.

Idea: one group record that is compared and set names the leader, its epoch and the in-sync set. A record of the log is
committed when every pair (broker and store) of that set has confirmed it. So each of them may lead next, and there is
no quorum arithmetic. One compare-and-set begins an epoch or changes the set. While its outcome is not known, the old
and the proposed set both count (R7).

Invariants (I1 to I8 of the page below); `check` recomputes after every event, in production too, what one replica sees:

- `table.start` <= `durable` <= `end`, and `hw` <= `end`: what is committed is in the log (I1).
- `hw` never falls (`raise_hw`), except by an unclean election, which an operator orders (I5, R20).
- A leader is the one that the record names, is in sync, and its log has a record of its epoch (I3, I4, I7).
- A leader that serves has committed the first record of its epoch (R11).

Example: the set is {1, 2, 3} with a minimum of 2. Leader 1 in epoch 4 has synced up to 880 and written up to 900. Copy
2 confirmed 900 and copy 3 confirmed 700, so `hw` is min(880, 900, 700) = 700. Copy 3 is silent for 3 s, and the leader
proposes {1, 2}. Until the record shows the outcome, 3 still counts; then `hw` is min(880, 900) = 880. Copy 3 is
admitted again when it has confirmed 880, and the start of epoch 4, in epoch 4 (R8).

`Follower`, `Election`, `Copies` and `Leader` own the rest of the state, and `Replica` passes events to all of them. A
rule is a method of the part whose fields it is about, numbered as in `docs/internals/replication.md`, which names its
place, its test and its mutant; decisions 47, 55, 65, 79, 92. All values are immutable or replaced whole, so copies of
the parts are a copy of the state. Offsets are ends of the log, exclusive, in the owner's unit (bytes in the store).
Related work: PacificA (Lin et al., 2008) for commits by all copies of a set, Kafka's KIP-101 and KIP-279 for R4,
KIP-497 for R7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq_broker.core.replication.actions import Action, CompareAndSet
from evenq_broker.core.replication.config import Mode, ReplicationConfig
from evenq_broker.core.replication.epoch_table import EMPTY, EpochTable, common_end
from evenq_broker.core.replication.messages import Body, Envelope, Records
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, Seen

NOTHING = -1  # in place of an offset: none
NEVER = -1 << 62  # in place of a time, ms


class InvariantBroken(Exception):
    """Error for a broken invariant: a mistake in this code, or a faulty disk or peer. The process must end."""


class Role(StrEnum):
    """States of a replica; `docs/internals/replication.md` has the picture."""

    OFFLINE = "offline"
    TRUNCATING = "truncating"
    """Follower whose log is not matched with the leader's yet, or that knows no leader."""
    FETCHING = "fetching"
    ELECTED = "elected"
    """Won the election; the epoch and its first record are not written yet."""
    STARTING = "starting"
    """Leader whose epoch-start record is not committed yet: it answers no client."""
    READY = "ready"
    DRAINING = "draining"
    FENCED = "fenced"
    """Replica that saw a higher epoch, and has not synced it yet or does not know its leader."""
    CRASHED = "crashed"


LEADING = frozenset({Role.STARTING, Role.READY, Role.DRAINING})
STANDING = frozenset({Role.TRUNCATING, Role.FETCHING, Role.FENCED})  # roles that may stand for election

MOVES: Mapping[Role, frozenset[Role]] = {
    Role.OFFLINE: frozenset({Role.TRUNCATING}),
    Role.TRUNCATING: frozenset({Role.FETCHING, Role.FENCED, Role.ELECTED}),
    Role.FETCHING: frozenset({Role.TRUNCATING, Role.FENCED, Role.ELECTED}),
    Role.ELECTED: frozenset({Role.STARTING, Role.FENCED}),
    Role.STARTING: frozenset({Role.READY, Role.FENCED}),
    Role.READY: frozenset({Role.DRAINING, Role.FENCED}),
    Role.DRAINING: frozenset({Role.FENCED, Role.READY}),
    Role.FENCED: frozenset({Role.TRUNCATING, Role.ELECTED}),
    Role.CRASHED: frozenset(),
}
"""Moves that each role may make; each may also stay, or move to CRASHED."""


@dataclass(slots=True)
class OwnCopy:
    """This copy as the others see it: each message carries its pair, its start and its epoch."""

    config: ReplicationConfig
    pair: Pair
    """This broker and its store: with another disk it is another pair (R10)."""
    session: int
    """Drawn anew at each start of the process: identifies replies to an earlier one."""
    max_epoch: int
    """The highest synced epoch, the one that this replica acts in; never falls."""
    persisting: int = 0
    """A higher epoch on its way to disk; 0: none. Until it is synced this replica neither leads nor follows."""
    role: Role = Role.OFFLINE  # changes only as `MOVES` allows

    @property
    def broker_id(self) -> int:
        return self.pair.broker_id

    @property
    def leads(self) -> bool:
        return self.role in LEADING

    @property
    def known_epoch(self) -> int:
        """The highest epoch that this replica has entered, synced or not."""
        return max(self.max_epoch, self.persisting)

    def may_stand(self, record: GroupRecord) -> bool:
        """Returns True if this broker is in sync, with this very store (R1, R10)."""
        return record.store_of(self.broker_id) == self.pair.store_id

    def begins_epoch(self, record: GroupRecord) -> bool:
        """Returns True for a higher epoch: each is entered once, from a lower one (R2, R3)."""
        return record.epoch > self.known_epoch

    def is_over(self, epoch: int) -> bool:
        """Returns True for an epoch below the synced one: what comes from it is refused (R3)."""
        return epoch < self.known_epoch

    def move(self, role: Role) -> None:
        if role is not self.role and role not in MOVES[self.role]:
            raise InvariantBroken(f"a replica cannot go from {self.role} to {role} (epoch {self.max_epoch})")
        self.role = role

    def enter(self, epoch: int, role: Role) -> None:
        # The role changes before the epoch is on disk, so that nothing of a lower one is done meanwhile. Acting in the
        # new one waits for the disk (R3).
        self.move(role)
        self.persisting = epoch

    def persisted(self, epoch: int) -> bool:
        """Acts in the epoch that was synced. Returns False if a higher one is on its way."""
        self.max_epoch = max(self.max_epoch, epoch)
        if epoch != self.persisting:
            return False
        self.persisting = 0
        return True

    def envelope(self, body: Body) -> Envelope:
        return Envelope(self.config.cluster, *self.pair, self.session, self.max_epoch, body)


@dataclass(slots=True)
class RecordView:
    """The group record as this copy knows it: the newest one read, and the write whose outcome is not known."""

    own: OwnCopy
    seen: Seen | None = None  # the newest record known; its version only grows
    remembered: GroupRecord | None = None
    """Of an earlier start, until this one has read the record: names the leader to follow, no more (R23)."""
    cas: CompareAndSet | None = None  # the one compare-and-set whose outcome is not known (R7)
    number: int = 0
    """Of the last compare-and-set or request for epochs; only grows."""
    read_ms: int = 0  # when the record was last read, or seen to change
    changed_ms: int = 0
    """When the record was last seen to change; at most `read_ms`."""
    again_ms: int = NEVER
    """When the record, unchanged, could be read again after it could not; `NEVER`: it has changed or was readable."""

    @property
    def record(self) -> GroupRecord | None:
        return None if self.seen is None else self.seen.record

    @property
    def followed(self) -> GroupRecord | None:
        """The record by which this copy follows: the newest known, or the remembered one until one was read (R23)."""
        return self.remembered if self.seen is None else self.seen.record

    @property
    def isr(self) -> tuple[Pair, ...]:
        """The in-sync set; without a record it is empty."""
        return () if self.seen is None else self.seen.record.isr

    def begin(self, now_ms: int) -> None:
        self.read_ms = self.changed_ms = now_ms

    def observed(self, seen: Seen, now_ms: int) -> bool:
        """Takes in a record that was read, or came by a watch. Returns False if it is not newer than the known one."""
        known, record = self.record, seen.record
        # A watch and a read may overtake each other; the version, which every write raises, shows which is older.
        if known is not None and record.version <= known.version:
            if record.version == known.version:
                self._read_again(now_ms)
            return False
        self.seen, self.remembered, self.again_ms = seen, None, NEVER
        self.changed_ms = self.read_ms = now_ms
        cas = self.cas
        if cas is not None and (cas.expected is None or record.version > cas.expected.record.version):
            self.cas = None  # R7: its outcome is known now, and it cannot happen later
        return True

    def _read_again(self, now_ms: int) -> None:
        """Notes that the record was read and has not changed. While it could not be read, perhaps its leader could not
        renew it either: up to now, messages on the link count as signs of life. From now on only renewals count,
        however rare the reads, so a leader that alone has lost the way to the record is replaced.
        """
        blind_ms = now_ms - self.read_ms - self.own.config.timing.blind_ms
        self.read_ms = now_ms
        if blind_ms > 0:
            self.again_ms = now_ms if self.again_ms == NEVER else self.again_ms + blind_ms

    def unchanged_ms(self) -> int:
        """Returns for how long the record was seen unchanged; grows only while it can be read."""
        return max(0, self.read_ms - max(self.changed_ms, self.again_ms))

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def compare_and_set(self, proposed: GroupRecord) -> list[Action]:
        """Writes a record. The caller does that only while `cas` is None."""
        self.cas = CompareAndSet(self.next_number(), self.seen, proposed)
        return [self.cas]

    def leader_of(self, record: GroupRecord | None) -> int:
        """Returns the leader by this record, of the epoch that this copy acts in; `NO_LEADER`: unknown."""
        own = self.own
        if record is None or record.epoch != own.max_epoch:
            return NO_LEADER
        if record.leader == own.broker_id and not own.leads:
            return NO_LEADER  # of an earlier start of this process
        return record.leader

    def leader_id(self) -> int:
        """Returns the broker id of the leader, as far as known; `NO_LEADER`: unknown."""
        return NO_LEADER if self.own.role in {Role.FENCED, Role.ELECTED} else self.leader_of(self.followed)

    def remember(self, record: GroupRecord) -> bool:
        """Takes in a record of an earlier start. Returns False if one was read, or this one is not of the synced epoch
        and led by another copy (R23). An epoch has one leader for ever, so this is still true; who leads now, only the
        record shows.
        """
        waits = self.seen is None and self.own.role is Role.TRUNCATING and self.own.broker_id in record.members
        if not waits or self.leader_of(record) == NO_LEADER:
            return False
        self.remembered = record
        return True

    # Members and the in-sync set.

    def is_of_group(self, broker_id: int) -> bool:
        """Returns True for members: others do not count, whatever they confirmed (R17). Without a record: for all."""
        record = self.followed
        return record is None or broker_id in record.members

    def pending(self) -> tuple[Pair, ...]:
        """Returns an in-sync set that was proposed, until the outcome is KNOWN (R7)."""
        return () if self.cas is None else self.cas.proposed.isr

    def commit_pairs(self) -> tuple[Pair, ...]:
        """Returns the pairs that must have a record before it is committed (R6)."""
        isr, pending = self.isr, self.pending()
        return isr if pending == isr or not pending else (*isr, *pending)

    def meets_floor(self, size: int) -> bool:
        """Returns True for enough copies to commit, and to stay in the record (R9)."""
        record = self.record
        return record is not None and size >= record.min_isr

    def unclean_since(self, epoch: int) -> int:
        """Returns the newest unclean election after `epoch`; 0: every leader since had all that was committed (R20)."""
        record = self.followed
        newest = record.unclean[-1].epoch if record is not None and record.unclean else 0
        return newest if newest > epoch else 0

    def stands_unclean(self) -> bool:
        """Returns True if an unclean election of this copy was proposed, and its outcome is not known (R20)."""
        cas = self.cas
        return cas is not None and cas.expected is not None and cas.proposed.unclean != cas.expected.record.unclean


@dataclass(slots=True)
class LogView:
    """The log of this copy: epochs and ends, but no records. Moved by what the log's writer did."""

    mode: Mode
    table: EpochTable = EMPTY
    """Epochs of the log; its last entry is the epoch of the last record."""
    end: int = 0  # end of what is written
    durable: int = 0  # end of what is synced, at most `end`
    hw: int = 0
    """End of what is known to be committed, at most `end`; falls only by an unclean election (I1, I5)."""
    hw_epoch: int = 0
    """The last epoch whose leader's log was seen to have all below `hw`."""

    @property
    def is_empty(self) -> bool:
        return self.end == self.table.start

    def cut_end(self, theirs: EpochTable, their_end: int) -> int | None:
        """Returns where to cut, by epochs and never by what is known to be committed; None: nothing is shared (R4)."""
        return common_end(self.table, self.end, theirs, their_end)

    def confirmed_end(self) -> int:
        """Returns the end of what this replica may confirm (R5)."""
        return self.durable if self.mode is Mode.REPL_SYNC else self.end

    def recovered(self, table: EpochTable, end: int) -> None:
        self.table, self.end, self.durable = table, end, end

    def appended(self, epoch: int, end: int, *, begins: bool) -> None:
        """`begins`: with its first record, this start of the process begins the epoch."""
        if end <= self.end:
            raise InvariantBroken(f"the writer appended to {end} a log that ended at {self.end}")
        # Two starts of one process that lead the same epoch would write different bytes at one offset (I4).
        if begins and epoch == self.table.last_epoch:
            raise InvariantBroken(f"R2: epoch {epoch} begins, but the log has records of it already")
        self.table, self.end = self.table.appended(epoch, self.end), end

    def copied(self, records: Records, end: int, *, synced: bool) -> None:
        table = self.table
        # A log that began at the leader's snapshot lacks the record before; the next match needs its epoch, which the
        # leader named (R4).
        if not table.entries and records.previous_epoch:
            table = table.appended(records.previous_epoch, records.start)
        for entry in records.epochs:
            # Perhaps not all records were written: an epoch whose first record is missing is not in this log.
            if entry.offset < end:
                table = table.appended(entry.epoch, entry.offset)
        self.table, self.end = table, end
        if synced:
            self.durable = end

    def truncated(self, end: int) -> None:
        if not self.table.start <= end <= self.end:
            raise InvariantBroken(f"the writer cut at {end} a log from {self.table.start} to {self.end}")
        self.table, self.end, self.durable = self.table.cut(end), end, min(self.durable, end)

    def emptied(self, start: int) -> None:
        self.table, self.end, self.durable = EpochTable(start), start, start

    def synced(self, end: int) -> bool:
        """Returns True if more is synced than before."""
        if end > self.end:
            raise InvariantBroken(f"synced {end} of a log that ends at {self.end}")
        before, self.durable = self.durable, max(self.durable, end)
        return end > before

    def trimmed(self, start: int) -> None:
        if start > self.hw:
            raise InvariantBroken(f"retention removed up to {start}, but only {self.hw} is committed")
        self.table = self.table.begun(start)

    def raise_hw(self, end: int, epoch: int) -> None:
        if end < self.hw:
            raise InvariantBroken(f"I5: committed {self.hw}, now {end}")
        self.hw, self.hw_epoch = end, epoch

    def elected(self, epoch: int) -> None:
        """Begins an epoch with what is confirmed here. A copy in sync has confirmed what it knows to be committed; one
        that was elected unclean may not have (R20).
        """
        self.hw, self.hw_epoch = min(self.hw, self.confirmed_end()), epoch

    def matched(self, cut: int, epoch: int, *, may_lose: bool) -> None:
        """Checks what is committed against `cut`, the end of what the leader of this epoch has of this log (I1). It
        must have all that is committed, unless it was elected in or after an unclean election (`may_lose`, R20). Then
        nothing counts as committed until it reports that, as after a start. Even what both have may be unsynced at the
        leader, which may come back without it.
        """
        if may_lose:
            self.hw = 0
        elif cut < self.hw:
            raise InvariantBroken(f"I1: committed {self.hw}, but the leader of epoch {epoch} has only {cut}")
        self.hw_epoch = epoch

    def check(self) -> None:
        if not self.table.start <= self.durable <= self.end:
            raise InvariantBroken(f"synced {self.durable} of a log from {self.table.start} to {self.end}")
        if self.hw > self.end:
            raise InvariantBroken(f"I1: committed {self.hw}, but the log ends at {self.end}")
