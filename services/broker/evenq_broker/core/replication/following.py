"""A follower: matches its log with the leader's, cuts what differs, copies the rest, and says how far it is.

One request for epochs and one copy are under way at a time; both are repeated by `tick` if nothing comes back. A reply
counts only for the request that waits for it: a late one shows a shorter log (see `EpochsReply`). Records count only if
they begin where the log ends and the record before them has the same epoch; else the logs are matched again.
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
from evenq_broker.core.replication.rules import LEADING, InvariantBroken, Role, Rules

__all__ = ["Follower"]

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
        self._move(Role.ELECTED if self._is_own_attempt(record) else Role.FENCED)
        self.persisting = record.epoch
        self.parked = {}
        return [*actions, PersistEpoch(record.epoch)]

    def _follow(self) -> list[Action]:
        """The epoch is synced and somebody else leads it: match the logs, if it is known who."""
        record = self.record
        if record is None or record.epoch != self.max_epoch or record.leader in {NO_LEADER, self.config.broker_id}:
            if self.role is not Role.FENCED:
                self._move(Role.TRUNCATING)
            return [ReadRecord()]
        self._move(Role.TRUNCATING)
        return self._request_epochs()

    def _request_epochs(self) -> list[Action]:
        record = self.record
        if record is None or record.leader in {NO_LEADER, self.config.broker_id} or record.epoch != self.max_epoch:
            return []
        if self.request == CUT_UNDER_WAY or not self._is_of_group(self.config.broker_id):
            return []
        self.number += 1
        self.request = self.number
        return [Send(record.leader, self._envelope(EpochsRequest(self.request)))]

    def _on_epochs(self, reply: EpochsReply) -> list[Action]:
        if self.request <= 0 or reply.number != self.request or reply.session != self.session:
            return []
        if self.role is not Role.TRUNCATING:
            return []
        if self.writing is not None:  # of the epoch before; its end comes first
            return []
        self.request = CUT_UNDER_WAY
        cut = self._cut_end(reply.table, reply.end)
        unclean = self._unclean_since(self.table.last_epoch)
        self._compare_committed(reply.table.start if cut is None else cut)
        if cut is None:
            return [Reset(reply.table.start, unclean)]
        return [Truncate(cut, reply.table.start, unclean)]

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
        if self.role is not Role.TRUNCATING:
            return []
        self._move(Role.FETCHING)
        return self._report(wants=True)

    def _report(self, *, wants: bool) -> list[Action]:
        """Say how far the log is (R5)."""
        record = self.record
        if self.role is not Role.FETCHING or record is None or record.epoch != self.max_epoch:
            return []
        if not self._is_of_group(self.config.broker_id):
            return []  # it was removed, and no leader would listen
        progress = FollowerProgress(self.end, min(self._confirmed_end(), self.end), wants)
        return [Send(record.leader, self._envelope(progress))]

    def _on_records(self, records: Records) -> list[Action]:
        if self.role is not Role.FETCHING or self.writing is not None:
            return []
        if records.start > self.end and records.start == records.end:  # the leader no longer has what comes next
            return self._match_again()
        if records.start != self.end:
            return []  # a repeat, or one that overtook another: what is missing is asked for again
        if records.previous_epoch != self._last_epoch(records):
            return self._match_again()
        self.rank = records.rank
        if records.end == records.start:
            return [*self._learn_committed(records.committed), *self._report(wants=True)]
        if not records.epochs and records.previous_epoch == 0:
            return []  # nobody could say later who wrote them
        self.writing = records
        return [AppendRecords(records)]

    def _match_again(self) -> list[Action]:
        self._move(Role.TRUNCATING)
        return self._request_epochs()

    def _last_epoch(self, records: Records) -> int:
        """Epoch of the record before; of an empty log that begins later, only the leader knows it."""
        if self.end > self.table.start:
            return self.table.last_epoch
        return records.previous_epoch if self.end else 0

    def _learn_committed(self, committed: int) -> list[Action]:
        end = min(committed, self.end)
        if end <= self.hw:
            return []
        self._raise_hw(end)
        return [CommitAdvanced(end)]

    def _not_copied(self) -> list[Action]:
        self.writing = None
        return []

    def _copied(self, end: int, *, synced: bool) -> list[Action]:
        records, self.writing = self.writing, None
        if records is None or not records.start < end <= records.end or records.start != self.end:
            raise InvariantBroken(f"the writer copied to {end}, asked for {records}, and the log ended at {self.end}")
        table = self.table
        if not table.entries and records.previous_epoch:
            table = table.appended(records.previous_epoch, records.start)
        for entry in records.epochs:
            if entry.offset < end:
                table = table.appended(entry.epoch, entry.offset)
        self.table = table
        self.end = end
        if synced:
            self.durable = end
        if self.role is not Role.FETCHING:
            return []
        return [*self._learn_committed(records.committed), *self._report(wants=True)]
