"""Scans of a task's ranges: blocks of brokers become Arrow batches, also across failures of brokers.

Problem: the plan fixed the ranges, and Spark requires exactly their messages. But a task runs later: its broker may
have restarted, another copy may lead now, retention may have deleted the start of a range, or the topic may have been
created again with other messages at the same offsets. None of this may remain unnoticed.

Idea: one position, `_next`, is the first offset that Spark does not have yet. A scan is a call that returns blocks from
there on. If it ends early for any reason, `_recover` decides: scan again at `_next`, count a loss, leave out the rest,
or fail. The call contains the uid of the queue's content, so a broker with other messages refuses it.

Invariants:
- Without a filter, a block must begin at `_next` and be dense: a gap in the offsets is data loss. With a filter,
  brokers leave offsets out. A block always ends after `_next` and not after `_end`. So each message is passed to Spark
  at most once per task, and none is left out silently.
- Only a leader decides that messages are gone. A refusal or a gap from a follower sends the scan to another copy.
- With failOnDataLoss a loss raises DataLost, which is not retried. Without it, the loss is counted exactly once: then
  `_next` or `_end` moves past the lost messages.
- A failure is retried until `readTimeoutMs` passed without a block. Only batch reads may then leave the rest out
  (`leave_out`): the checkpoint of a stream would move past messages that still exist.
- After a complete range, the mark of its last message is compared: a queue that lost its end and grew again has another
  message there (decision 45).

Example: a range is [1000, 3000). Blocks up to 1,600 and 2,200 arrive, then the broker restarts; the next scan starts at
2,200. Meanwhile retention has deleted everything below 2,500, so the leader refuses. Its bounds are [2500, 9000): with
failOnDataLoss the task fails; without it, 300 messages are counted as lost, and the next scan starts at 2,500.

References: HA-9 (reads from followers); decisions 34 (stored records, checksums), 45 (marks), 49 (sockets) and 71.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from evenq import errors
from evenq.client.core.reading.read_places import ReadPlace, ReadPlaces
from evenq.columns.arrow_schema import OutputColumn, needs_head, needs_system
from evenq.columns.blocks import Block, parse, records_of, tag_set, with_tags
from evenq.columns.message_columns import batch_of
from evenq.columns.verifying import RecordChecksumMismatch, can_verify
from evenq.model.queue import MessageQueue
from evenq.runtime.allocator import keep_freed_memory
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import SystemClock
from pyspark_evenq.brokers import cluster, connection
from pyspark_evenq.options.source import Format, ReadOptions
from pyspark_evenq.plan.losses import counted
from pyspark_evenq.plan.marks import Place
from pyspark_evenq.plan.offsets import Uids, place_of
from pyspark_evenq.plan.planner import Bounds, OffsetRange, Trimmed
from pyspark_evenq.plan.positions import DataLost, loss_of
from pyspark_evenq.rows.collector import freeze_libraries

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
SCAN_MS = 15_000
"""Maximum of one scan: it detects a broker that hangs, and a slow reader continues with another scan."""
ANY_SCAN_MS = 5_000
"""The same if another copy may answer instead."""
_monotonic_ms = SystemClock().monotonic_ms


class ScanPlaces:
    """The copies for the scans of one range: the leader of its broker, and with readFrom=any its followers (HA-9).

    The leader is called first. A follower is read while the leader does not answer, or after it reported that the range
    begins far behind the end of its log, by the rules of the SDK (`evenq.client.core.reading.read_places`). Routes are
    queried before a call to a leader that failed or is not known.
    """

    def __init__(
        self, queue: MessageQueue, endpoints: Sequence[str], *, leader: str, followers: Sequence[str], any_copy: bool
    ) -> None:
        self.leader = leader
        """Its last address; empty: not known, so the route is queried."""
        self._queue, self._endpoints = queue, endpoints
        self._followers = tuple(followers)
        self._copies = ReadPlaces() if any_copy else None
        self._is_old = not leader
        """True if the route must be queried before the leader is called."""

    @property
    def scan_ms(self) -> int:
        return SCAN_MS if self._copies is None else ANY_SCAN_MS

    def next(self) -> ReadPlace:
        """Returns the copy to scan now. Raises as `find`, and ConnectionFailed if no copy can be called."""
        if self._copies is None:
            if self._is_old:
                self.find()
            return ReadPlace(self.leader, leads=True)
        place = self._copies.next(self.leader, self._followers, _monotonic_ms())
        if self._is_old and (place is None or place.leads):
            try:
                self.find()
            except errors.Error as failure:
                if place is None and not self._followers:
                    raise
                log.info("%s: the route could not be refreshed: %s", self._queue, failure)
            place = self._copies.next(self.leader, self._followers, _monotonic_ms())
        if place is None:
            name = self._queue.broker_name
            raise errors.ConnectionFailed(
                f"neither the leader of broker {name} nor a follower answers for {self._queue}"
            )
        return place

    def find(self) -> None:
        """Queries the route. Raises TopicNotFound, and ConnectionFailed if no live broker serves the queue."""
        located = cluster.locate(self._endpoints, [self._queue.topic]).must_exist()
        # Otherwise the old ones: a route without the gone leader lacks its followers just when they are needed.
        self._followers = located.followers_of(self._queue) or self._followers
        address = located.addresses.get(self._queue, "")
        if not address:
            why = located.away.get(self._queue, "the route does not name it")
            raise errors.ConnectionFailed(f"no broker serves {self._queue} now: {why}")
        self.leader, self._is_old = address, False

    def answered(self, place: ReadPlace, *, far_behind: bool) -> bool:
        """Records a block from a copy. Returns True if the next one should come from another copy."""
        if self._copies is None:
            return False
        now_ms = _monotonic_ms()
        self._copies.answered(place, empty=False, far_behind=far_behind, now_ms=now_ms)
        return far_behind and place.leads and self._copies.next(self.leader, self._followers, now_ms) != place

    def refused(self) -> None:
        """Records that the leader refused: it is called again, after a query of the route."""
        self._is_old = True

    def failed(self, place: ReadPlace | None) -> bool:
        """Records that a copy, or none, did not answer. True: pause, because the next call goes to the same copy."""
        if place is None or place.leads:
            self._is_old = True
        if self._copies is None or place is None:
            return True
        now_ms = _monotonic_ms()
        self._copies.failed(place, now_ms)
        return self._copies.next(self.leader, self._followers, now_ms) in {None, place}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    part: OffsetRange
    address: str
    """Address of the broker, or of its leader; empty: not known."""
    followers: tuple[str, ...] = ()
    """Addresses of the other copies of its log; called only with readFrom=any."""
    uid: str = ""
    """Id of the queue's content when the range was planned (`offsets.Uids`); empty: not known."""
    mark: str = ""
    """Mark of the last message when the range was planned (`offsets.OffsetMark`); empty: not known."""


