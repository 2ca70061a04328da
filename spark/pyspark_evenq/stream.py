"""The stream reader: decides what each micro-batch reads, and mirrors progress to the brokers.

Spark builds it twice: in the runner, one process per query on the driver that is asked for offsets, and in a planner
that only pickles it for the workers. So the constructor keeps plain values; connections, threads and the signal
handler begin at the first call that needs them. What holds: a batch is the same however often it is replayed (see
`offsets`); an offset goes to the brokers only after Spark's commit log has it; failures of that mirror never end the
query. The order of Spark's calls is in docs/guides/spark.md.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster, connection, scanning
from pyspark_evenq.arrow_schema import OutputColumn
from pyspark_evenq.checkpoint import LastBatch
from pyspark_evenq.exclusive import ExclusiveQueues
from pyspark_evenq.holding import HeldQueues, Queues
from pyspark_evenq.limits import NO_LIMIT, Limiter
from pyspark_evenq.losses import counted, named
from pyspark_evenq.made_group import MadeGroup
from pyspark_evenq.marks import compared
from pyspark_evenq.member_options import AssignmentMode
from pyspark_evenq.offset_options import OffsetSpec, Place
from pyspark_evenq.offsets import OffsetMark, Positions, StreamOffset, place_of
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.pinned_start import PinnedStart
from pyspark_evenq.planner import Bounds, Trimmed, advance, batch_ranges, tasks, trimmed
from pyspark_evenq.positions import DataLost, loss_of, resolve, vouched
from pyspark_evenq.shared import SharedQueues
from pyspark_evenq.watch import QueueWatch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader"]

log = logging.getLogger(__name__)
AHEAD_S = 10.0  # a broker that just restarted may know less for a moment than it reported before
AHEAD_PAUSE_S = 0.2


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages, batch by batch."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        self._options = options
        self._columns = columns
        self._made: _Runner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Threads, locks and channels do not pickle, and a worker needs none of the runner.
        return self.__dict__ | {"_made": None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix where this run ends: at what the brokers have now."""
        self._runner.freeze()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark hands it back to `latestOffset`, except where a trigger wants everything."""
        limits = self._options.limits
        return ReadMaxRows(limits.offsets_max or NO_LIMIT) if limits.any else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts. Spark asks more than once; all answers of one process are the
        same.
        """
        return self._runner.initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch, or `start` itself if there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        end = self._runner.latest(StreamOffset.from_json(start), limit=rows)
        # Equal offsets are how a source says "nothing new": any other text makes a batch, be it empty.
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest offsets known, without limit: Spark's progress shows the lag with it."""
        return self._runner.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch between two offsets. Depends on these and the options only."""
        planned = tasks(
            batch_ranges(StreamOffset.from_json(start), StreamOffset.from_json(end)),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            min_records=self._options.min_records_per_partition,
            max_partitions=self._options.max_partitions,
            ordered=self._runner.ordered(),
        )
        # Of the batch as it is logged, not of now: a topic that was made anew since must be noticed by the task.
        uids = StreamOffset.from_json(end).uids
        # Spark plans tasks of a batch only after the offset is in its log; a replay after a restart comes here, too.
        self._runner.logged(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return list(scanning.scan_tasks(planned, self._runner.watch.located() if planned else cluster.Located(), uids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches."""
        return scanning.read(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has `end` in its commit log."""
        self._runner.queues.offer(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Send what is waiting. Spark does not call it when a query is stopped, but ends the process: see
        `_on_sigterm`.
        """
        if self._made is not None:
            self._made.close()

    @property
    def _runner(self) -> _Runner:
        if self._made is None:
            self._made = _Runner(self._options)
        return self._made


class _Runner:
    """What lives in the runner process only."""

    def __init__(self, given: ReadOptions) -> None:
        group = MadeGroup(given)
        self._options = options = group.options
        connection.sign_with(options.credentials())
        connection.secure_with(options.tls())
        self._initial: StreamOffset | None = None
        self._frozen: dict[MessageQueue, Bounds] | None = None
        self._frozen_checked = False
        self._has_looked = False
        self._survey: cluster.Survey | None = None
        self._ordered: frozenset[str] | None = None
        self._ahead_since: dict[MessageQueue, float] = {}
        self._known_away: frozenset[MessageQueue] = frozenset()
        self._began: dict[MessageQueue, int] = {}
        """Where queues begin that are in no batch yet."""
        self._limiter = Limiter(options.limits)
        self.watch = QueueWatch(options)
        shared = options.membership.assignment is AssignmentMode.SHARED
        self._last_batch = last = LastBatch(options.membership.checkpoint)
        self.queues: Queues = SharedQueues(options, self.watch, last) if shared else ExclusiveQueues(group, self.watch)
        self._pinned = PinnedStart(given, client_id=self.queues.client_id)
        _on_sigterm(self)

    def freeze(self) -> None:
        self._survey = self.watch.survey(wait_for_away=True)
        if self._options.fail_on_unavailable:
            self._survey.must_be_complete(self._options.read_timeout_ms)
        self._frozen = {queue: state.bounds for queue, state in self._survey.states.items()}

    def initial(self) -> StreamOffset:
        if self._initial is None:
            options = self._options
            starting = options.starting or OffsetSpec(place=Place.GROUP)
            if self._survey is None:
                self._survey = self.watch.survey(wait_for_away=False, suits=partial(vouched, starting))
            states = self._survey.states
            bounds = {queue: state.bounds for queue, state in states.items()}
            starts = resolve(
                starting,
                states,
                without_commit=Place.LATEST,
                left_out=self._survey.unavailable,
            )
            starts = self.queues.starts(self._pinned.preferred(starts, states, self.watch.route()), states)
            if options.fail_on_data_loss:
                for gone in trimmed(starts, bounds):
                    raise loss_of(gone)
            self._pinned.keep(starts, self.watch.route())
            uids = {place_of(queue): bound.uid for queue, bound in bounds.items() if bound.uid}
            self._initial = StreamOffset(ends=starts, uids=uids)
            self.queues.pin({queue: offset for queue, offset in starts.items() if states[queue].committed < 0})
        return self._initial

    def latest(self, start: StreamOffset, *, limit: int) -> StreamOffset | None:
        first_batch = self._initial is not None and start == self._initial
        self.queues.begin(start, first=first_batch, frozen=self._frozen)
        # That Spark asks for more is its word that the batch before is in the commit log (decision 43).
        self._last_batch.over()
        if not first_batch:
            self._pinned.drop()
        end = None
        try:
            end = self._next(start, limit=limit, first_batch=first_batch)
        finally:
            # In `finally`: a plan that failed must free the queues that were claimed for it.
            kept = self.queues.planned(end)
        if end is None or not kept:
            return None
        self._frozen_checked = True
        self._began.clear()
        self._last_batch.planned(start, end)
        return end

    def _next(self, logged: StreamOffset, *, limit: int, first_batch: bool) -> StreamOffset | None:
        """The end of the batch behind `logged`, if there is to be one."""
        if self._frozen is None:
            if self._has_looked:
                self.queues.wait(logged)
            else:
                self.watch.look()
                self._has_looked = True
            self._topics_must_exist()
        held = self.queues.hold(logged)
        start = replace(logged, ends=held.ends)
        if self._frozen is not None:
            begins = self._begins(start, self._frozen, held)
            if not self._frozen_checked:  # what is trimmed later, the workers notice; the targets stay
                self._frozen = self._settled(start, begins)
            bounds = {queue: bound for queue, bound in self._frozen.items() if queue in held.queues}
        else:
            begins = self._begins(start, self.watch.bounds, held)
            bounds = {
                queue: bound
                for queue, bound in self.watch.bounds.items()
                if queue in held.queues and (queue in start.ends or queue in begins)
            }
            ahead = self._ahead(trimmed({**begins, **start.ends}, bounds, start.uids))
            bounds = {queue: bound for queue, bound in bounds.items() if queue not in ahead}
        held = self.queues.without(logged, held, held.moved.keys() - bounds.keys())
        start = replace(logged, ends=held.ends)
        gone = trimmed({**begins, **start.ends}, bounds, start.uids)
        if not first_batch:  # the engine asks only after this offset is in its commit log
            self.queues.offer(logged, {entry.queue for entry in gone} | held.moved.keys())
        if self._options.fail_on_data_loss:
            for entry in gone:
                raise loss_of(entry)
        shrunk = {
            entry.queue: start.marks[entry.queue]
            for entry in gone
            if entry.ahead and entry.queue in start.marks and entry.queue not in held.moved
        }
        start, moved = self._back(start, shrunk), held.moved.keys() | shrunk.keys()
        self._tell_away()
        waiting = {**begins, **start.ends}
        backlog = {queue: bound.high - waiting.get(queue, bound.low) for queue, bound in bounds.items()}
        if held.is_share and not shrunk and not any(backlog.values()):
            return self._nothing_new()  # where a queue begins is no news without a message
        at_once = first_batch or self._frozen is not None or bool(moved)
        if limit and not self._limiter.is_due(sum(backlog.values()), first=at_once):
            return None
        rows = self._limiter.rows(limit, backlog, lambda queue: self._row_bytes(queue, waiting)) if limit else 0
        plan = partial(advance, bounds=bounds, first_batch=first_batch, limit=rows, begins_at=begins)
        end = plan(start, moved=moved)
        if end is None:
            return self._nothing_new()
        noted, others = compared(start, end, self.watch.marks)
        anew = self._made_anew(start, others)
        others = {queue: mark for queue, mark in others.items() if queue not in anew}
        if others:
            gone += self._regrown(start, others, bounds)
            start = self._back(start, others)
            end = plan(start, moved=moved | others.keys()) or end
            noted, _ = compared(start, end, self.watch.marks)
        # Only now: a trigger that found nothing must not start the delay of `maxTriggerDelay` anew.
        self._limiter.triggered()
        noted = {queue: mark for queue, mark in noted.items() if queue not in anew}
        return self._counted(replace(end, marks=noted), start, gone)

    def _made_anew(self, start: StreamOffset, others: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those of the queues whose topic is another one by now: the tasks notice it, and the next plan does."""
        if not others:
            return set()
        self.watch.ask(others)
        bounds = self.watch.bounds
        return {queue for queue in others if bounds[queue].uid != start.uids.get(place_of(queue), bounds[queue].uid)}

    def _regrown(
        self, start: StreamOffset, others: Mapping[MessageQueue, OffsetMark], bounds: Mapping[MessageQueue, Bounds]
    ) -> list[Trimmed]:
        """Queues that lost their end and grew past it again. Raises DataLost, unless failOnDataLoss is off."""
        regrown = [
            Trimmed(queue=queue, position=start.ends[queue], bounds=bounds[queue], regrown=True)
            for queue in sorted(others)
        ]
        if self._options.fail_on_data_loss:
            raise loss_of(regrown[0])
        return regrown

    def _back(self, start: StreamOffset, marks: Mapping[MessageQueue, OffsetMark]) -> StreamOffset:
        """Queues that lost their end are read from the first message that was stored after the one of the mark: all
        that came in place of the end, whether or not they have grown past it.
        """
        places = dict(start.ends)
        for queue, mark in marks.items():
            ask = partial(self.watch.stored_after, queue, mark.store_ms)
            later = cluster.persist(f"where {queue} goes on", ask, timeout_ms=self._options.read_timeout_ms)
            places[queue] = min(later, mark.offset)
        left = {queue: mark for queue, mark in start.marks.items() if queue not in marks}
        return replace(start, ends=places, marks=left)

    def _nothing_new(self) -> StreamOffset | None:
        if self._frozen is not None:
            self.queues.flush()  # nothing will be asked after the last batch of this run
        return None

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        self.queues.logged(start, end)

    def newest(self) -> dict[str, Any] | None:
        bounds = {
            queue: bound for queue, bound in (self._frozen or self.watch.bounds).items() if self.queues.has(queue)
        }
        return StreamOffset(ends={queue: bound.high for queue, bound in bounds.items()}).to_json() if bounds else None

    def ordered(self) -> frozenset[str]:
        """The topics whose queues are not split. Their type does not change while a query runs."""
        if self._ordered is None:
            timeout_ms = self._options.read_timeout_ms
            ask = partial(cluster.ordered_topics, self._options)
            self._ordered = cluster.persist("the types of the topics", ask, timeout_ms=timeout_ms)
        return self._ordered

    def close(self) -> None:
        if (end := self._last_batch.done()) is not None:
            self._last_batch.over()
            self.queues.done(end)
        self.queues.close()
        self.watch.close()

    def _begins(
        self, start: StreamOffset, bounds: Mapping[MessageQueue, Bounds], held: HeldQueues
    ) -> dict[MessageQueue, int]:
        """Where queues begin that came into the route after the query had begun: at the group's progress, else at their
        first message. Queues whose broker does not say are left out.
        """
        if held.is_share:
            return {}
        new = [queue for queue in bounds if queue not in start.ends and queue not in self._began]
        if new and self._frozen is not None and self._survey is not None:
            progress = {queue: self._survey.states[queue].committed for queue in new}
        else:
            progress = self.watch.progress(new) if new else {}
        self._began |= {
            queue: committed if committed >= 0 else bounds[queue].low for queue, committed in progress.items()
        }
        return {queue: self._began[queue] for queue in bounds if queue in self._began and queue not in start.ends}

    def _settled(self, start: StreamOffset, begins: Positions) -> dict[MessageQueue, Bounds]:
        """The frozen ends, once no position is ahead of one, or it has been for long enough."""
        while ahead := self._ahead(trimmed({**begins, **start.ends}, self._frozen or {}, start.uids)):
            time.sleep(AHEAD_PAUSE_S)
            states = self.watch.survey(wait_for_away=False).states
            self._frozen = {
                **(self._frozen or {}),
                **{queue: states[queue].bounds for queue in ahead if queue in states},
            }
        return self._frozen or {}

    def _ahead(self, gone: Iterable[Trimmed]) -> set[MessageQueue]:
        """Queues that had more before, but may have it again in a moment."""
        now, patience = time.monotonic(), min(AHEAD_S, self._options.read_timeout_ms / 1000)
        self._ahead_since = {entry.queue: self._ahead_since.get(entry.queue, now) for entry in gone if entry.ahead}
        return {queue for queue, since in self._ahead_since.items() if now - since < patience}

    def _topics_must_exist(self) -> None:
        """Raises DataLost for a topic that is gone, unless failOnDataLoss is off; then its queues stand still."""
        for topic, error in self.watch.missing.items():
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"data loss: topic {topic} was deleted while it was read ({error.message}); set "
                    "failOnDataLoss=false to go on with what is there, or what will be"
                ) from error

    def _tell_away(self) -> None:
        """Say and count once which queues have no broker."""
        unavailable = self.watch.unavailable
        away = frozenset(unavailable)
        if new := away - self._known_away:
            why = "; ".join(dict.fromkeys(unavailable[queue] for queue in sorted(new)))
            counted.left_out(dict.fromkeys(new, 0), f"they make no progress until they are served again: {why}")
        elif self._known_away and not away:
            log.warning("all queues are served again: %s", named(self._known_away))
        self._known_away = away

    def _counted(self, end: StreamOffset, start: StreamOffset, gone: Iterable[Trimmed]) -> StreamOffset:
        """The end of a batch, with what it leaves out."""
        lost = {
            entry.queue: entry.lost(self.watch.seen.get((entry.queue, start.uids.get(place_of(entry.queue), "")), 0))
            for entry in gone
        }
        for entry in gone:
            counted.lost(entry.queue, lost[entry.queue], loss_of(entry))
        self.queues.forget(lost)
        return replace(end, lost=lost, away=self._known_away)

    def _row_bytes(self, queue: MessageQueue, waiting: Positions) -> float | None:
        return cluster.row_bytes(self.watch.route().get(queue, ""), queue, waiting.get(queue, -1))


def _on_sigterm(runner: _Runner) -> None:
    """Spark ends the runner of a stopped query with SIGTERM: send the last progress first, then end as before."""
    # Python takes signal handlers in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()
    earlier = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two, one right after the other
        # A forked child inherits the handler: it must not report progress that is its parent's.
        if os.getpid() == owner:
            try:
                runner.close()
            except errors.Error as failure:
                log.warning("the last progress was not stored: %s", failure)
        signal.signal(signal.SIGTERM, earlier if earlier is not None else signal.SIG_DFL)
        if callable(earlier):
            earlier(number, frame)
        else:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handler)
