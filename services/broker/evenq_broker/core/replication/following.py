"""A follower: matches its log with the leader's, cuts what differs, copies the rest, and says how far it is.

One request for epochs and one copy are under way at a time, and what comes meanwhile waits for the copy's end, up to
`config.ahead` (R21). What may have been lost is asked for again by `tick`, or when later records come. A reply counts
only for the request that waits for it: a late one shows a shorter log (see `EpochsReply`). Records count only if they
begin where what was received ends and the record before them has the same epoch; else the logs are matched again.
"""

from __future__ import annotations

from evenq_broker.core.replication.actions import (
    Action,
    AppendRecords,
    CommitAdvanced,
    HandedOver,
    PersistEpoch,
    ReadRecord,
    Reset,
    Send,
    StopServing,
    Truncate,
)
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.messages import EpochsReply, EpochsRequest, FollowerProgress, Records
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord
from evenq_broker.core.replication.rules import LEADING, NEVER, InvariantBroken, Role, Rules

__all__ = ["QUEUED_MAX", "Follower"]

QUEUED_MAX = 16
"""Messages with records that wait for the writer; a leader of ours sends fewer."""
REPORTS = 16
"""While more has come, only this part of `ahead`, or what is synced, is worth a report: the last of it has one anyway.
"""

CUT_UNDER_WAY = -1
"""In place of the number of a request: the reply came, the writer cuts."""


