"""A leader: commits what every in-sync copy has, and changes who is in sync, one compare-and-set at a time.

Commits are a minimum over pairs (R6), so the code has no quorum arithmetic. While the answer of a compare-and-set is
not known, both the old and the proposed set count (R7), and the same proposal is made again until it is answered.
"""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    ClosePeer,
    CommitAdvanced,
    CompareAndSet,
    HandedOver,
    Send,
    SendEpochs,
    SendRecords,
    Serve,
)
from evenq_broker.core.replication.epoch_table import common_end
from evenq_broker.core.replication.following import Follower
from evenq_broker.core.replication.membership import CopyChange, changed, is_done
from evenq_broker.core.replication.messages import (
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Nomination,
    Records,
)
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair
from evenq_broker.core.replication.rules import LEADING, NEVER, NOTHING, STANDING, InvariantBroken, Role
from evenq_broker.core.replication.windows import Window, reported

__all__ = ["Leader"]

STORES_PER_BROKER = 2
"""Pairs kept of one broker: the newest ones, of which one may be in sync."""


class Leader(Follower):
    """See the module."""

    __slots__ = ()

    def stand(self) -> list[Action]:
        """Try to become leader of the next epoch (R1). Gives nothing if this replica may not."""
        seen = self.seen
        if seen is None or self.role not in STANDING or self.persisting:
            return []
        if not self._may_stand(seen.record) or self._is_over(seen.record.epoch):
            return []
        proposed = seen.record.elected(self.config.broker_id)
        # Before the answer: the write may have happened although none comes, and only an own attempt may lead then
        # (R2).
        self.attempted = proposed.epoch
        return self._set(proposed)

    def _set(self, proposed: GroupRecord) -> list[Action]:
        self.number += 1
        self.cas = CompareAndSet(self.number, self.seen, proposed)
        return [self.cas]

    def _begin(self) -> list[Action]:
        """The own epoch is synced: the first record of it is what everything else waits for."""
        # What was confirmed in an earlier epoch may have been cut since, so everything counts from this epoch on (R5,
        # R8).
        self.acks, self.heard, self.caught_up, self.windows = {}, {}, {}, {}
        self.silent = self.roomy = frozenset()
        self.calm_ms = self.ticked_ms
        self.epoch_start_end = self.drain_since_ms = self.successor = NOTHING
        self.nominated = frozenset()
        return [AppendEpochStart(self.max_epoch)]

    def _appended(self, epoch: int, end: int) -> list[Action]:
        if end <= self.end:
            raise InvariantBroken(f"the writer appended to {end} a log that ended at {self.end}")
        # Two starts of one process that lead the same epoch write other bytes at one offset (I4).
        if self.role is Role.ELECTED and epoch == self.max_epoch == self.table.last_epoch:
            raise InvariantBroken(f"R2: epoch {epoch} begins, but the log has records of it already")
        self.table = self.table.appended(epoch, self.end)
        self.end = end
        if epoch != self.max_epoch or self.persisting:
            return []  # written before a higher epoch was seen: it may be cut later
        answers: list[Action] = []
        if self.role is Role.ELECTED:
            self._move(Role.STARTING)
            self.epoch_start_end = end
            answers = self._answer_asked()
        return [*answers, *self._advance(), *self._feed()]

    def _advance(self) -> list[Action]:
        """R6: commit what every copy that counts has."""
        if self.role not in LEADING:
            return []
        end = self._commit_end()
        if end == self.hw:
            return []
        self._raise_hw(end)
        # The commit before Serve: who begins to serve must know of it already.
        actions: list[Action] = [CommitAdvanced(end)]
        if self.role is Role.STARTING and end >= self.epoch_start_end:
            self._move(Role.READY)
            actions.append(Serve(self.max_epoch))
        return [*actions, *self._nominate()]

    def _feed(self) -> list[Action]:
        """More records, for each follower whose window is open."""
        return [action for broker_id in sorted(self.windows) for action in self.more_for(broker_id)]

    def more_for(self, broker_id: int) -> list[SendRecords]:
        """What a follower is to be sent now, before it asks; nothing while enough is on its way. The owner asks for it
        after each message to it that it has sent.
        """
        window = self.windows.get(broker_id)
        if window is None or self.role not in LEADING:
            return []
        start = self.table.start
        if window.start < start:  # it must match its log first, and then says where that ends
            self.not_sent(broker_id)
            return [SendRecords(broker_id, start, start)]
        if window.start < self.end and window.is_open and not self._gathers(window):
            return [SendRecords(broker_id, window.start, self.end)]
        return []

    def _gathers(self, window: Window) -> bool:
        # A message, a write and a sync for each small group would cost more than the wait saves.
        return bool(window.sent) and self.end - window.start < self.config.gather

    def _say_committed(self, *, repeat: bool) -> list[Action]:
        """What is committed, without records, to who has been sent all of them. It goes with records while there are
        some, and a tick after the last ones: a message of its own for each commit would cost as much as they do.
        """
        idle = [(id_, window) for id_, window in sorted(self.windows.items()) if window.start == self.end]
        self.windows = {id_: replace(window, quiet=True) for id_, window in self.windows.items()}
        return [
            SendRecords(id_, self.end, self.end)
            for id_, window in idle
            if repeat or (window.quiet and window.committed < self.hw)
        ]

    def not_sent(self, broker_id: int) -> None:
        """Records for a follower could not be read, or are lost for certain: it gets more when it says where it is."""
        self.windows = {id_: window for id_, window in self.windows.items() if id_ != broker_id}

    def records(self, action: SendRecords, end: int, payload: object) -> Envelope | None:
        """The message for a SendRecords of which [start, end) was read, to be sent now; None: not any more, because
        this replica does not lead, or the follower is elsewhere by now.
        """
        if self.role not in LEADING or not self.table.start <= action.start <= end <= self.end:
            return None
        window = self.windows.get(action.to)
        if window is not None and window.start == action.start:
            self.windows = {**self.windows, action.to: window.with_sent(end, self.hw)}
        elif end > action.start:
            return None
        # Read now, not when the read of the file began: the log may have been trimmed meanwhile.
        table, start = self.table, action.start
        previous = table.epoch_at(start - 1) if start > table.start else 0
        rank = self._rank_of(action.to)
        return self._envelope(Records(start, end, previous, table.between(start, end), self.hw, rank, payload))

    def _rank_of(self, broker_id: int) -> int:
        others = sorted((-self._end_of(pair), pair.broker_id) for pair in self._view() if pair != self.own_pair)
        return [other for _, other in others].index(broker_id) if broker_id in {other for _, other in others} else 0

    def _on_request(self, envelope: Envelope, request: EpochsRequest) -> list[Action]:
        if self.role not in LEADING:
            return []
        reply = self._envelope(EpochsReply(request.number, envelope.session, self.table, self.end))
        theirs = request.table
        match = None if theirs is None else common_end(self.table, self.end, theirs, request.end)
        return [Send(envelope.sender, reply) if match is None else SendEpochs(envelope.sender, reply, match)]

    def _answer_asked(self) -> list[Action]:
        """Who asked for epochs before this replica led."""
        asked, self.asked = self.asked, {}
        actions: list[Action] = []
        for _, envelope in sorted(asked.items()):
            if envelope.epoch == self.max_epoch and isinstance(envelope.body, EpochsRequest):
                actions += self._on_request(envelope, envelope.body)
        return actions

    def _on_progress(self, envelope: Envelope, progress: FollowerProgress, now_ms: int) -> list[Action]:
        """R5: a follower says how far its log is."""
        if self.role not in LEADING:
            return []
        sender = envelope.sender
        received = progress.end + progress.queued
        # A forged or mixed-up end would make commits lie: RocketMQ took a follower's position from whoever connected
        # (its #3015).
        if received > self.end:
            return [ClosePeer(sender, f"its log ends at {received}, that of its leader at {self.end}")]
        pair = Pair(sender, envelope.store_id)
        self._confirm(pair, progress.confirmed)
        has_room = progress.has_room and pair in self._view()
        if has_room is not (pair in self.roomy):
            self.roomy = self.roomy ^ {pair}
        self.heard = {**self.heard, sender: now_ms}
        window = reported(self.windows.get(sender), progress)
        if window is not None:
            self.windows = {**self.windows, sender: window}
        return [*self._advance(), *self.more_for(sender), *self._nominate()]

    def _confirm(self, pair: Pair, confirmed: int) -> None:
        before = self.acks.get(pair)
        if before is not None:
            # A late message says less. Nothing that a pair confirmed in this epoch goes away: only a higher epoch cuts,
            # and a disk that lost it is another pair (R10).
            if confirmed > before:
                self.acks = {**self.acks, pair: confirmed}
            return
        # A copy whose store is made anew at each start would fill the table; pairs that decide a commit are never
        # dropped.
        counting = self._commit_pairs()
        others = [known for known in self.acks if known.broker_id == pair.broker_id and known not in counting]
        drop = others[0] if len(others) >= STORES_PER_BROKER else None
        self.acks = {known: end for known, end in self.acks.items() if known != drop} | {pair: confirmed}

    # Who is in sync.

    def propose(self, isr: tuple[Pair, ...]) -> list[Action]:
        """Change the in-sync set, if the rules allow it: one change at a time (R7), who comes was admitted (R8), the
        floor stays (R9). Gives nothing if they do not.
        """
        record = self.record
        if self.role not in LEADING or self.cas is not None or record is None or self.own_pair not in isr:
            return []
        view = set(record.isr)
        if not all(pair in view or self._is_admissible(pair) for pair in isr):
            return []
        if not all(self._is_of_group(pair.broker_id) for pair in isr):
            return []
        # Below the minimum, as a founder's first set is, it may only grow.
        if not self._meets_floor(len(isr)) and len(isr) <= len(view):
            return []
        return self._set(record.with_isr(isr))

    def changes(self, silent: frozenset[Pair]) -> list[tuple[Pair, ...]]:
        """In-sync sets worth proposing, best first, when `silent` pairs do not keep up: swap a replaced store, drop,
        swap at the floor, add.
        """
        view = self._view()
        out = [pair for pair in view if pair in silent and pair != self.own_pair]
        come = [pair for pair in sorted(self.acks) if pair not in view and pair not in silent]
        wishes = []
        for pair in come:
            # The old disk of this broker never confirms again, so nothing commits before it is swapped: this wish comes
            # first.
            kept = tuple(one for one in view if one.broker_id != pair.broker_id)
            if len(kept) < len(view):
                wishes.append(tuple(sorted((*kept, pair))))
        for gone in out:
            rest = tuple(one for one in view if one != gone)
            wishes.append(rest)
            wishes += [tuple(sorted((*rest, pair))) for pair in come if pair.broker_id != gone.broker_id]
        brokers = {pair.broker_id for pair in view}
        wishes += [tuple(sorted((*view, pair))) for pair in come if pair.broker_id not in brokers]
        return [wish for wish in wishes if len({pair.broker_id for pair in wish}) == len(wish)]

    def change_copies(self, change: CopyChange) -> list[Action]:
        """Change who is of the group, or how many copies are needed (R15 to R18). Gives nothing while another change
        of the record is under way, if it is done already, or if `why_not_changed` forbids it: ask that first.
        """
        record = self.record
        if record is None or self.cas is not None or is_done(record, change) or self.why_not_changed(change):
            return []
        return self._set(changed(record, change))

    def _forget_strangers(self) -> None:
        """R17: who was removed is sent nothing, and what it confirmed is forgotten."""
        self.acks = {pair: end for pair, end in self.acks.items() if self._is_of_group(pair.broker_id)}
        self.windows = {id_: window for id_, window in self.windows.items() if self._is_of_group(id_)}
        self.heard = {id_: ms for id_, ms in self.heard.items() if self._is_of_group(id_)}
        self.asked = {id_: envelope for id_, envelope in self.asked.items() if self._is_of_group(id_)}

    def _forget_replaced(self, before: tuple[Pair, ...]) -> None:
        """R10: the store that another one of its broker took the place of is gone. What it confirmed stays true, but in
        a group that writes nothing it would be reason enough to take it back, in turns with the new one for ever.
        """
        view = self._view()
        brokers = {pair.broker_id for pair in view}
        gone = {pair for pair in before if pair not in view and pair.broker_id in brokers}
        if gone:
            self.acks = {pair: end for pair, end in self.acks.items() if pair not in gone}

    def _upkeep(self, now_ms: int) -> list[Action]:
        self.silent = silent = self._silent(now_ms)
        for wish in self.changes(silent):
            actions = self.propose(wish)
            if actions:
                return actions
        return []

    def _silent(self, now_ms: int) -> frozenset[Pair]:
        """Pairs that were not heard of, or did not catch up, for `lag_ms`."""
        lag_ms = self.config.timing.lag_ms
        marks, silent, heard = {}, set(), dict(self.heard)  # of whom nothing was heard yet has from now on
        for pair in (*self._view(), *self.acks):
            mark = self.caught_up.get(pair)
            if mark is None or self._end_of(pair) >= mark[0]:
                # Held against where the log ended at an earlier look, not where it ends now: under load no follower has
                # the newest record.
                mark = (self.end, now_ms)
            marks[pair] = mark
            heard_ms = now_ms if pair == self.own_pair else heard.setdefault(pair.broker_id, now_ms)
            if now_ms - min(mark[1], heard_ms) > lag_ms:
                silent.add(pair)
        self.caught_up, self.heard = marks, heard
        return frozenset(silent)

    def _lost(self, broker_id: int, now_ms: int) -> list[Action]:
        timing = self.config.timing
        self._pass_time(now_ms)
        if self.role in LEADING and broker_id != self.config.broker_id:
            # A hint, no rule: dropping it needs the record, and a copy that was only cut off is admitted again by R8.
            self.heard = {**self.heard, broker_id: now_ms - timing.lag_ms - 1}
            return self._upkeep(now_ms) if self.cas is None else []
        if self.role in STANDING and broker_id == self.leader_id():
            # One renewal may still be on its way; a leader that lives and lost only this link renews within it.
            patience_ms = min(timing.suspect_ms, timing.renew_ms + timing.renew_ms // 2)
            self.sign_ms = min(self._lived_ms(), now_ms - timing.suspect_ms + patience_ms)
            self.leader_ms, self.lost_ms = NEVER, now_ms
        return []

    def _is_heard(self, now_ms: int) -> bool:
        """A leader that too few hear stops its signs of life, so that others may try (D11)."""
        record = self.record
        if record is None:
            return False
        timing = self.config.timing
        near = sum(
            1
            for pair in record.isr
            if pair == self.own_pair or now_ms - self.heard.get(pair.broker_id, NOTHING) <= timing.suspect_ms
        )
        return near >= min(record.min_isr, len(record.isr))

    # Handing over.

    def drain(self, now_ms: int, *, to: int = NOTHING, within_ms: int = 0) -> list[Action]:
        """R13: take no more records, let the others catch up, then let the best one take over, or `to` and no other.
        Ends with HandedOver, after `within_ms` (0: of the timing) at the latest.
        """
        if self.role is not Role.READY:
            return [HandedOver(self.leader_id(), self.max_epoch)]
        self._move(Role.DRAINING)
        self.calm_ms = now_ms
        self.drain_since_ms, self.drain_ms = now_ms, within_ms or self.config.timing.drain_ms
        self.successor = to
        return self._nominate()

    def relief(self, now_ms: int) -> int:
        """R22: who should lead because this leader's disk has no room for messages, to be asked by `drain`; `NOTHING`:
        no copy, or not yet. Terms that end so are at least `relief_ms` long, so leads do not go round.
        """
        relief_ms = self.config.timing.relief_ms
        if self.role is not Role.READY or not relief_ms or now_ms - self.calm_ms < relief_ms:
            return NOTHING
        roomy = self._have_room()
        return min(roomy, key=lambda pair: (-self._end_of(pair), pair.broker_id)).broker_id if roomy else NOTHING

    def resume(self) -> list[Action]:
        """Take a drain back that found no successor, and take records again. Safe although a nominee may still win: it
        is in sync, so whatever is committed until then is in its log (R1, R6).
        """
        if self.role is Role.DRAINING:
            self._move(Role.READY)
            self.drain_since_ms = self.successor = NOTHING
            self.nominated = frozenset()
        return []

    def _nominate(self) -> list[Action]:
        """The first nomination, as soon as the others have all; the next ones are a matter of time (`_drain_tick`)."""
        return [] if self.role is not Role.DRAINING or self.nominated else self._nominate_next()

    def _nominate_next(self) -> list[Action]:
        if self.cas is not None:
            return []  # the nominee's compare-and-set would race with it
        others = [pair for pair in self._view() if pair != self.own_pair]
        if not others:
            return [HandedOver(NO_LEADER, self.max_epoch)]
        # All of them, not the nominee alone: any in-sync copy may win the election that follows (R1).
        if any(self._end_of(pair) < self.end for pair in self._view()):
            return []
        waiting = [pair for pair in others if pair.broker_id not in self.nominated and self._may_succeed(pair)]
        if not waiting:
            return []
        best = min(waiting, key=lambda pair: (self._rank_of(pair.broker_id), pair.broker_id))
        self.nominated = self.nominated | {best.broker_id}
        return [Send(best.broker_id, self._envelope(Nomination(self.end)))]

    def _may_succeed(self, pair: Pair) -> bool:
        return self.successor in {NOTHING, pair.broker_id}

    def _drain_tick(self, now_ms: int) -> list[Action]:
        if now_ms - self.drain_since_ms >= self.drain_ms:
            # The owner decides what to do with a drain that nobody took over; it is told once in `drain_ms`, not with
            # each tick.
            self.drain_since_ms = now_ms
            return [HandedOver(NO_LEADER, self.max_epoch)]
        nominated_before = len(self.nominated)
        if nominated_before and nominated_before >= sum(
            1 for pair in self._view() if pair != self.own_pair and self._may_succeed(pair)
        ):
            # Each was nominated once and none took over: messages may have been lost, begin with the best again.
            self.nominated = frozenset()
        return self._nominate_next()
