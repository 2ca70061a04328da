"""Follower: matches its log with the leader's, cuts what differs, copies the rest, and reports how far it is.

One request for epochs and one copy are under way at a time. Records that come meanwhile wait for the end of the copy,
up to `config.ahead` (R21). Lost messages are requested again by `tick`, or when later records come. A reply counts only
for the request that waits for it: a late one shows a shorter log (see `EpochsReply`). Records count only if they begin
where what was received ends; otherwise the gap is requested. The record before them must have the same epoch; otherwise
the logs are matched again.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq_broker.core.replication.actions import (
    Action,
    AppendRecords,
    CommitAdvanced,
    ReadRecord,
    Reset,
    Send,
    Truncate,
)
from evenq_broker.core.replication.messages import EpochsReply, EpochsRequest, FollowerProgress, Records
from evenq_broker.core.replication.record import NO_LEADER
from evenq_broker.core.replication.rules import NOTHING, InvariantBroken, LogView, OwnCopy, RecordView, Role

QUEUED_MAX = 16
"""Messages with records that wait for the writer at most; a leader of ours sends fewer."""
REPORTS = 16
"""While more records wait, only this part of `ahead`, or a sync, is worth a report; the last records get one anyway."""
CUT_UNDER_WAY = -1
"""In place of the number of a request: the reply came, and the writer cuts."""


@dataclass(slots=True)
class Follower:
    own: OwnCopy
    group: RecordView
    log: LogView
    request: int = 0
    """Number of the request for epochs that waits for a reply; 0: none; below 0: the writer cuts."""
    writing: Records | None = None
    """The one message with records that the writer copies now; it begins at the log's end."""
    queued: tuple[Records, ...] = ()
    """Records behind those that it writes, in order and without a gap; empty unless it fetches."""
    gap_at: int = NOTHING
    """Start of missing records that were requested already; `NOTHING`: none are known to be missing."""
    reported: int = 0  # end of the log in the last report
    rank: int = 0
    """Rank among those in sync, in the leader's last records; 0 is the best."""
    has_room: bool = False
    """Its disk has room for messages, as the owner last measured."""

    def follow(self) -> list[Action]:
        """Matches the logs after the epoch was synced, if another copy is known to lead it."""
        if self.group.leader_of(self.group.record) == NO_LEADER:
            return [ReadRecord()]
        self.own.move(Role.TRUNCATING)
        return self.request_epochs()

    def request_epochs(self) -> list[Action]:
        leader = self.group.leader_of(self.group.followed)
        is_member = self.group.is_of_group(self.own.broker_id)
        if leader == NO_LEADER or not is_member or self.request == CUT_UNDER_WAY:
            return []
        self.request = self.group.next_number()
        return [Send(leader, self.own.envelope(self.question()))]

    def question(self) -> EpochsRequest:
        return EpochsRequest(self.request, self.log.table, self.log.end)

    def on_epochs(self, reply: EpochsReply) -> list[Action]:
        # Numbers begin anew with each process, so the number alone does not identify a reply to an earlier start.
        if self.request <= 0 or reply.number != self.request or reply.session != self.own.session:
            return []
        if self.own.role is not Role.TRUNCATING:
            return []
        if self.writing is not None:  # records of the epoch before: they are finished first
            return []
        if self.group.stands_unclean():  # it may be elected already, for what its log has now
            return []
        # Until the writer is done, no other reply may cause a second cut: it would be computed from a log that is
        # shorter by then.
        self.request = CUT_UNDER_WAY
        cut = self.log.cut_end(reply.table, reply.end)
        unclean = self.group.unclean_since(self.log.table.last_epoch)
        # Before the cut, not after it: what is committed must still be there when its loss is noticed (I1).
        kept = reply.table.start if cut is None else cut
        self.log.matched(kept, self.own.max_epoch, may_lose=self.may_lose_committed())
        if cut is None:
            return [Reset(reply.table.start, unclean)]
        # It is below the end that the leader computed from this log; for another `cut` it proves nothing.
        last = reply.last if reply.last is not None and reply.last.end == cut else None
        return [Truncate(cut, reply.table.start, unclean, last)]

    def may_lose_committed(self) -> bool:
        """Returns True if an unclean election lies between the epoch of `hw` and this one: the leader's log may lack
        what was committed (R20). After the comparison with that log it may not any more.
        """
        return self.group.unclean_since(self.log.hw_epoch) > 0

    def matched(self) -> list[Action]:
        self.request = 0
        # A higher epoch began while the writer cut: its leader's log is another one, and is matched anew.
        if self.own.role is not Role.TRUNCATING:
            return []
        self.own.move(Role.FETCHING)
        return self.report(wants=True, again=True)

    def _received_end(self) -> int:
        """Returns where the next records must begin: behind all that came, written or not."""
        if self.queued:
            return self.queued[-1].end
        return self.log.end if self.writing is None else self.writing.end

    def is_next(self, records: Records) -> bool:
        """Returns True for records that follow what was received: only these count, in any order of arrival (R21)."""
        return records.start == self._received_end()

    def forget_queued(self) -> None:
        """Drops the records that the writer does not have: they belong to the last match of the logs (R21)."""
        self.queued, self.gap_at = (), NOTHING

    def report(self, *, wants: bool, again: bool = False) -> list[Action]:
        """Reports how far the log is (R5), and with `again` that records behind those that came are missing."""
        leader = self.group.leader_of(self.group.followed)
        if self.own.role is not Role.FETCHING or leader == NO_LEADER:
            return []
        if not self.group.is_of_group(self.own.broker_id):
            return []  # it was removed, so no leader accepts its reports
        ahead, end = self.own.config.ahead, self.log.end
        queued = self._received_end() - end if ahead else 0
        self.reported = end
        progress = FollowerProgress(
            end, self.log.confirmed_end(), wants, ahead, queued, again and ahead > 0, self.has_room
        )
        return [Send(leader, self.own.envelope(progress))]

    def on_records(self, records: Records) -> list[Action]:
        if self.own.role is not Role.FETCHING:
            return []
        received, is_empty = self._received_end(), records.end == records.start
        if records.start > received and is_empty and records.previous_epoch == 0:
            return self._match_again()  # the leader's log begins there: it no longer has what comes next
        if not self.is_next(records):
            # Also for records that overlap: the leader sent them because of `again`, while the earlier ones were on
            # their way. It counts them as received, and would send no more until the repeat.
            return self._miss(received) if records.end > received else []  # otherwise a repeat
        if records.previous_epoch != self.last_epoch(records):
            return self._match_again()
        # Only here do the records fit the own log, so this is the leader of the epoch and it counts this copy as it is.
        self.rank = records.rank
        is_busy = self.writing is not None
        if is_empty:
            learned = self._learn_committed(records.committed)
            return learned if is_busy else [*learned, *self.report(wants=True)]
        # Records without an epoch come from a leader with more epochs than its table keeps. A log that knows no epoch
        # either takes them; if it must be matched before one is known, it begins anew.
        if not is_busy:
            self.writing = records
            return [AppendRecords(records)]
        # Records over the limit are dropped without a report: the next ones, or the repeat, show the gap (R21).
        if received - self.log.end < self.own.config.ahead and len(self.queued) < QUEUED_MAX:
            self.queued = (*self.queued, records)
        return []

    def _miss(self, received: int) -> list[Action]:
        """Requests missing records, once for each gap: messages that were on their way show the same gap."""
        if self.gap_at == received:
            return []
        self.gap_at = received
        return self.report(wants=self.writing is None, again=True)

    def _match_again(self) -> list[Action]:
        # The leader's log parts from this one before the queued records, which are not written (decision 77).
        self.forget_queued()
        self.own.move(Role.TRUNCATING)
        return self.request_epochs()

    def last_epoch(self, records: Records) -> int:
        """Returns the epoch of the record before; of an empty log that begins later, only the leader knows it."""
        before = self.queued[-1] if self.queued else self.writing
        if before is not None:
            return before.epochs[-1].epoch if before.epochs else before.previous_epoch
        if not self.log.is_empty:
            return self.log.table.last_epoch
        return records.previous_epoch if self.log.end else 0

    def _learn_committed(self, committed: int) -> list[Action]:
        # The leader may have committed more than has come: only what this log shares with the leader's counts.
        end = min(committed, self.log.end)
        if end <= self.log.hw:
            return []
        self.log.raise_hw(end, self.own.max_epoch)
        return [CommitAdvanced(end)]

    def not_copied(self) -> list[Action]:
        self.writing = None
        self.forget_queued()
        return []

    def copied(self, end: int, *, synced: bool) -> list[Action]:
        records, start, self.writing = self.writing, self.log.end, None
        if records is None or records.start != start or not start < end <= records.end:
            raise InvariantBroken(f"the writer copied to {end}, was to copy {records}, and the log ended at {start}")
        self.log.copied(records, end, synced=synced)
        if self.own.role is not Role.FETCHING:
            return []
        # `end` may be below `records.committed`; see `_learn_committed`.
        learned = self._learn_committed(records.committed)
        if not self.queued or end < records.end:
            self.forget_queued()
            return [*learned, *self.report(wants=True, again=end < records.end)]
        self.writing, *rest = self.queued
        self.queued = tuple(rest)
        # Each report is a message and a commit round of the leader, so meanwhile only what moves a commit or opens a
        # window is reported.
        due = synced or end - self.reported >= self.own.config.ahead // REPORTS
        return [*learned, *(self.report(wants=False) if due else []), AppendRecords(self.writing)]
