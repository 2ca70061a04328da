"""The stream reader: plans each micro-batch, and reports progress to the brokers.

Spark builds it twice: in the runner, one process per query on the driver that plans offsets, and in a planner that only
pickles it for the workers. So the constructor keeps plain values; the first call that needs them starts connections,
threads and the signal handler. Invariants: a replayed batch reads the same (see `offsets`); an offset is reported only
after Spark's commit log has it; a failed report never ends the query. Order of Spark's calls: docs/guides/spark.md.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from evenq.columns.arrow_schema import OutputColumn
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster, connection
from pyspark_evenq.brokers.made_group import MadeGroup
from pyspark_evenq.brokers.watch import QueueWatch
from pyspark_evenq.member.exclusive import ExclusiveQueues
from pyspark_evenq.member.holding import HeldQueues, Queues
from pyspark_evenq.member.shared import SharedQueues
from pyspark_evenq.options.member import AssignmentMode
from pyspark_evenq.options.offsets import OffsetSpec, Place
from pyspark_evenq.options.source import Limits, ReadOptions
from pyspark_evenq.plan.checkpoint import LastBatch
from pyspark_evenq.plan.losses import counted, named
from pyspark_evenq.plan.marks import compared
from pyspark_evenq.plan.offsets import OffsetMark, Positions, StreamOffset, place_of
from pyspark_evenq.plan.planner import Bounds, Trimmed, advance, batch_ranges, tasks, trimmed
from pyspark_evenq.plan.positions import DataLost, loss_of, resolve, vouched
from pyspark_evenq.source import scanning
from pyspark_evenq.source.pinned_start import PinnedStart

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
AHEAD_S = 10.0  # a broker that has just restarted may report less for a moment than before
AHEAD_PAUSE_S = 0.2
NO_LIMIT = 1 << 62
"""Row limit for Spark if only bytes or a minimum are limited: Spark's limit for "everything" would disable all limits
(`Trigger.Once`)."""
SAMPLES_MAX = 8
"""Queues whose next rows are sampled for their size: those with the largest backlog."""


class Limiter:
    """Limits of one micro-batch: a maximum of messages and bytes, and a minimum of messages to wait for.

    Called by the runner at each trigger. The logged offsets fix what a batch reads, so this state need not survive the
    process: after a restart the first batch does not wait, as in Spark's Kafka source.
    """

    def __init__(self, limits: Limits, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._last: float | None = None

    def is_due(self, backlog: int, *, first: bool) -> bool:
        """Returns whether a batch may be made of `backlog` messages. `first`: without a wait."""
        if first or self._last is None or backlog >= self._limits.offsets_min:
            return True
        return self._now() - self._last >= self._limits.delay_ms / 1000

    def triggered(self) -> None:
        self._last = self._now()

    def rows(
        self, limit: int, backlog: Mapping[MessageQueue, int], row_bytes: Callable[[MessageQueue], float | None]
    ) -> int:
        """Returns the number of messages of the batch, at least one. `row_bytes`: estimated size of a queue's next
        messages, None without an answer of its broker.
        """
        if not self._limits.bytes_max:
            return limit
        largest = sorted((queue for queue in backlog if backlog[queue] > 0), key=lambda queue: (-backlog[queue], queue))
        sizes = {queue: size for queue in largest[:SAMPLES_MAX] if (size := row_bytes(queue)) is not None}
        if not sizes:
            return limit
        # Weighted by backlog: otherwise a queue with few large messages would make batches of small ones too short.
        mean = sum(sizes[queue] * backlog[queue] for queue in sizes) / sum(backlog[queue] for queue in sizes)
        return max(1, min(limit, int(self._limits.bytes_max / max(mean, 1.0))))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of new messages, batch by batch."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        self._options = options
        self._columns = columns
        self._made: _Runner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Threads, locks and channels do not pickle, and workers do not need the runner.
        return self.__dict__ | {"_made": None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fixes the ends of this run: the current ends of the queues."""
        self._runner.freeze()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns the limit that Spark passes to `latestOffset`, unless a trigger reads everything."""
        limits = self._options.limits
        return ReadMaxRows(limits.offsets_max or NO_LIMIT) if limits.any else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the start of a query without a checkpoint. Repeated calls in one process return the same."""
        return self._runner.initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch, or `start` itself if there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        end = self._runner.latest(StreamOffset.from_json(start), limit=rows)
        # Equal offsets mean "nothing new" to Spark: any other text makes a batch, even an empty one.
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns the newest known offsets, without limit: the lag in Spark's progress is based on them."""
        return self._runner.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of the batch between two offsets. Depends only on these and the options."""
        planned = tasks(
            batch_ranges(StreamOffset.from_json(start), StreamOffset.from_json(end)),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            min_records=self._options.min_records_per_partition,
            max_partitions=self._options.max_partitions,
            ordered=self._runner.ordered(),
        )
        # As logged, not the current ones: a task must notice a topic that was created again since.
        uids = StreamOffset.from_json(end).uids
        # Spark plans tasks of a batch only after the offset is in its log, also for a replay after a restart.
        self._runner.logged(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return list(scanning.scan_tasks(planned, self._runner.watch.located() if planned else cluster.Located(), uids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return scanning.read(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Reports `end` as progress: Spark has it in its commit log."""
        self._runner.queues.offer(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Closes the runner. For a stopped query Spark does not call it, but ends the process (`_on_sigterm`)."""
        if self._made is not None:
            self._made.close()

    @property
    def _runner(self) -> _Runner:
        if self._made is None:
            self._made = _Runner(self._options)
        return self._made


class _Runner:
    """The state of the runner process."""

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
        """Queue without a batch yet -> its start."""
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
        # Spark calls this only when the previous batch is in the commit log (decision 43).
        self._last_batch.over()
        if not first_batch:
            self._pinned.drop()
        end = None
        try:
            end = self._next(start, limit=limit, first_batch=first_batch)
        finally:
            # In `finally`: a failed plan must release the queues that were claimed for it.
            kept = self.queues.planned(end)
        if end is None or not kept:
            return None
        self._frozen_checked = True
        self._began.clear()
        self._last_batch.planned(start, end)
        return end

    def _next(self, logged: StreamOffset, *, limit: int, first_batch: bool) -> StreamOffset | None:
        """Returns the end of the batch after `logged`; None: no batch."""
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
            if not self._frozen_checked:  # only once: workers notice later losses; the targets stay
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
        if not first_batch:  # Spark calls only after this offset is in its commit log
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
            return self._nothing_new()  # a start without a message does not need a batch
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
        # Only now: a trigger without a batch must not restart the delay of `maxTriggerDelay`.
        self._limiter.triggered()
        noted = {queue: mark for queue, mark in noted.items() if queue not in anew}
        return self._counted(replace(end, marks=noted), start, gone)

    def _made_anew(self, start: StreamOffset, others: Collection[MessageQueue]) -> set[MessageQueue]:
        """Returns the queues whose topic was created again: the tasks notice it, and so does the next plan."""
        if not others:
            return set()
        self.watch.ask(others)
        bounds = self.watch.bounds
        return {queue for queue in others if bounds[queue].uid != start.uids.get(place_of(queue), bounds[queue].uid)}

    def _regrown(
        self, start: StreamOffset, others: Mapping[MessageQueue, OffsetMark], bounds: Mapping[MessageQueue, Bounds]
    ) -> list[Trimmed]:
        """Returns the losses of queues that lost their end and grew past it. Raises DataLost with failOnDataLoss."""
        regrown = [
            Trimmed(queue=queue, position=start.ends[queue], bounds=bounds[queue], regrown=True)
            for queue in sorted(others)
        ]
        if self._options.fail_on_data_loss:
            raise loss_of(regrown[0])
        return regrown

    def _back(self, start: StreamOffset, marks: Mapping[MessageQueue, OffsetMark]) -> StreamOffset:
        """Moves queues that lost their end back to the first message after the marked one, which replaced the end."""
        places = dict(start.ends)
        for queue, mark in marks.items():
            ask = partial(self.watch.stored_after, queue, mark.store_ms)
            later = cluster.persist(f"the next offset of {queue}", ask, timeout_ms=self._options.read_timeout_ms)
            places[queue] = min(later, mark.offset)
        left = {queue: mark for queue, mark in start.marks.items() if queue not in marks}
        return replace(start, ends=places, marks=left)

    def _nothing_new(self) -> StreamOffset | None:
        if self._frozen is not None:
            self.queues.flush()  # there is no call after the last batch of this run
        return None

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        self.queues.logged(start, end)

    def newest(self) -> dict[str, Any] | None:
        bounds = {
            queue: bound for queue, bound in (self._frozen or self.watch.bounds).items() if self.queues.has(queue)
        }
        return StreamOffset(ends={queue: bound.high for queue, bound in bounds.items()}).to_json() if bounds else None

    def ordered(self) -> frozenset[str]:
        """Returns the topics whose queues are not split; fixed while a query runs."""
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
        """Returns starts of queues that appeared after the query's start: the group's progress, otherwise their first
        message. Queues whose broker does not answer are left out.
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
        """Returns the frozen ends when no position exceeds its end, or has exceeded it for `AHEAD_S`."""
        while ahead := self._ahead(trimmed({**begins, **start.ends}, self._frozen or {}, start.uids)):
            time.sleep(AHEAD_PAUSE_S)
            states = self.watch.survey(wait_for_away=False).states
            self._frozen = {
                **(self._frozen or {}),
                **{queue: states[queue].bounds for queue in ahead if queue in states},
            }
        return self._frozen or {}

    def _ahead(self, gone: Iterable[Trimmed]) -> set[MessageQueue]:
        """Returns queues with a smaller end than before, which may still recover."""
        now, patience = time.monotonic(), min(AHEAD_S, self._options.read_timeout_ms / 1000)
        self._ahead_since = {entry.queue: self._ahead_since.get(entry.queue, now) for entry in gone if entry.ahead}
        return {queue for queue, since in self._ahead_since.items() if now - since < patience}

    def _topics_must_exist(self) -> None:
        """Raises DataLost for a deleted topic; without failOnDataLoss, its queues make no progress."""
        for topic, error in self.watch.missing.items():
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"data loss: topic {topic} was deleted while it was read ({error.message}); set "
                    "failOnDataLoss=false to continue with the other topics, and with this one if it is created again"
                ) from error

    def _tell_away(self) -> None:
        """Logs and counts queues without a broker, once."""
        unavailable = self.watch.unavailable
        away = frozenset(unavailable)
        if new := away - self._known_away:
            why = "; ".join(dict.fromkeys(unavailable[queue] for queue in sorted(new)))
            counted.left_out(dict.fromkeys(new, 0), f"they make no progress until they are served again: {why}")
        elif self._known_away and not away:
            log.warning("all queues are served again: %s", named(self._known_away))
        self._known_away = away

    def _counted(self, end: StreamOffset, start: StreamOffset, gone: Iterable[Trimmed]) -> StreamOffset:
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
    """Reports the last progress on SIGTERM, with which Spark ends a stopped query's runner, then ends as before."""
    # Python allows signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()
    earlier = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two in a row
        # A forked child inherits the handler, but must not report its parent's progress.
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
