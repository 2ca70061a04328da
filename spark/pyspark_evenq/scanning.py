"""How a task reads its ranges: blocks in, Arrow batches out, whatever happens to the broker meanwhile.

Called in Spark's workers by both readers. Always true: a message is handed to Spark at most once per task and none is
left out; after a broken connection the scan goes on at the next unread offset. A gap is data loss and ends the task,
unless failOnDataLoss is off.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from evenq import errors
from evenq.client.core.reading.read_places import ReadPlace
from evenq.model.queue import MessageQueue
from evenq.runtime.allocator import keep_freed_memory
from evenq.runtime.backoff import Backoff
from pyspark_evenq import cluster, connection
from pyspark_evenq.arrow_schema import OutputColumn, needs_head, needs_system
from pyspark_evenq.blocks import Block, parse, records_of, tag_set, with_tags
from pyspark_evenq.collector import freeze_libraries
from pyspark_evenq.losses import counted
from pyspark_evenq.marks import Place
from pyspark_evenq.message_columns import batch_of
from pyspark_evenq.offsets import Uids, place_of
from pyspark_evenq.options import Format, ReadOptions
from pyspark_evenq.planner import Bounds, OffsetRange, Trimmed
from pyspark_evenq.positions import DataLost, loss_of
from pyspark_evenq.scan_places import ScanPlaces
from pyspark_evenq.verifying import RecordChecksumMismatch, can_verify

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ScanTask", "read", "scan_tasks"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    part: OffsetRange
    address: str
    """Of the broker, or its leader; empty: not known."""
    followers: tuple[str, ...] = ()
    """Where the other copies of its log answer; asked with readFrom=any only."""
    uid: str = ""
    """What the offsets counted when the range was planned; empty: not known."""
    mark: str = ""
    """What the last message was when it was planned (`offsets.OffsetMark`); empty: not known."""


class ScanTask(InputPartition):
    """The ranges of one Spark task."""

    def __init__(self, pieces: list[_Piece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


def scan_tasks(
    planned: list[list[OffsetRange]], located: cluster.Located, uids: Uids, marks: Mapping[Place, str] | None = None
) -> list[ScanTask]:
    """What Spark sends to its workers. An address that is not known now is asked for by the worker. `marks`: of the
    messages before the ends of some ranges, which are compared when they have been read.
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
    """The rows of one task. Spark also calls it with a partition of its own, when there is nothing to read.

    `leave_out`: when a broker does not answer for `read_timeout_ms`, count what it has of the task and go on without;
    a stream never does, because its checkpoint would pass over messages that are still there.
    """
    if not isinstance(partition, ScanTask):
        return
    connection.sign_with(options.credentials())
    connection.secure_with(options.tls())
    keep_freed_memory()  # of blocks: each is had, copied and let go
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
    """One range, with as many connections as it takes."""

    def __init__(
        self, piece: _Piece, options: ReadOptions, columns: tuple[OutputColumn, ...], given_up: set[str] | None
    ) -> None:
        """`given_up`: names of brokers that are waited for no more; None: a broker that does not answer is an error."""
        self._given_up = given_up
        self._uid = piece.uid
        self._queue: MessageQueue = piece.part.queue
        self._next = piece.part.start
        self._end = self._planned_end = piece.part.end
        self._places = ScanPlaces(
            self._queue, options.endpoints, leader=piece.address, followers=piece.followers, any_copy=options.any_copy
        )
        self._place: ReadPlace | None = None
        """Of the present scan, or the last one."""
        self._options = options
        self._columns = columns
        self._tags = tag_set(options.tags)
        self._parts: cluster.RecordParts | None = None
        if options.format is not Format.MESSAGE and not self._tags and not options.sql_filter:
            self._parts = cluster.RecordParts(needs_head(columns), needs_system(columns), verifies=can_verify())
        self._backoff = Backoff(random.Random(), first_ms=50, max_ms=1_000)  # noqa: S311  jitter
        self._failing_since = 0.0
        self._moved = False
        """Whether the present scan gave a block."""
        self._moves_on = False
        """Whether it was left for another copy."""
        self._refusal = ""
        """What a follower said last that gave nothing."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._next < self._end:
            failure: errors.Error
            try:
                yield from self._one_connection()
                if self._next >= self._end:
                    return
                if self._moves_on:
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
        """Whether the range was read to the end that was planned."""
        return self._next == self._planned_end

    def compare(self, mark: str) -> None:
        """Whether the last message is still the one that was there when the read was planned. A broker that does not
        answer any more has sent all of the range. Raises DataLost, unless failOnDataLoss is off.
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
                del encoded, block  # its memory is for the next one
                if batch is not None:
                    yield batch
                self._moves_on = self._places.answered(place, far_behind=far_behind)
                if self._moves_on:
                    return
        finally:
            # At once, not when it is collected: the call would hold its connection, which the next scan of the task
            # may use.
            blocks.close()

    def _batch(self, block: Block) -> pa.RecordBatch | None:
        """The rows of a block, which goes on where the last one ended; None: it has none."""
        from evenq.wire.status import check

        if block.status is not None:
            check(block.status)
        self._accept(block)
        records = records_of(block, self._queue)
        if records is not None:
            try:
                return records.batch(self._columns)
            except RecordChecksumMismatch:
                self._next = records.first_offset
                raise
        if self._options.format is Format.LOG:
            raise errors.Unsupported(
                f"the broker at {self._place.address if self._place else ''} sends no records as they are stored; use "
                "format=auto or a newer one"
            )
        messages = with_tags(block.messages, self._tags)
        return batch_of(messages, self._queue, self._columns) if messages else None

    def _ask_to_check(self, damaged: RecordChecksumMismatch) -> None:
        """Read the block once more with checksums compared by the broker, which knows the file if it is the disk."""
        if self._parts is None or not self._parts.verifies:
            raise damaged
        log.warning("%s: asking the broker to check its records after: %s", self._queue, damaged)
        self._parts = self._parts._replace(verifies=False)

    def _accept(self, block: Block) -> None:
        """Check that the block goes on where the last one ended, then move on."""
        # With a filter brokers leave messages out, so only without one a hole in the offsets is a loss.
        if not self._tags and not self._options.sql_filter:
            dense = block.first_offset == self._next and block.next_offset - block.first_offset == block.count
            if not dense:
                if self._place is not None and not self._place.leads:  # its leader says whether they are gone
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
        """Wait before the next connection, or give up. A follower knows less than its leader: whatever it refuses is
        asked elsewhere, and nothing is lost by its word.
        """
        if isinstance(failure, errors.RequestTimeout) and self._moved:
            return  # nothing is wrong: the rows go out more slowly than they come in
        now, place = time.monotonic(), self._place
        follows = place is not None and not place.leads
        self._failing_since = self._failing_since or now
        if not follows and self._may_be_anew(failure) and self._was_made_anew(failure):
            return
        over = now - self._failing_since > self._options.read_timeout_ms / 1000
        silent = follows or isinstance(failure, errors.ConnectionFailed | errors.RequestTimeout)
        if silent and self._given_up is not None and (over or self._queue.broker_name in self._given_up):
            # Kept for the whole task: its other ranges of this broker do not wait `read_timeout_ms` each.
            self._given_up.add(self._queue.broker_name)
            counted.left_out({self._queue: self._end - self._next}, failure)
            self._end = self._next
            return
        if follows:
            self._refusal = failure.message
        if over and silent and self._refusal:
            raise errors.ConnectionFailed(
                f"neither the leader of broker {self._queue.broker_name} nor a follower gives {self._queue} from "
                f"offset {self._next} on; the last one said: {failure.message}; a follower: {self._refusal}"
            ) from failure
        refused = isinstance(failure, errors.IllegalOffset) and not follows
        passes = follows or failure.retryable or failure.refresh_route or refused
        if over or not passes:
            raise failure
        if refused:
            # If that fails, the next try tells more.
            with contextlib.suppress(errors.ConnectionFailed, errors.RequestTimeout, errors.TopicNotFound):
                self._skip_what_is_gone()
        log.warning("%s: reading goes on at offset %d after: %s", self._queue, self._next, failure)
        # A leader that refuses answers, and what it says counts: no follower is asked in its place.
        if refused:
            self._places.refused()
        if refused or self._places.failed(place):
            time.sleep(self._backoff.next_ms() / 1000)

    def _skip_what_is_gone(self) -> None:
        bounds = self._bounds()
        if self._uid and bounds.uid and bounds.uid != self._uid:
            return  # the next scan is refused for it
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
        """Another uid, no such topic, or a topic with fewer queues."""
        refused = errors.PreconditionFailed | errors.TopicNotFound | errors.BadRequest
        return isinstance(failure, refused) and not isinstance(failure, errors.IllegalOffset)

    def _was_made_anew(self, failure: errors.Error) -> bool:
        """True if the range's messages are gone with their topic, and are counted. False: the route is old, or
        not known now.
        """
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
        """Where the leader was last. Raises ConnectionFailed if that is not known."""
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
