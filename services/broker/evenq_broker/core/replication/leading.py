"""Leader: commits what every in-sync copy has, changes the in-sync set, and hands over (R13).

One compare-and-set at a time: while the answer of one is not known, the old and the proposed set count (R7), and the
same proposal is repeated. A nominee of a hand-over stands for election like any other copy in sync, so a hand-over that
fails loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    ClosePeer,
    CommitAdvanced,
    HandedOver,
    Send,
    SendEpochs,
    SendRecords,
    Serve,
)
from evenq_broker.core.replication.copies import Copies
from evenq_broker.core.replication.epoch_table import common_end
from evenq_broker.core.replication.membership import CopyChange, changed, is_done
from evenq_broker.core.replication.messages import (
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Nomination,
    Records,
)
from evenq_broker.core.replication.record import NO_LEADER, Pair
from evenq_broker.core.replication.rules import NEVER, NOTHING, LogView, OwnCopy, RecordView, Role


@dataclass(slots=True)
class Leader:
    own: OwnCopy
    group: RecordView
    log: LogView
    copies: Copies
    windows: Mapping[int, Window] = field(default_factory=dict)  # broker that takes records -> what it was sent
    asked: Mapping[int, Envelope] = field(default_factory=dict)
    """Broker id -> its last request for epochs that came before this replica led; answered when it does."""
    epoch_start_end: int = NOTHING
    """End of the own epoch-start record; `NOTHING` until it is written."""
    calm_ms: int = NEVER  # when the term began, or its last drain
    drain_since_ms: int = NOTHING  # begin of the drain, or of its present round
    drain_ms: int = 0  # longest wait of this drain for a successor
    successor: int = NOTHING
    """Broker id that alone may take over from this drain; `NOTHING`: the best one."""
    nominated: frozenset[int] = frozenset()  # broker ids, in the present round of the drain

    def may_append(self) -> bool:
        """Returns True if a client's record may be appended now (R9, R11, R13). Otherwise it is refused before anything
        is written: too few copies in sync keep up, so it would not be committed.
        """
        return self.own.role is Role.READY and self.group.meets_floor(self.copies.count_in_sync())

    def begin(self, now_ms: int) -> list[Action]:
        """Begins the own epoch, which is synced: everything else waits for its first record."""
        self.copies.begin()
        self.windows, self.epoch_start_end, self.calm_ms = {}, NOTHING, now_ms
        self._end_drain()
        return [AppendEpochStart(self.own.max_epoch)]

    def end_term(self) -> None:
        self.windows = {}

    def appended(self, epoch: int, end: int) -> list[Action]:
        own = self.own
        self.log.appended(epoch, end, begins=own.role is Role.ELECTED and epoch == own.max_epoch)
        if epoch != own.max_epoch or own.persisting:
            return []  # written before a higher epoch was seen: it may be cut later
        answers: list[Action] = []
        if own.role is Role.ELECTED:
            own.move(Role.STARTING)
            self.epoch_start_end = end
            answers = self._answer_asked()
        return [*answers, *self.advance(), *self.more()]

    def advance(self) -> list[Action]:
        """Commits what every copy that counts has (R6)."""
        if not self.own.leads:
            return []
        end = self.copies.commit_end()
        if end == self.log.hw:
            return []
        self.log.raise_hw(end, self.own.max_epoch)
        # CommitAdvanced before Serve: a service begins with what is committed.
        actions: list[Action] = [CommitAdvanced(end)]
        if self.own.role is Role.STARTING and end >= self.epoch_start_end:
            self.own.move(Role.READY)
            actions.append(Serve(self.own.max_epoch))
        return [*actions, *self._nominate()]

    # Followers.

    def asked_early(self, envelope: Envelope) -> None:
        self.asked = {**self.asked, envelope.sender: envelope}

    def _answer_asked(self) -> list[Action]:
        """Answers requests for epochs that came before this replica led."""
        asked, self.asked = self.asked, {}
        actions: list[Action] = []
        for _, envelope in sorted(asked.items()):
            if envelope.epoch == self.own.max_epoch and isinstance(envelope.body, EpochsRequest):
                actions += self.on_request(envelope, envelope.body)
        return actions

    def on_request(self, envelope: Envelope, request: EpochsRequest) -> list[Action]:
        if not self.own.leads:
            return []
        table, end, theirs = self.log.table, self.log.end, request.table
        reply = self.own.envelope(EpochsReply(request.number, envelope.session, table, end))
        match = None if theirs is None else common_end(table, end, theirs, request.end)
        return [Send(envelope.sender, reply) if match is None else SendEpochs(envelope.sender, reply, match)]

    def on_progress(self, envelope: Envelope, progress: FollowerProgress, now_ms: int) -> list[Action]:
        """Takes in a follower's report of how far its log is (R5)."""
        if not self.own.leads:
            return []
        sender = envelope.sender
        received = progress.end + progress.queued
        # A wrong end would make commits false: RocketMQ took a follower's position from any connection (its #3015).
        if received > self.log.end:
            return [ClosePeer(sender, f"its log ends at {received}, that of its leader at {self.log.end}")]
        self.copies.reported(Pair(sender, envelope.store_id), progress, now_ms)
        window = reported(self.windows.get(sender), progress)
        if window is not None:
            self.windows = {**self.windows, sender: window}
        return [*self.advance(), *self.more_for(sender), *self._nominate()]

    def lost(self, broker_id: int, now_ms: int) -> list[Action]:
        self.copies.lost(broker_id, now_ms)
        return self._upkeep(now_ms) if self.group.cas is None else []

    def more(self) -> list[SendRecords]:
        """Returns more records for each follower whose window is open."""
        return [action for broker_id in sorted(self.windows) for action in self.more_for(broker_id)]

    def more_for(self, broker_id: int) -> list[SendRecords]:
        """Returns what to send to a follower now, before it requests more; nothing while enough is on its way. The
        owner calls this after each message that it has sent to the follower.
        """
        window = self.windows.get(broker_id)
        if window is None or not self.own.leads:
            return []
        start, end = self.log.table.start, self.log.end
        if window.start < start:  # it must match its log first, and then reports its end
            self.not_sent(broker_id)
            return [SendRecords(broker_id, start, start)]
        # A message, a write and a sync for each small group would cost more than the wait saves.
        gathers = window.sent and end - window.start < self.own.config.gather
        if window.start < end and window.is_open and not gathers:
            return [SendRecords(broker_id, window.start, end)]
        return []

    def not_sent(self, broker_id: int) -> None:
        """Closes a follower's window, because records for it cannot be read or are lost: its next report opens it."""
        self.windows = {id_: window for id_, window in self.windows.items() if id_ != broker_id}

    def announce_committed(self, *, repeat: bool) -> list[SendRecords]:
        """Returns messages with the committed end and no records, for followers that were sent all of them. Otherwise
        the end goes with records, and a tick after the last ones: a message for each commit would cost as much as the
        records.
        """
        end, hw = self.log.end, self.log.hw
        idle = [(id_, window) for id_, window in sorted(self.windows.items()) if window.start == end]
        self.windows = {id_: replace(window, quiet=True) for id_, window in self.windows.items()}
        due = [id_ for id_, window in idle if repeat or (window.quiet and window.committed < hw)]
        return [SendRecords(id_, end, end) for id_ in due]

    def records(self, action: SendRecords, end: int, payload: object) -> Envelope | None:
        """Returns the message for a SendRecords of which [start, end) was read, to be sent now. None: this replica no
        longer leads, or the follower is elsewhere by now.
        """
        # Read now, not when the read of the file began: the log may have been trimmed meanwhile.
        table, start, hw = self.log.table, action.start, self.log.hw
        if not self.own.leads or not table.start <= start <= end <= self.log.end:
            return None
        window = self.windows.get(action.to)
        if window is not None and window.start == start:
            self.windows = {**self.windows, action.to: window.with_sent(end, hw)}
        elif end > start:
            return None
        previous = table.epoch_at(start - 1) if start > table.start else 0
        rank = self.copies.rank_of(action.to)
        return self.own.envelope(Records(start, end, previous, table.between(start, end), hw, rank, payload))

    # The record.

    def observed(self, before: tuple[Pair, ...]) -> list[Action]:
        """Handles a newer record of the own epoch; `before`: the in-sync set of the last one."""
        # Removed copies are sent nothing, and what they confirmed does not count (R17).
        self.copies.forget_strangers()
        self.windows = {id_: window for id_, window in self.windows.items() if self.group.is_of_group(id_)}
        self.asked = {id_: envelope for id_, envelope in self.asked.items() if self.group.is_of_group(id_)}
        self.copies.forget_replaced(before)
        return self.advance()

    def propose(self, isr: tuple[Pair, ...]) -> list[Action]:
        """Proposes another in-sync set if the rules allow it: one change at a time (R7), newcomers were admitted (R8),
        the floor stays (R9). Otherwise returns nothing.
        """
        record = self.group.record
        if not self.own.leads or self.group.cas is not None or record is None or self.own.pair not in isr:
            return []
        if not all(pair in record.isr or self.copies.is_admissible(pair) for pair in isr):
            return []
        if not all(self.group.is_of_group(pair.broker_id) for pair in isr):
            return []
        # Below the minimum, as a founder's first set is, it may only grow.
        if not self.group.meets_floor(len(isr)) and len(isr) <= len(record.isr):
            return []
        return self.group.compare_and_set(record.with_isr(isr))

    def change_copies(self, change: CopyChange) -> list[Action]:
        """Changes the members or the minimum of the group (R15 to R18). Returns nothing while another change of the
        record is under way, if it is done already, or if `why_not_changed`, which the caller checks first, forbids it.
        """
        record = self.group.record
        if record is None or self.group.cas is not None or is_done(record, change):
            return []
        return [] if self.copies.why_not_changed(change) else self.group.compare_and_set(changed(record, change))

    def lead_on(self, now_ms: int) -> list[Action]:
        """Returns a change of the in-sync set that is due, otherwise a renewal of the record that is due."""
        changes, record = self._upkeep(now_ms), self.group.record
        if changes or record is None:
            return changes
        # A leader that drains does not renew: its write would change the token under the nominee's compare-and-set.
        due = now_ms - self.group.changed_ms >= self.own.config.timing.renew_ms and self.own.role is not Role.DRAINING
        return self.group.compare_and_set(record.renewed()) if due and self.copies.is_heard(now_ms) else []

    def _upkeep(self, now_ms: int) -> list[Action]:
        self.copies.look(now_ms)
        for wish in self.copies.changes(self.copies.silent):
            actions = self.propose(wish)
            if actions:
                return actions
        return []

    # Handing over.

    def drain(self, now_ms: int, *, to: int = NOTHING, within_ms: int = 0) -> list[Action]:
        """Hands over: takes no more records, lets the others catch up, then nominates the best one, or `to` alone
        (R13). Ends with HandedOver, after `within_ms` (0: of the timing) at the latest.
        """
        if self.own.role is not Role.READY:
            return [HandedOver(self.group.leader_id(), self.own.max_epoch)]
        self.own.move(Role.DRAINING)
        self.calm_ms = self.drain_since_ms = now_ms
        self.drain_ms, self.successor = within_ms or self.own.config.timing.drain_ms, to
        return self._nominate()

    def resume(self) -> list[Action]:
        """Takes back a drain that found no successor, and accepts records again. Safe although a nominee may still win:
        it is in sync, so whatever is committed until then is in its log (R1, R6).
        """
        if self.own.role is Role.DRAINING:
            self.own.move(Role.READY)
            self._end_drain()
        return []

    def _end_drain(self) -> None:
        self.drain_since_ms = self.successor = NOTHING
        self.nominated = frozenset()

    def relief(self, now_ms: int) -> int:
        """Returns the copy that should lead because this leader's disk has no room for messages (R22), for `drain`;
        `NOTHING`: none, or not yet. Terms that end in this way take at least `relief_ms`, so the lead does not
        circulate.
        """
        relief_ms = self.own.config.timing.relief_ms
        if self.own.role is not Role.READY or not relief_ms or now_ms - self.calm_ms < relief_ms:
            return NOTHING
        roomy = self.copies.have_room()
        return min(roomy, key=lambda pair: (-self.copies.end_of(pair), pair.broker_id)).broker_id if roomy else NOTHING

    def _nominate(self) -> list[Action]:
        """Sends the first nomination once the others have everything; the next ones follow by time (`drain_tick`)."""
        return [] if self.own.role is not Role.DRAINING or self.nominated else self._nominate_next()

    def _nominate_next(self) -> list[Action]:
        if self.group.cas is not None:
            return []  # the nominee's compare-and-set would race with it
        if not self.copies.others():
            return [HandedOver(NO_LEADER, self.own.max_epoch)]
        # All of them, not the nominee alone: any in-sync copy may win the election that follows (R1).
        if any(self.copies.end_of(pair) < self.log.end for pair in self.group.isr):
            return []
        waiting = [broker_id for broker_id in self._heirs() if broker_id not in self.nominated]
        if not waiting:
            return []
        best = min(waiting, key=lambda broker_id: (self.copies.rank_of(broker_id), broker_id))
        self.nominated = self.nominated | {best}
        return [Send(best, self.own.envelope(Nomination(self.log.end)))]

    def _heirs(self) -> list[int]:
        """Returns the copies that may take over from this drain."""
        others = [pair.broker_id for pair in self.copies.others()]
        return [broker_id for broker_id in others if self.successor in {NOTHING, broker_id}]

    def drain_tick(self, now_ms: int) -> list[Action]:
        if now_ms - self.drain_since_ms >= self.drain_ms:
            # The owner decides what to do with a drain that no copy took over; it is notified once in `drain_ms`, not
            # with each tick.
            self.drain_since_ms = now_ms
            return [HandedOver(NO_LEADER, self.own.max_epoch)]
        if len(self.nominated) >= len(self._heirs()):
            # Each was nominated once and none took over: messages may have been lost, so the best one is first again.
            self.nominated = frozenset()
        return self._nominate_next()


