"""Copies of the group as their leader knows them: what each confirmed in this epoch, and whether it keeps up.

From that follow what is committed (R6), which pair may become in sync (R8), and which changes of the in-sync set and
of the members are possible (R9, R16, R18, R22). Commits are a minimum over pairs, so there is no quorum arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_broker.core.replication.messages import FollowerProgress
from evenq_broker.core.replication.record import MEMBERS_MAX, GroupRecord, Pair, address_fault
from evenq_broker.core.replication.rules import NOTHING, LogView, OwnCopy, RecordView, Role

STORES_PER_BROKER = 2
"""Pairs kept of one broker: the newest ones, of which one may be in sync."""


@dataclass(slots=True)
class Copies:
    own: OwnCopy
    group: RecordView
    log: LogView
    acks: Mapping[Pair, int] = field(default_factory=dict)  # pair -> what it confirmed in this epoch; no value falls
    heard: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> when its last report came, ms; earlier, if its link broke."""
    caught_up: Mapping[Pair, tuple[int, int]] = field(default_factory=dict)
    """Pair -> (an end of the log, when the pair was last seen to have reached such an end, ms)."""
    silent: frozenset[Pair] = frozenset()
    """Pairs that do not keep up, as of the last look; at the minimum they stay in the in-sync set (R9)."""
    roomy: frozenset[Pair] = frozenset()
    """Pairs in sync whose reports say that their disks have room for messages (R22)."""

    def begin(self) -> None:
        # Records confirmed in an earlier epoch may be cut by now: confirmations count from this epoch on (R5, R8).
        self.acks, self.heard, self.caught_up = {}, {}, {}
        self.silent = self.roomy = frozenset()

    def others(self) -> list[Pair]:
        """Returns the other pairs in sync."""
        return [pair for pair in self.group.isr if pair != self.own.pair]

    def end_of(self, pair: Pair) -> int:
        """Returns what counts for a pair; `NOTHING`: it confirmed nothing in this epoch (R6, R10)."""
        return self.log.confirmed_end() if pair == self.own.pair else self.acks.get(pair, NOTHING)

    def commit_end(self) -> int:
        """Returns the committed end: never lower than before (R6), and unchanged on too few copies (R9)."""
        # The set of the record, not a proposed one: below the minimum nothing commits before the larger set is written.
        if not self.group.meets_floor(len(self.group.isr)):
            return self.log.hw
        # The leader is one of the pairs, without exception. If its machine loses power, it loses what only followers
        # have synced, and a new start of it may be elected. Never lower: at the start of an epoch the other pairs have
        # confirmed nothing yet (I5).
        return max(self.log.hw, min(self.end_of(pair) for pair in self.group.commit_pairs()))

    def rank_of(self, broker_id: int) -> int:
        """Returns the place of a copy among the others in sync, the longest log first; 0 also for one not in sync."""
        others = [id_ for _, id_ in sorted((-self.end_of(pair), pair.broker_id) for pair in self.others())]
        return others.index(broker_id) if broker_id in others else 0

    def reported(self, pair: Pair, progress: FollowerProgress, now_ms: int) -> None:
        self.confirm(pair, progress.confirmed)
        has_room = progress.has_room and pair in self.group.isr
        if has_room is not (pair in self.roomy):
            self.roomy = self.roomy ^ {pair}
        self.heard = {**self.heard, pair.broker_id: now_ms}

    def confirm(self, pair: Pair, confirmed: int) -> None:
        before = self.acks.get(pair)
        if before is not None:
            # A late message reports less. A confirmation of this epoch stays: only a higher epoch cuts, and a
            # disk that lost it is another pair (R10).
            if confirmed > before:
                self.acks = {**self.acks, pair: confirmed}
            return
        # A copy with a new store at each start would fill the table. Pairs that decide a commit are never dropped.
        counting = self.group.commit_pairs()
        others = [known for known in self.acks if known.broker_id == pair.broker_id and known not in counting]
        drop = others[0] if len(others) >= STORES_PER_BROKER else None
        self.acks = {known: end for known, end in self.acks.items() if known != drop} | {pair: confirmed}

    def forget_strangers(self) -> None:
        """Forgets removed copies: what they confirmed does not count (R17)."""
        self.acks = {pair: end for pair, end in self.acks.items() if self.group.is_of_group(pair.broker_id)}
        self.heard = {id_: ms for id_, ms in self.heard.items() if self.group.is_of_group(id_)}

    def forget_replaced(self, before: tuple[Pair, ...]) -> None:
        """Forgets a store that another one of its broker replaced (R10). Its confirmations stay true, but in an idle
        group it would be reason enough to take it back, in turns with the new one for ever.
        """
        isr = self.group.isr
        brokers = {pair.broker_id for pair in isr}
        gone = {pair for pair in before if pair not in isr and pair.broker_id in brokers}
        if gone:
            self.acks = {pair: end for pair, end in self.acks.items() if pair not in gone}

    # Silence.

    def keeps_up(self, pair: Pair) -> bool:
        return pair == self.own.pair or pair not in self.silent

    def count_in_sync(self) -> int:
        """Returns how many copies in sync keep up, including this one."""
        return sum(map(self.keeps_up, self.group.isr))

    def look(self, now_ms: int) -> None:
        """Notes which pairs sent nothing, or did not catch up, for `lag_ms`."""
        lag_ms = self.own.config.timing.lag_ms
        marks, silent, heard = {}, set(), dict(self.heard)  # a broker that sent nothing yet has this time from now on
        for pair in (*self.group.isr, *self.acks):
            mark = self.caught_up.get(pair)
            if mark is None or self.end_of(pair) >= mark[0]:
                # Compared with the log's end at an earlier look: under load no follower has the newest record.
                mark = (self.log.end, now_ms)
            marks[pair] = mark
            heard_ms = now_ms if pair == self.own.pair else heard.setdefault(pair.broker_id, now_ms)
            if now_ms - min(mark[1], heard_ms) > lag_ms:
                silent.add(pair)
        self.caught_up, self.heard, self.silent = marks, heard, frozenset(silent)

    def lost(self, broker_id: int, now_ms: int) -> None:
        """Counts a copy whose link broke as silent now."""
        # A hint and not a rule: dropping it needs the record, and R8 admits a copy again that was only cut off.
        self.heard = {**self.heard, broker_id: now_ms - self.own.config.timing.lag_ms - 1}

    def paused(self, now_ms: int, paused_ms: int) -> None:
        """Moves times by a pause of this process: no copy was silent meanwhile."""
        self.heard = {id_: min(now_ms, ms + paused_ms) for id_, ms in self.heard.items()}
        self.caught_up = {pair: (end, min(now_ms, ms + paused_ms)) for pair, (end, ms) in self.caught_up.items()}

    def is_heard(self, now_ms: int) -> bool:
        """Returns False for a leader that too few copies reach: it stops renewing, so that others may try (D11)."""
        record, suspect_ms = self.group.record, self.own.config.timing.suspect_ms
        if record is None:
            return False
        near = sum(
            pair == self.own.pair or now_ms - self.heard.get(pair.broker_id, NOTHING) <= suspect_ms
            for pair in record.isr
        )
        return near >= min(record.min_isr, len(record.isr))

    # Changes of the in-sync set.

    def is_admissible(self, pair: Pair) -> bool:
        """Returns True for a pair that may become in sync: in this epoch it confirmed all that is committed (R8)."""
        confirmed = self.acks.get(pair, NOTHING)
        # Confirmations of earlier epochs are not in `acks`: their records may have been cut since.
        return confirmed >= self.log.hw and self.reached_epoch(confirmed)

    def reached_epoch(self, confirmed: int) -> bool:
        """Returns True if a log reaches this epoch: with a low `hw` a shorter one may lack committed records (R8)."""
        # A leader's log has a record of its epoch (I4).
        return confirmed >= self.log.table.entries[-1].offset

    def changes(self, silent: frozenset[Pair]) -> list[tuple[Pair, ...]]:
        """Returns in-sync sets worth proposing when `silent` pairs do not keep up, best first: swap a replaced store,
        drop, swap at the floor, add.
        """
        isr = self.group.isr
        out = [pair for pair in self.others() if pair in silent]
        come = [pair for pair in sorted(self.acks) if pair not in isr and pair not in silent]
        wishes = []
        for pair in come:
            # The old disk of this broker never confirms again: nothing commits before it is swapped, so this is first.
            kept = tuple(one for one in isr if one.broker_id != pair.broker_id)
            if len(kept) < len(isr):
                wishes.append(tuple(sorted((*kept, pair))))
        for gone in out:
            rest = tuple(one for one in isr if one != gone)
            wishes.append(rest)
            wishes += [tuple(sorted((*rest, pair))) for pair in come if pair.broker_id != gone.broker_id]
        brokers = {pair.broker_id for pair in isr}
        wishes += [tuple(sorted((*isr, pair))) for pair in come if pair.broker_id not in brokers]
        return [wish for wish in wishes if len({pair.broker_id for pair in wish}) == len(wish)]

    def have_room(self) -> list[Pair]:
        """Returns the other copies in sync that keep up and have room; none if they are fewer than the minimum (R22).
        While one of those led, the others would fill up to their last byte and fall out of sync. Then not even an
        acknowledgement could be taken.
        """
        roomy = [pair for pair in self.others() if pair in self.roomy and pair not in self.silent]
        return roomy if self.group.meets_floor(len(roomy)) else []

    # Changes of the members.

    def keeps_floor(self, rest: tuple[Pair, ...]) -> bool:
        """Returns True if enough copies in sync that keep up stay when a member goes (R16)."""
        return self.group.meets_floor(sum(map(self.keeps_up, rest)))

    def may_need(self, copies: int) -> bool:
        """Returns True if the minimum may be `copies`: it rises only to what is in sync and keeps up, so all that was
        committed has as many copies (R18).
        """
        record = self.group.record
        return record is not None and (copies <= record.min_isr or copies <= self.count_in_sync())

    def why_not_changed(self, change: CopyChange) -> str:
        """Returns why the group's copies may not be changed in this way now, as a sentence; empty: they may."""
        record, own = self.group.record, self.own
        if record is None or not own.leads:
            return f"copy {own.broker_id} does not lead"
        if own.role is Role.DRAINING:
            return f"copy {own.broker_id} hands over to another one"
        match change:
            case AddCopy(broker_id, address):
                if broker_id in record.members:
                    return f"copy {broker_id} belongs to the group already"
                if len(record.members) >= MEMBERS_MAX:
                    return f"the group has {len(record.members)} copies, the most that it may have: remove one first"
                return address_fault(address)
            case RemoveCopy(broker_id):
                return self._why_not_removed(record, broker_id)
            case SetMinimum(copies):
                if not 1 <= copies <= len(record.members):
                    return f"{copies} copies cannot be needed of the {len(record.members)} that the group has"
                if not self.may_need(copies):
                    return f"{self.count_in_sync()} of the {copies} copies are in sync; {self._missing(record)}"
        return ""

    def _why_not_removed(self, record: GroupRecord, broker_id: int) -> str:
        if broker_id == self.own.broker_id:
            return f"copy {broker_id} leads; let another copy lead first"
        least, left = record.min_isr, len(record.members) - 1
        if left < least:
            kept = "1 copy" if left == 1 else f"{left} copies"
            return f"{kept} would be left and {least} are needed; add another one first, or need fewer"
        rest = tuple(pair for pair in record.isr if pair.broker_id != broker_id)
        if len(rest) < len(record.isr) and not self.keeps_floor(rest):
            return (
                f"without it fewer than the {least} copies that are needed would be in sync; "
                f"{self._missing(record, besides=broker_id)}"
            )
        return ""

    def _missing(self, record: GroupRecord, *, besides: int = NOTHING) -> str:
        good = {pair.broker_id for pair in record.isr if self.keeps_up(pair)}
        missing = [str(member) for member in record.members if member not in good and member != besides]
        return f"not in sync: {'copy ' + ', copy '.join(missing) if missing else 'no other copy'}"