class ScanTask(InputPartition):
    """The ranges of one Spark task."""

    def __init__(self, pieces: list[_Piece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


def scan_tasks(
    planned: list[list[OffsetRange]], located: cluster.Located, uids: Uids, marks: Mapping[Place, str] | None = None
) -> list[ScanTask]:
    """Returns the tasks that Spark sends to its workers. A worker queries an address that is not known now. `marks`: of
    the messages before the ends of some ranges, compared after the read.
    """
    route = located.addresses

    def piece(part: OffsetRange) -> _Piece:
        queue, mark = part.queue, (marks or {}).get((part.queue, part.end), "")
        address, followers = route.get(queue, ""), located.followers_of(queue)
        return _Piece(part=part, address=address, followers=followers, uid=uids.get(place_of(queue), ""), mark=mark)

    return [ScanTask([piece(part) for part in ranges]) for ranges in planned]


def read(
    partition: InputPartition, options: ReadOptions, columns: tuple[OutputColumn, ...], *, leave_out: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one task. `leave_out`: counts and skips ranges of silent brokers; never for streams."""
    if not isinstance(partition, ScanTask):  # Spark's own partition, of a query without tasks
        return
    connection.sign_with(options.credentials())
    connection.secure_with(options.tls())
    keep_freed_memory()  # of blocks: each is received, copied and freed
    given_up: set[str] = set()
    try:
        for piece in partition.pieces:
            scan = _RangeScan(piece, options, columns, given_up if leave_out else None)
            yield from scan.batches()
            if piece.mark and scan.whole:
                scan.compare(piece.mark)
    finally:
        connection.end_streams()
    if options.gc_freeze:
        freeze_libraries()


class _RangeScan:
    """The scans of one range, with any number of connections."""

    def __init__(
        self, piece: _Piece, options: ReadOptions, columns: tuple[OutputColumn, ...], given_up: set[str] | None
    ) -> None:
        self._given_up = given_up
        """Brokers that the task no longer waits for; None: a broker that does not answer is an error."""
        self._uid = piece.uid
        self._queue: MessageQueue = piece.part.queue
        self._next = piece.part.start
        """The first offset that Spark does not have and that is not counted as lost. Only a damaged block moves it
        back, to the block's first offset."""
        self._end = self._planned_end = piece.part.end
        """`_end` only falls, for messages that are counted as lost or left out; `_planned_end` never changes."""
        self._places = ScanPlaces(
            self._queue, options.endpoints, leader=piece.address, followers=piece.followers, any_copy=options.any_copy
        )
        self._place: ReadPlace | None = None
        """Copy of the current or last scan; None: `ScanPlaces` found none."""
        self._options = options
        self._columns = columns
        self._tags = tag_set(options.tags)
        self._parts: cluster.RecordParts | None = None
        """Parts of stored records to request; None: messages, because brokers filter only those."""
        if options.format is not Format.MESSAGE and not self._tags and not options.sql_filter:
            self._parts = cluster.RecordParts(needs_head(columns), needs_system(columns), verifies=can_verify())
        self._backoff = Backoff(random.Random(), first_ms=50, max_ms=1_000)  # noqa: S311  jitter
        self._failing_since = 0.0
        """Monotonic time of the first failure since the last block; 0: none."""
        self._moved = False
        """True if the current scan returned a block."""
        self._moves_on = False
        """True if the current scan was ended to continue at another copy."""
        self._refusal = ""
        """The last error of a follower, for the final error text."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._next < self._end:
            failure: errors.Error
            try:
                yield from self._one_connection()
                if self._next >= self._end:
                    return
                if self._moves_on:  # not a failure: another copy continues
                    continue
                failure = errors.IllegalOffset(f"the scan of {self._queue} ended at {self._next}, before {self._end}")
            except DataLost:
                raise
            except RecordChecksumMismatch as damaged:
                self._ask_to_check(damaged)
                continue
            except errors.Error as raised:
                failure = raised
            self._recover(failure)

    @property
    def whole(self) -> bool:
        return self._next == self._planned_end

    def compare(self, mark: str) -> None:
        """Compares the last message with its mark at the planning of the read. A broker that no longer answers has sent
        the whole range, which counts. Raises DataLost, unless failOnDataLoss is off.
        """
        position = self._queue, self._planned_end
        try:
            if cluster.marks(self._leader(), [position])[position] in {"", mark}:
                return
            bounds = self._bounds()
        except errors.Error as failure:
            log.warning("%s: the end of the range was not compared: %s", self._queue, failure)
            return
        self._lost(Trimmed(queue=self._queue, position=self._planned_end, bounds=bounds, regrown=True), 0)

    def _one_connection(self) -> Iterator[pa.RecordBatch]:
        self._moved = self._moves_on = False
        self._place = None
        place = self._place = self._places.next()
        blocks = cluster.scan(
            place.address,
            OffsetRange(queue=self._queue, start=self._next, end=self._end),
            uid=self._uid,
            tags=self._options.tags,
            sql=self._options.sql_filter,
            group=self._options.group,
            block_bytes=self._options.block_bytes,
            timeout_ms=min(self._options.read_timeout_ms, self._places.scan_ms),
            parts=self._parts,
            any_copy=self._options.any_copy,
        )
        try:
            for encoded in blocks:
                block = parse(encoded)
                batch, far_behind = self._batch(block), block.far_behind
                del encoded, block  # frees its memory for the next one
                if batch is not None:
                    yield batch
                self._moves_on = self._places.answered(place, far_behind=far_behind)
                if self._moves_on:
                    return
        finally:
            blocks.close()  # immediately, because the next scan of the task may use the connection

    def _batch(self, block: Block) -> pa.RecordBatch | None:
        """Accepts a block and returns its rows; None: it has none."""
        from evenq.wire.status import check

        if block.status is not None:
            check(block.status)
        self._accept(block)
        records = records_of(block, self._queue)
        if records is not None:
            try:
                return records.batch(self._columns)
            except RecordChecksumMismatch:
                self._next = records.first_offset  # the block is read again, checked by the broker
                raise
        if self._options.format is Format.LOG:
            raise errors.Unsupported(
                f"the broker at {self._place.address if self._place else ''} does not support format=log; use "
                "format=auto or a newer broker"
            )
        messages = with_tags(block.messages, self._tags)
        return batch_of(messages, self._queue, self._columns) if messages else None

    def _ask_to_check(self, damaged: RecordChecksumMismatch) -> None:
        """Prepares another scan with checksums compared by the broker, whose error contains the damaged file."""
        if self._parts is None or not self._parts.verifies:  # the broker has checked them already
            raise damaged
        log.warning("%s: reading again, with checksums compared by the broker, after: %s", self._queue, damaged)
        self._parts = self._parts._replace(verifies=False)

    def _accept(self, block: Block) -> None:
        """Checks that the block continues the last one, then advances `_next`."""
        # With a filter brokers leave messages out, so a gap in the offsets is a loss only without one.
        if not self._tags and not self._options.sql_filter:
            dense = block.first_offset == self._next and block.next_offset - block.first_offset == block.count
            if not dense:
                if self._place is not None and not self._place.leads:  # only the leader decides on a loss
                    raise errors.IllegalOffset(
                        f"the follower at {self._place.address} has no messages of {self._queue} from {self._next} on"
                    )
                if block.records is not None:
                    there = max(0, block.next_offset - max(block.first_offset, self._next))
                else:
                    there = sum(self._next <= message.system_properties.queue_offset for message in block.messages)
                gone = Trimmed(queue=self._queue, position=self._next, bounds=self._bounds())
                self._lost(gone, block.next_offset - self._next - there)
        if block.next_offset <= self._next or block.next_offset > self._end:
            raise errors.InternalError(
                f"the block of {self._queue} that was to begin at {self._next} ends at {block.next_offset}"
            )
        self._next = block.next_offset
        self._moved = True
        self._failing_since = 0.0
        self._backoff.reset()

    def _recover(self, failure: errors.Error) -> None:
        """Prepares the next scan after a failure, and waits; or raises it."""
        # Case 1: a slow reader, not a failure. Spark takes rows more slowly than the scan's time limit allows.
        if isinstance(failure, errors.RequestTimeout) and self._moved:
            return
        now, place = time.monotonic(), self._place
        follows = place is not None and not place.leads
        self._failing_since = self._failing_since or now
        # Case 2: the topic was created again or deleted. The range's messages are lost.
        if not follows and self._may_be_anew(failure) and self._was_made_anew(failure):
            return
        over = now - self._failing_since > self._options.read_timeout_ms / 1000
        silent = follows or isinstance(failure, errors.ConnectionFailed | errors.RequestTimeout)
        # Case 3: no copy answered in time, and the read may leave its messages out.
        if silent and self._given_up is not None and (over or self._queue.broker_name in self._given_up):
            # For the whole task: its other ranges of this broker do not wait `read_timeout_ms` each.
            self._given_up.add(self._queue.broker_name)
            counted.left_out({self._queue: self._end - self._next}, failure)
            self._end = self._next
            return
        if follows:
            self._refusal = failure.message
        # Case 4: no copy answered in time, and that is an error.
        if over and silent and self._refusal:
            raise errors.ConnectionFailed(
                f"neither the leader of broker {self._queue.broker_name} nor a follower returns {self._queue} from "
                f"offset {self._next} on; the last error: {failure.message}; of a follower: {self._refusal}"
            ) from failure
        refused = isinstance(failure, errors.IllegalOffset) and not follows
        passes = follows or failure.retryable or failure.refresh_route or refused
        # Case 5: the time is used up, or a retry cannot help.
        if over or not passes:
            raise failure
        # Case 6: the leader does not have these offsets. Its bounds show whether they are lost.
        if refused:
            # If this fails, so does the next scan, with the reason.
            with contextlib.suppress(errors.ConnectionFailed, errors.RequestTimeout, errors.TopicNotFound):
                self._skip_what_is_gone()
        log.warning("%s: reading continues at offset %d after: %s", self._queue, self._next, failure)
        # A leader that refuses is reachable and decides, so it is called again, and no follower in its place.
        if refused:
            self._places.refused()
        if refused or self._places.failed(place):
            time.sleep(self._backoff.next_ms() / 1000)

    def _skip_what_is_gone(self) -> None:
        """Counts offsets of the range that the leader does not have, and removes them from the range."""
        bounds = self._bounds()
        if self._uid and bounds.uid and bounds.uid != self._uid:
            return  # created again: the next scan is refused, which is case 2 of `_recover`
        if bounds.low > self._next:
            following = min(bounds.low, self._end)
            self._lost(Trimmed(queue=self._queue, position=self._next, bounds=bounds), following - self._next)
            self._next = following
        elif bounds.high < self._end:
            end = max(bounds.high, self._next)
            self._lost(Trimmed(queue=self._queue, position=self._end - 1, bounds=bounds), self._end - end)
            self._end = end

    @staticmethod
    def _may_be_anew(failure: errors.Error) -> bool:
        """Returns whether the error may mean another uid, a deleted topic, or a topic with fewer queues."""
        refused = errors.PreconditionFailed | errors.TopicNotFound | errors.BadRequest
        return isinstance(failure, refused) and not isinstance(failure, errors.IllegalOffset)

    def _was_made_anew(self, failure: errors.Error) -> bool:
        """Counts the rest as lost if the topic was deleted or created again. False: the route was old, or not known."""
        bounds = Bounds(low=0, high=0)
        try:
            self._places.find()
            bounds = self._bounds()
        except (errors.TopicNotFound, errors.BadRequest):
            pass
        except (errors.ConnectionFailed, errors.RequestTimeout):
            return False
        else:
            if bounds.uid == self._uid or not (self._uid and bounds.uid):
                return False
        self._lost(
            Trimmed(queue=self._queue, position=self._next, bounds=bounds, anew=True), self._end - self._next, failure
        )
        self._end = self._next
        return True

    def _leader(self) -> str:
        if not self._places.leader:
            raise errors.ConnectionFailed(f"the leader of broker {self._queue.broker_name} is not known now")
        return self._places.leader

    def _bounds(self) -> Bounds:
        state = cluster.query(self._leader(), [self._queue]).get(self._queue)
        return state.bounds if state else Bounds(low=0, high=0)

    def _lost(self, gone: Trimmed, messages: int, cause: errors.Error | None = None) -> None:
        if self._options.fail_on_data_loss:
            raise loss_of(gone) from cause
        counted.lost(self._queue, messages, loss_of(gone))