MESSAGES_AHEAD = 3
"""Messages with records that a follower has not written yet: one that it writes, one behind it, one on its way. With
more, small groups would be sent one by one instead of together.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """Records that one follower was sent. Offsets are ends, exclusive. Immutable.

    A follower reports how much it takes ahead of what it has written (`FollowerProgress.ahead`). The leader keeps where
    the next records for it begin. It sends them without a request while no more than that, in at most `MESSAGES_AHEAD`
    messages, is on its way. So the next records travel while the last ones are written and synced. A window is a guess
    of what has arrived and decides nothing else: what a follower confirms counts (R5), and lost records are requested
    with `again`.
    """

    written: int  # end of its log in its last report
    sent: tuple[int, ...]  # ends of the messages that it has not written, as far as is known; ascending
    ahead: int  # how much it takes behind `written`; 0: one message for each request
    committed: int = 0  # committed end that it was last sent
    quiet: bool = False  # no records were sent since the last tick

    @property
    def start(self) -> int:
        """Start of the next records for it."""
        return self.sent[-1] if self.sent else self.written

    @property
    def is_open(self) -> bool:
        """True if records may be sent now: one message, of any size, always if it has written all that was sent."""
        if not self.sent:
            return True
        return len(self.sent) < MESSAGES_AHEAD and self.start - self.written < self.ahead

    def with_sent(self, end: int, committed: int) -> Window:
        """Returns the window after records up to `end` (none if that is `start`), and what is committed, were sent."""
        if end > self.start:
            return replace(self, sent=(*self.sent, end), committed=committed, quiet=False)
        return replace(self, committed=committed)


def reported(window: Window | None, progress: FollowerProgress) -> Window | None:
    """Returns the window after a follower's report; None: it takes nothing yet."""
    end, received = progress.end, progress.end + progress.queued
    committed = 0 if window is None else window.committed
    if not progress.ahead:
        return Window(end, (), 0, committed) if progress.wants else window
    if window is None or progress.again or received > window.start:
        # The follower's report wins over what was sent: all that is on its way to it may be lost.
        return Window(end, (received,) if received > end else (), progress.ahead, committed)
    written = max(end, window.written)  # a late report is lower
    sent = tuple(sent for sent in window.sent if sent > written)
    return replace(window, written=written, sent=sent, ahead=progress.ahead)