class Follower(Rules):
    """See the module."""

    __slots__ = ()

    def _enter_epoch(self, record: GroupRecord) -> list[Action]:
        """A higher epoch is in the record: sync its number before anything is done in it (R3)."""
        actions: list[Action] = []
        if self.role is Role.DRAINING:
            actions.append(HandedOver(record.leader, record.epoch))
        if self.role in LEADING:
            actions.append(StopServing(f"epoch {record.epoch} began, led by broker {record.leader}"))
        # Moved before the epoch is on disk, so that nothing of a lower one is done meanwhile; acting in it waits for
        # the disk (R3).
        self._move(Role.ELECTED if self._is_own_attempt(record) else Role.FENCED)
        self.persisting = record.epoch
        self.windows = {}
        self.leader_ms = NEVER
        return [*actions, PersistEpoch(record.epoch)]

    def _follow(self) -> list[Action]:
        """The epoch is synced and another copy leads it: match the logs, if it is known who."""
        record = self.record
        if record is None or record.epoch != self.max_epoch or record.leader in {NO_LEADER, self.config.broker_id}:
            if self.role is not Role.FENCED:
                self._move(Role.TRUNCATING)
            return [ReadRecord()]
        self._move(Role.TRUNCATING)
        return self._request_epochs()

    def _request_epochs(self) -> list[Action]:
        record = self.followed
        if record is None or record.leader in {NO_LEADER, self.config.broker_id} or record.epoch != self.max_epoch:
            return []
        if self.request == CUT_UNDER_WAY or not self._is_of_group(self.config.broker_id):
            return []
        self.number += 1
        self.request = self.number
        return [Send(record.leader, self._envelope(self._question()))]

    def _question(self) -> EpochsRequest:
        return EpochsRequest(self.request, self.table, self.end)

    def _on_epochs(self, reply: EpochsReply) -> list[Action]:
        # Numbers begin anew with each process, so the number alone does not tell a reply to an earlier start.
        if self.request <= 0 or reply.number != self.request or reply.session != self.session:
            return []
        if self.role is not Role.TRUNCATING:
            return []
        if self.writing is not None:  # of the epoch before; its end comes first
            return []
        if self._stands_unclean():  # it may be elected already, for what its log has now
            return []
        # Until the writer is done no other reply may make a second cut: it would be worked out from a log that is
        # shorter by then.
        self.request = CUT_UNDER_WAY
        cut = self._cut_end(reply.table, reply.end)
        unclean = self._unclean_since(self.table.last_epoch)
        # Before the cut, not after it: what is committed must still be there when its loss is noticed (I1).
        self._compare_committed(reply.table.start if cut is None else cut)
        if cut is None:
            return [Reset(reply.table.start, unclean)]
        # It is of the place that the leader worked out from this log; should that be another one, it says nothing.
        last = reply.last if reply.last is not None and reply.last.end == cut else None
        return [Truncate(cut, reply.table.start, unclean, last)]

    def _compare_committed(self, cut: int) -> None:
        """The log of this epoch's leader has what is below `cut`. It must have all that is committed, unless it came to
        lead by an unclean election, or after one (R20): then nothing is known to be committed until it says so, as
        after a start. Not even what both have: the leader may not have synced it, and may come back without.
        """
        if self._may_lose_committed():
            self.hw = 0
        elif cut < self.hw:
            raise InvariantBroken(f"I1: committed {self.hw}, but the leader of epoch {self.max_epoch} has only {cut}")
        self.hw_epoch = self.max_epoch

    def _truncated(self, end: int) -> list[Action]:
        if not self.table.start <= end <= self.end:
            raise InvariantBroken(f"the writer cut at {end} a log from {self.table.start} to {self.end}")
        self.table, self.end, self.durable = self.table.cut(end), end, min(self.durable, end)
        return self._matched()

    def _emptied(self, start: int) -> list[Action]:
        self.table, self.end, self.durable = EpochTable(start), start, start
        return self._matched()

    def _matched(self) -> list[Action]:
        self.request = 0
        # A higher epoch came while the writer cut: its leader's log is another one, and is matched anew.
        if self.role is not Role.TRUNCATING:
            return []
        self._move(Role.FETCHING)
        return self._report(wants=True, again=True)

    def _report(self, *, wants: bool, again: bool = False) -> list[Action]:
        """Say how far the log is (R5), and with `again` that what was sent behind what came is missing."""
        record = self.followed
        if self.role is not Role.FETCHING or record is None or record.epoch != self.max_epoch:
            return []
        if not self._is_of_group(self.config.broker_id):
            return []  # it was removed, and no leader would listen
        ahead = self.config.ahead
        queued = self._received_end() - self.end if ahead else 0
        self.reported = self.end
        progress = FollowerProgress(
            self.end, min(self._confirmed_end(), self.end), wants, ahead, queued, again and ahead > 0, self.has_room
        )
        return [Send(record.leader, self._envelope(progress))]

    def _on_records(self, records: Records) -> list[Action]:
        if self.role is not Role.FETCHING:
            return []
        received, is_empty = self._received_end(), records.end == records.start
        if records.start > received and is_empty and records.previous_epoch == 0:
            return self._match_again()  # the leader's log begins there: it no longer has what comes next
        if not self._is_next(records):
            # Also of records that overlap: the leader sent them when it heard `again`, while those that came were on
            # their way. It takes them for received, and would send no more until the repeat.
            return self._miss(received) if records.end > received else []  # or it is a repeat
        if records.previous_epoch != self._last_epoch(records):
            return self._match_again()
        # Only here the records fit the own log, so this is the leader of the epoch and it counts this copy as it is.
        self.rank = records.rank
        is_busy = self.writing is not None
        if is_empty:
            learned = self._learn_committed(records.committed)
            return learned if is_busy else [*learned, *self._report(wants=True)]
        # Records without an epoch are of a leader's log with more epochs than its table. They are taken, by a log that
        # knows of no epoch either: should it have to be matched before one is known, it begins anew.
        if not is_busy:
            self.writing = records
            return [AppendRecords(records)]
        # What does not fit is dropped without a word: it is missed by the next records, or by the repeat, and sent
        # again (R21).
        if received - self.end < self.config.ahead and len(self.queued) < QUEUED_MAX:
            self.queued = (*self.queued, records)
        return []

    def _miss(self, received: int) -> list[Action]:
        """Records came that do not begin where what was received ends: ask once for those that do, all that were on
        their way may come behind them.
        """
        if self.gap_at == received:
            return []
        self.gap_at = received
        return self._report(wants=self.writing is None, again=True)

    def _match_again(self) -> list[Action]:
        self._move(Role.TRUNCATING)
        return self._request_epochs()

    def _last_epoch(self, records: Records) -> int:
        """Epoch of the record before; of an empty log that begins later, only the leader knows it."""
        before = self.queued[-1] if self.queued else self.writing
        if before is not None:
            return before.epochs[-1].epoch if before.epochs else before.previous_epoch
        if self.end > self.table.start:
            return self.table.last_epoch
        return records.previous_epoch if self.end else 0

    def _learn_committed(self, committed: int) -> list[Action]:
        # The leader may have committed more than has come: only what this log has, matched with the leader's, is known
        # to it.
        end = min(committed, self.end)
        if end <= self.hw:
            return []
        self._raise_hw(end)
        return [CommitAdvanced(end)]

    def _not_copied(self) -> list[Action]:
        self.writing = None
        self._forget_queued()
        return []

    def _copied(self, end: int, *, synced: bool) -> list[Action]:
        records, self.writing = self.writing, None
        if records is None or not records.start < end <= records.end or records.start != self.end:
            raise InvariantBroken(f"the writer copied to {end}, asked for {records}, and the log ended at {self.end}")
        table = self.table
        # A log that was begun at the leader's snapshot has no record before this one; its epoch is the leader's word,
        # and is needed when the log is matched next (R4).
        if not table.entries and records.previous_epoch:
            table = table.appended(records.previous_epoch, records.start)
        for entry in records.epochs:
            # Only whole records were written, perhaps not all: an epoch whose first record is missing is not in this
            # log.
            if entry.offset < end:
                table = table.appended(entry.epoch, entry.offset)
        self.table = table
        self.end = end
        if synced:
            self.durable = end
        if self.role is not Role.FETCHING:
            return []
        # `end` may be below `records.committed`; see there.
        learned = self._learn_committed(records.committed)
        if not self.queued or end < records.end:
            self._forget_queued()
            return [*learned, *self._report(wants=True, again=end < records.end)]
        self.writing, *rest = self.queued
        self.queued = tuple(rest)
        # Each report is a message and a commit round of the leader, so in between only what moves a commit or opens a
        # window.
        due = synced or end - self.reported >= self.config.ahead // REPORTS
        return [*learned, *(self._report(wants=False) if due else []), AppendRecords(self.writing)]

    # Signs of life.

    def _read_again(self, now_ms: int) -> None:
        """The record was read and has not changed. If it could not be read for a while, its leader could not renew it
        either, perhaps: then the link says whether it lives, until now. Of what it does not renew after that each look
        counts, however long after the last one, so a leader that alone has lost the way to the record is replaced.
        """
        blind_ms = now_ms - self.read_ms - self.config.timing.blind_ms
        self.read_ms = now_ms
        if blind_ms > 0:
            self.again_ms = now_ms if self.again_ms == NEVER else self.again_ms + blind_ms

    def _lived_ms(self) -> int:
        """When the leader last gave a sign of life: in the record, or to this copy while the record was away."""
        return max(self.sign_ms, min(self.again_ms, self.leader_ms))

    def unchanged_ms(self) -> int:
        """For how long the record was seen not to change. Grows only while it can be read."""
        return max(0, self.read_ms - max(self.changed_ms, self.again_ms))

    def _pass_time(self, now_ms: int) -> None:
        """If this process did not run for a while, nobody was silent meanwhile: what came waits to be read, and links
        that broke say nothing of who is dead, since all may have been paused together.
        """
        paused_ms = now_ms - self.ticked_ms - self.config.timing.pause_ms
        self.ticked_ms = now_ms
        if paused_ms <= 0:
            return

        def moved(ms: int) -> int:
            return min(now_ms, ms + paused_ms)

        self.heard = {id_: moved(ms) for id_, ms in self.heard.items()}
        self.caught_up = {pair: (end, moved(ms)) for pair, (end, ms) in self.caught_up.items()}
        self.sign_ms = moved(self.sign_ms)
        if self.leader_ms != NEVER:
            self.leader_ms = moved(self.leader_ms)
