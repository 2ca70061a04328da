"""The state of one replica, and one predicate for each rule of the protocol, so that each rule has one place.

Base of `Follower`, `Leader` and `Replica`. Rules are numbered as in `docs/internals/replication.md`, which also names
the test and the mutant of each. `check` recomputes what must always hold; it runs after every event, in production
too. All values are immutable or replaced whole, so a copy of the object is a copy of the state. Offsets are ends of
the log in whatever unit the owner counts (bytes in the store), exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from evenq_broker.core.replication.actions import CompareAndSet
from evenq_broker.core.replication.config import Mode, ReplicationConfig
from evenq_broker.core.replication.epoch_table import EMPTY, EpochTable, common_end
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_broker.core.replication.messages import Body, Envelope, Records
from evenq_broker.core.replication.record import MEMBERS_MAX, NO_LEADER, GroupRecord, Pair, Seen, address_fault
from evenq_broker.core.replication.windows import Window

__all__ = ["LEADING", "InvariantBroken", "Role", "Rules"]

NOTHING = -1
"""In place of an offset: none."""
NEVER = -1 << 62
"""In place of a time, ms."""


class InvariantBroken(Exception):
    """What must always hold does not: a mistake in this code, or a disk or peer that lies. The process must end."""


class Role(StrEnum):
    """States of a replica; `docs/internals/replication.md` has the picture."""

    OFFLINE = "offline"
    TRUNCATING = "truncating"
    """Follower whose log was not matched with the leader's yet, or that knows no leader."""
    FETCHING = "fetching"
    ELECTED = "elected"
    """Won the election; the epoch and its first record are not written yet."""
    STARTING = "starting"
    """Leader whose epoch-start record is not committed yet: answers no client."""
    READY = "ready"
    DRAINING = "draining"
    FENCED = "fenced"
    """Saw a higher epoch, and has not synced it yet or does not know its leader."""
    CRASHED = "crashed"


LEADING = frozenset({Role.STARTING, Role.READY, Role.DRAINING})
STANDING = frozenset({Role.TRUNCATING, Role.FETCHING, Role.FENCED})
"""May stand for election."""

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
"""Every role may also move to CRASHED, and stay what it is."""


class Rules:
    """See the module. Attributes are for reading; only events change them."""

    __slots__ = (
        "acks", "again_ms", "asked", "attempted", "calm_ms", "cas", "caught_up", "changed_ms", "config", "drain_ms",
        "drain_since_ms", "durable", "end", "epoch_start_end", "gap_at", "has_room", "heard", "hw", "hw_epoch",
        "leader_ms", "lost_ms", "max_epoch", "nominated", "number", "own_pair", "persisting", "queued", "rank",
        "read_ms", "remembered", "reported", "request", "retried_ms", "role", "roomy", "seen", "session", "sign_ms",
        "silent", "store_id", "successor", "table", "ticked_ms", "windows", "writing",
    )  # fmt: skip

    queued: tuple[Records, ...]
    """Of a follower: what came behind the records that it writes, in order and without a gap; only while it fetches."""
    reported: int
    """Of a follower: where its log ended when it said so last."""
    gap_at: int
    """Of a follower: where records are missing that were asked for again already."""
    read_ms: int
    """When the record was last read, or seen to change."""
    again_ms: int
    """Since when the record can be read again, if it could not be, and has not changed; else `NEVER`."""
    leader_ms: int
    """Of a follower: when a message of the leader last came, since their link broke last; `NEVER`: none did."""
    lost_ms: int
    """Of a follower: when the link to the leader last broke."""
    sign_ms: int
    """Of a follower: its wait for a sign of life in the record began then; earlier, if the link to the leader broke."""
    ticked_ms: int
    """When the owner last told what time it is."""

    def __init__(  # noqa: PLR0915 - one line for each part of the state
        self, config: ReplicationConfig, *, store_id: str, epoch_seen: int, session: int
    ) -> None:
        self.config = config
        self.store_id = store_id
        self.own_pair = Pair(config.broker_id, store_id)
        self.session = session
        self.role = Role.OFFLINE
        self.max_epoch = epoch_seen
        """The highest epoch that was synced; the one this replica acts in."""
        self.persisting = 0
        """An epoch on its way to disk; 0: none."""
        self.seen: Seen | None = None
        """The newest record known."""
        self.remembered: GroupRecord | None = None
        """Of an earlier start, while this one could not read the record: whom to follow, and nothing else (R23)."""
        self.read_ms = self.sign_ms = self.ticked_ms = 0
        self.again_ms = self.leader_ms = self.lost_ms = NEVER
        self.changed_ms = self.retried_ms = 0
        """When the record was last seen to change, and what may have been lost was last repeated."""
        self.table: EpochTable = EMPTY
        self.end = 0
        """End of what is written."""
        self.durable = 0
        """End of what is synced."""
        self.hw = 0
        """End of what is known to be committed."""
        self.hw_epoch = 0
        """The last epoch whose leader's log was seen to have it."""
        self.attempted = 0
        """Epoch that this start of the process stood for last."""
        self.number = 0
        """Of the last compare-and-set."""
        self.cas: CompareAndSet | None = None
        """The compare-and-set whose answer is not known (R7)."""
        # Follower.
        self.request = 0
        """Number of the request for epochs; counts up."""
        self.writing: Records | None = None
        """What the writer copies just now."""
        self.queued, self.gap_at = (), NOTHING
        self.rank = self.reported = 0
        self.has_room = False
        """Its disk has room for messages, as the owner said last."""
        # Leader.
        self.asked: Mapping[int, Envelope] = {}
        """Broker id -> its last request for epochs that came before this replica led; answered when it does."""
        self.acks: Mapping[Pair, int] = {}
        """What each pair confirmed in this epoch."""
        self.heard: Mapping[int, int] = {}
        """Broker id -> when it was last heard of, ms."""
        self.caught_up: Mapping[Pair, tuple[int, int]] = {}
        """Pair -> (an end of the log, when the pair was last seen to have reached such an end, ms)."""
        self.silent: frozenset[Pair] = frozenset()
        """Pairs that do not keep up, as of the last look; at the minimum they stay in the in-sync set (R9)."""
        self.windows: Mapping[int, Window] = {}
        """Broker that takes records -> what it was sent."""
        self.roomy: frozenset[Pair] = frozenset()
        """Pairs that say that their disks have room for messages."""
        self.calm_ms = NEVER
        """When its term began, or its last drain."""
        self.epoch_start_end = NOTHING
        """End of the own epoch-start record."""
        self.drain_since_ms = NOTHING
        self.drain_ms = config.timing.drain_ms
        """Longest wait of this drain for a successor."""
        self.successor = NOTHING
        """Who alone may take over from this drain, a broker id; `NOTHING`: the best one."""
        self.nominated: frozenset[int] = frozenset()

    # What readers and senders may ask.

    @property
    def leads(self) -> bool:
        return self.role in LEADING

    @property
    def record(self) -> GroupRecord | None:
        """The newest record known."""
        return None if self.seen is None else self.seen.record

    @property
    def followed(self) -> GroupRecord | None:
        """What says whom this copy follows: the newest record known, or until one was read what it remembers (R23)."""
        return self.remembered if self.seen is None else self.seen.record

    def may_append(self) -> bool:
        """True if a client's record may be appended now (R9, R11, R13). Else refuse it before anything is written: of
        the copies in sync too few keep up, so it would not be committed.
        """
        return self.role is Role.READY and self._meets_floor(self.copies())

    def copies(self) -> int:
        """How many copies in sync keep up, this one too."""
        return sum(1 for pair in self._view() if pair == self.own_pair or pair not in self.silent)

    def visible_end(self) -> int:
        """Readers see what is below; `NOTHING` (-1): they must be answered that this is not the leader (R11)."""
        return self.hw if self._may_show() else NOTHING

    def leader_id(self) -> int:
        """Broker id of the leader, as far as known; `NO_LEADER`: unknown."""
        record = self.followed
        if record is None or record.epoch != self.max_epoch or self.role in {Role.FENCED, Role.ELECTED}:
            return NO_LEADER
        if record.leader == self.config.broker_id and self.role not in LEADING:
            return NO_LEADER  # of an earlier start of this process
        return record.leader

    # The rules.

    def _may_stand(self, record: GroupRecord) -> bool:
        """R1, R10: only who is in sync, with this very store."""
        return record.store_of(self.config.broker_id) == self.store_id

    def _begins_epoch(self, record: GroupRecord) -> bool:
        """R2, R3: an epoch is entered once, from a lower one."""
        return record.epoch > max(self.max_epoch, self.persisting)

    def _is_own_attempt(self, record: GroupRecord) -> bool:
        """R2: a leadership belongs to the start of the process that stood for it, never to a later one; and to its
        store: an attempt with the disk before may be carried out late, while one of this disk is on its way (R20).
        """
        return record.leader == self.config.broker_id and record.epoch == self.attempted and self._may_stand(record)

    def _is_over(self, epoch: int) -> bool:
        """R3: what comes from a lower epoch than the one synced is refused."""
        return epoch < max(self.max_epoch, self.persisting)

    def _cut_end(self, theirs: EpochTable, their_end: int) -> int | None:
        """R4: by epochs, never by what is known to be committed. None: the logs share nothing."""
        return common_end(self.table, self.end, theirs, their_end)

    def _confirmed_end(self) -> int:
        """R5: what this replica may say that it has."""
        return self.durable if self.config.mode is Mode.REPL_SYNC else self.end

    def _received_end(self) -> int:
        """Where the next records must begin: behind all that came, written or not."""
        if self.queued:
            return self.queued[-1].end
        return self.end if self.writing is None else self.writing.end

    def _is_next(self, records: Records) -> bool:
        """R21: only records that follow what was received count, in whatever order messages come."""
        return records.start == self._received_end()

    def _view(self) -> tuple[Pair, ...]:
        record = self.record
        return () if record is None else record.isr

    def _pending(self) -> tuple[Pair, ...]:
        """R7: an in-sync set that was proposed, until the answer is KNOWN."""
        return () if self.cas is None else self.cas.proposed.isr

    def _commit_pairs(self) -> tuple[Pair, ...]:
        """R6: who must have a record before it is committed."""
        pending = self._pending()
        view = self._view()
        return view if pending == view or not pending else (*view, *pending)

    def _end_of(self, pair: Pair) -> int:
        """R6, R10: what counts for a pair; `NOTHING`: it confirmed nothing in this epoch."""
        return self._confirmed_end() if pair == self.own_pair else self.acks.get(pair, NOTHING)

    def _commit_end(self) -> int:
        """R6: never lower than before, nothing on too few copies (R9)."""
        # The set that the record names, not one that is proposed: below the minimum nothing commits before the larger
        # set is known to be written.
        if not self._meets_floor(len(self._view())):
            return self.hw
        # The leader is one of the pairs and gets no exception: what only followers have synced is lost to it if its
        # machine loses power, and a new start of it may be elected. Never lower: at the begin of an
        # epoch the other pairs have confirmed nothing yet (I5).
        return max(self.hw, min(self._end_of(pair) for pair in self._commit_pairs()))

    def _is_admissible(self, pair: Pair) -> bool:
        """R8: may become in sync: confirmed all that is committed, and the begin of this epoch, in this epoch."""
        confirmed = self.acks.get(pair, NOTHING)
        # What was confirmed in earlier epochs is not in `acks`: it may have been cut since.
        return confirmed >= self.hw and self._reached_epoch(confirmed)

    def _reached_epoch(self, confirmed: int) -> bool:
        """R8: a log that ends before this epoch may lack what an earlier epoch committed, while `hw` is still low."""
        return self.epoch_start_end != NOTHING and confirmed >= self.table.entries[-1].offset

    def _meets_floor(self, size: int) -> bool:
        """R9: enough copies to commit, and to stay in the record."""
        record = self.record
        return record is not None and size >= record.min_isr

    def _is_of_group(self, broker_id: int) -> bool:
        """R17: only members count, whatever they confirmed before they were removed. Without a record: all."""
        record = self.followed
        return record is None or broker_id in record.members

    def _may_follow_remembered(self, record: GroupRecord) -> bool:
        """R23: only where no record was read, only in the epoch that was synced, and only another copy. An epoch has
        one leader for ever, so what was seen of it then is true still; who leads now, only the record says.
        """
        own = self.config.broker_id
        is_own_epoch = record.epoch == self.max_epoch and own in record.members
        leads = record.leader in {NO_LEADER, own}
        return self.seen is None and self.role is Role.TRUNCATING and is_own_epoch and not leads

    def _is_of_others(self, record: GroupRecord) -> bool:
        """R19: a log that was written without copies is of no group but the one that it founds: its epochs have the
        same numbers as those of others, and other bytes.
        """
        never_acted = self.config.adopts and not self.max_epoch and not self.persisting
        return never_acted and self.end > self.table.start and self.own_pair not in record.isr

    def _keeps_floor(self, rest: tuple[Pair, ...]) -> bool:
        """R16: enough copies in sync stay, and keep up, when a member goes."""
        return self._meets_floor(sum(1 for pair in rest if pair == self.own_pair or pair not in self.silent))

    def _have_room(self) -> tuple[Pair, ...]:
        """R22: other copies in sync that keep up and have room. Fewer than the minimum are none: while one of them led,
        the others would fill up to their last byte and fall out of sync, and then nothing could be taken, not even an
        acknowledgement.
        """
        roomy = tuple(
            pair for pair in self._view() if pair != self.own_pair and pair in self.roomy and pair not in self.silent
        )
        return roomy if self._meets_floor(len(roomy)) else ()

    def _may_need(self, copies: int) -> bool:
        """R18: the minimum rises only to what is in sync and keeps up, so all that was committed has as many copies."""
        record = self.record
        return record is not None and (copies <= record.min_isr or copies <= self.copies())

    def why_not_changed(self, change: CopyChange) -> str:
        """Why the copies of the group may not be changed like this now, in a sentence; empty: they may."""
        record = self.record
        if record is None or self.role not in LEADING:
            return f"copy {self.config.broker_id} does not lead"
        if self.role is Role.DRAINING:
            return f"copy {self.config.broker_id} hands over to another one"
        match change:
            case AddCopy(broker_id, address):
                if broker_id in record.members:
                    return f"copy {broker_id} is of the group already"
                if len(record.members) >= MEMBERS_MAX:
                    return f"the group has {len(record.members)} copies, the most that it may have: remove one first"
                return address_fault(address)
            case RemoveCopy(broker_id):
                return self._why_not_removed(record, broker_id)
            case SetMinimum(copies):
                if not 1 <= copies <= len(record.members):
                    return f"{copies} copies cannot be needed of the {len(record.members)} that the group has"
                if not self._may_need(copies):
                    return f"{self.copies()} of the {copies} copies are in sync; {self._missing(record)}"
        return ""

    def _why_not_removed(self, record: GroupRecord, broker_id: int) -> str:
        if broker_id == self.config.broker_id:
            return f"copy {broker_id} leads; let another copy lead first"
        least, left = record.min_isr, len(record.members) - 1
        if left < least:
            kept = "1 copy" if left == 1 else f"{left} copies"
            return f"{kept} would be left and {least} are needed; add another one first, or need fewer"
        rest = tuple(pair for pair in record.isr if pair.broker_id != broker_id)
        if len(rest) < len(record.isr) and not self._keeps_floor(rest):
            return (
                f"without it fewer than the {least} copies that are needed would be in sync; "
                f"{self._missing(record, besides=broker_id)}"
            )
        return ""

    def _missing(self, record: GroupRecord, *, besides: int = NOTHING) -> str:
        good = {pair.broker_id for pair in record.isr if pair == self.own_pair or pair not in self.silent}
        missing = [str(member) for member in record.members if member not in good and member != besides]
        return f"not in sync: {'copy ' + ', copy '.join(missing) if missing else 'no other copy'}"

    def _unclean_since(self, epoch: int) -> int:
        """R20: the newest unclean election after `epoch`; 0: since then every leader had all that was committed."""
        record = self.followed
        newest = record.unclean[-1].epoch if record is not None and record.unclean else 0
        return newest if newest > epoch else 0

    def _may_lose_committed(self) -> bool:
        """R20: what was known to be committed was so in an epoch before an unclean election, so the log of the epoch
        now may lack it. Once it was compared with that log, it may not any more.
        """
        return self._unclean_since(self.hw_epoch) > 0

    def _stands_unclean(self) -> bool:
        """R20: an unclean election of this copy was proposed, and the answer is not known."""
        cas = self.cas
        return cas is not None and cas.expected is not None and cas.proposed.unclean != cas.expected.record.unclean

    def _unclean_set(self, record: GroupRecord) -> tuple[Pair, ...]:
        """R20: who was in sync is not any more, whatever it has: its log is of another history now."""
        del record
        return (self.own_pair,)

    def why_not_unclean(self) -> str:
        """Why this copy may not lead without being in sync now, in a sentence; empty: it may (R20)."""
        record, own = self.record, self.config.broker_id
        if record is None:
            return f"copy {own} has not read the group record"
        if own not in record.members:
            return f"copy {own} is no copy of the group, whose copies are {', '.join(map(str, record.members))}"
        if self._may_stand(record):
            return f"copy {own} has all that is committed, and leads without this as soon as no other copy does"
        if self._is_over(record.epoch):
            return (
                f"the group record is at epoch {record.epoch}, and copy {own} has acted in epoch "
                f"{max(self.max_epoch, self.persisting)}: the record was lost or put back from a backup"
            )
        # While the writer cuts (a request below 0), nobody can say how much of the log is left to vouch for.
        if self.role not in STANDING or self.persisting or self.request < 0:
            return f"copy {own} is busy ({self.role}); try again"
        if self.writing is not None or self.durable < self.end:
            return f"copy {own} still writes what it copied last; try again"
        return ""

    def _may_show(self) -> bool:
        """R11: readers are answered by a leader that knows all that was committed before it."""
        return self.role in {Role.READY, Role.DRAINING}

    # Parts of every role.

    def _envelope(self, body: Body) -> Envelope:
        config = self.config
        return Envelope(config.cluster, config.broker_id, self.store_id, self.session, self.max_epoch, body)

    def _move(self, role: Role) -> None:
        if role is not self.role and role not in MOVES[self.role]:
            raise InvariantBroken(f"a replica cannot go from {self.role} to {role} (epoch {self.max_epoch})")
        # The next leader's log may part from this one before them, and nothing of them is in the log yet (decision 77).
        if role is not Role.FETCHING:
            self._forget_queued()
        self.role = role

    def _forget_queued(self) -> None:
        """R21: what came and is not with the writer goes with the match of the logs that it was sent for."""
        self.queued, self.gap_at = (), NOTHING

    def _raise_hw(self, end: int) -> None:
        if end < self.hw:
            raise InvariantBroken(f"I5: committed {self.hw}, now {end}")
        self.hw, self.hw_epoch = end, self.max_epoch

    def check(self) -> None:
        """Recompute the invariants that one replica can see. Raises InvariantBroken."""
        if not self.table.start <= self.durable <= self.end:
            raise InvariantBroken(f"synced {self.durable} of a log from {self.table.start} to {self.end}")
        if self.hw > self.end and self.role is not Role.OFFLINE:
            raise InvariantBroken(f"I1: committed {self.hw}, but the log ends at {self.end}")
        if self.role in LEADING:
            self._check_leader()

    def _check_leader(self) -> None:
        record = self.record
        if record is None or record.epoch != self.max_epoch or record.leader != self.config.broker_id:
            raise InvariantBroken(f"I7: leads epoch {self.max_epoch}, but the record says {record}")
        if self.own_pair not in record.isr:
            raise InvariantBroken(f"I3: leads epoch {self.max_epoch}, but {self.own_pair} is not in sync: {record.isr}")
        if self.table.last_epoch != self.max_epoch:
            raise InvariantBroken(f"I4: leads epoch {self.max_epoch}, but its log is at {self.table.last_epoch}")
        if self.role is not Role.STARTING and self.hw < self.epoch_start_end:
            raise InvariantBroken(f"R11: serves, but its epoch begins at {self.epoch_start_end} over {self.hw}")
