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
from evenq.model import QueueOffset
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster, connection, scanning
from pyspark_evenq.arrow_schema import Column
from pyspark_evenq.committer import Committer
from pyspark_evenq.limits import NO_LIMIT, Limiter
from pyspark_evenq.losses import counted, named
from pyspark_evenq.made_group import MadeGroup
from pyspark_evenq.member import Member
from pyspark_evenq.member_options import OnConflict
from pyspark_evenq.offsets import Positions, StreamOffset, place_of
from pyspark_evenq.options import OffsetSpec, Place, ReadOptions
from pyspark_evenq.pinned_start import PinnedStart
from pyspark_evenq.planner import Bounds, Trimmed, advance, batch_ranges, tasks, trimmed
from pyspark_evenq.positions import DataLost, loss_of, resolve
from pyspark_evenq.watch import QueueWatch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader"]

log = logging.getLogger(__name__)
FLUSH_MS = 2_000
CLOSE_MS = 1_200  # together with the goodbye less than the 2 s that a stopped query may take
GOODBYE_MS = 500
HOLD_PAUSE_S = 0.2
AHEAD_S = 10.0  # a broker that just restarted may know less for a moment than it told before
AHEAD_PAUSE_S = 0.2


class OffsetConflict(errors.PreconditionFailed):
    """Checkpoint and group differ, and onOffsetConflict is fail."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages, batch by batch."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._made: _Runner | None = None

    def __getstate__(self) -> dict[str, Any]:
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
        uids = StreamOffset.from_json(end).uids
        self._runner.logged(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return list(scanning.scan_tasks(planned, self._runner.watch.route() if planned else {}, uids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches."""
        return scanning.read(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has `end` in its commit log."""
        self._runner.offer(StreamOffset.from_json(end))

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
        self._group = MadeGroup(given)
        self._options = options = self._group.options
        connection.sign_with(options.credentials())
        connection.secure_with(options.tls())
        self._initial: StreamOffset | None = None
        self._frozen: dict[MessageQueue, Bounds] | None = None
        self._frozen_checked = False
        self._asked = False
        self._survey: cluster.Survey | None = None
        self._ordered: frozenset[str] | None = None
        self._ahead_since: dict[MessageQueue, float] = {}
        self._told_away: frozenset[MessageQueue] = frozenset()
        self._began: dict[MessageQueue, int] = {}
        """Where queues begin that are in no batch yet."""
        self._replayed: Positions | None = None
        """Where the last logged batch begins, if it was planned again."""
        self._met = False
        """True once the checkpoint was compared with the group's progress."""
        self._chosen: dict[MessageQueue, int] = {}
        """Queues that begin at the group's progress, as soon as they can."""
        self._moved: dict[MessageQueue, tuple[int, int]] = {}
        """Queues that an operator moved: the offset, and the number of the move."""
        self._due: dict[MessageQueue, tuple[QueueOffset, int]] = {}
        """Those of them that begin there in a logged batch, which their brokers may not know yet."""
        self._limiter = Limiter(options.limits)
        self.watch = QueueWatch(options)
        self.member = Member(options)
        self._pinned = PinnedStart(given, client_id=self.member.client_id)
        self.committer = Committer(self._send, interval_ms=options.commit_interval_ms)
        _on_sigterm(self)

    def freeze(self) -> None:
        self._survey = self.watch.survey(wait_for_away=True)
        if self._options.fail_on_unavailable:
            self._survey.must_be_complete(self._options.read_timeout_ms)
        self._frozen = {queue: state.bounds for queue, state in self._survey.states.items()}

    def initial(self) -> StreamOffset:
        if self._initial is None:
            options = self._options
            if self._survey is None:
                self._survey = self.watch.survey(wait_for_away=False)
            states = self._survey.states
            bounds = {queue: state.bounds for queue, state in states.items()}
            starts = resolve(
                options.starting or OffsetSpec(place=Place.GROUP),
                states,
                without_commit=Place.LATEST,
                left_out=self._survey.unavailable,
            )
            starts = self._pinned.preferred(starts, states, self.watch.route())
            if options.fail_on_data_loss:
                for gone in trimmed(starts, bounds):
                    raise loss_of(gone)
            self._pinned.keep(starts, self.watch.route())
            uids = {place_of(queue): bound.uid for queue, bound in bounds.items() if bound.uid}
            self._initial = StreamOffset(ends=starts, uids=uids)
            # A group without progress gets it now: if the driver dies before Spark's first log entry, `latest` must
            # not move on. A restart that finds it there may plan its logged batch before its predecessor has gone.
            new = {queue: offset for queue, offset in starts.items() if states[queue].committed < 0}
            if new:
                self._hold()
            self.committer.offer(new)
            self.committer.flush(timeout_ms=FLUSH_MS)
        return self._initial

    def latest(self, start: StreamOffset, *, limit: int) -> StreamOffset | None:
        held = self._held(start)
        first_batch = self._initial is not None and start == self._initial
        if not first_batch:
            self._pinned.drop()
        moved = self._followed(start) | ({} if first_batch else self._conflicts(start))
        self._met = True
        logged, start = start, replace(start, ends={**start.ends, **moved})
        if self._frozen is not None:
            bounds, begins = self._frozen, self._begins(start, self._frozen)
            if not self._frozen_checked:  # what is trimmed later, the workers notice; the targets stay
                bounds = self._frozen = self._settled(start, begins)
        else:
            if self._asked:
                self.watch.refresh(start.ends)
            else:
                self.watch.look()
                self._asked = True
            self._topics_must_exist()
            begins = self._begins(start, self.watch.bounds)
            bounds = {
                queue: bound
                for queue, bound in self.watch.bounds.items()
                if queue in held and self._has_begun(queue, start, begins)
            }
            ahead = self._ahead(trimmed({**begins, **start.ends}, bounds, start.uids))
            bounds = {queue: bound for queue, bound in bounds.items() if queue not in ahead}
        if late := self._late(moved, bounds):
            moved = {queue: place for queue, place in moved.items() if queue not in late}
            start = replace(start, ends={**start.ends, **{queue: logged.ends[queue] for queue in late}})
        gone = trimmed({**begins, **start.ends}, bounds, start.uids)
        if not first_batch:  # the engine asks only after this offset is in its commit log
            self.offer(logged, {entry.queue for entry in gone} | moved.keys())
        if self._options.fail_on_data_loss:
            for entry in gone:
                raise loss_of(entry)
        self._tell_away()
        waiting = {**begins, **start.ends}
        backlog = {queue: bound.high - waiting.get(queue, bound.low) for queue, bound in bounds.items()}
        at_once = first_batch or self._frozen is not None or bool(moved)
        if limit and not self._limiter.is_due(sum(backlog.values()), first=at_once):
            return None
        rows = self._limiter.rows(limit, backlog, lambda queue: self._row_bytes(queue, waiting)) if limit else 0
        end = advance(start, bounds, first_batch=first_batch, limit=rows, begins_at=begins, moved=moved)
        if end is not None:
            self._limiter.triggered()
            self._frozen_checked = True
            return self._counted(end, start, gone)
        if self._frozen is not None:
            self.committer.flush(timeout_ms=FLUSH_MS)  # nothing will be asked after the last batch of this run
        return None

    def _hold(self) -> frozenset[MessageQueue]:
        self._group.make()
        return self.member.hold(self.watch.route())

    def _held(self, start: StreamOffset) -> frozenset[MessageQueue]:
        """The queues that are ours to plan. A run that has an end waits for the brokers of all its queues first."""
        give_up = time.monotonic() + self._options.read_timeout_ms / 1000
        while True:
            held = self._hold()
            frozen = {} if self._frozen is None or self._frozen_checked else self._frozen
            missing = {queue for queue in frozen.keys() - held if start.ends.get(queue, -1) < frozen[queue].high}
            if not missing or time.monotonic() > give_up:
                break
            time.sleep(HOLD_PAUSE_S)
        if missing:
            raise cluster.BrokersAway(
                f"no broker gives this query the locks of {named(missing)} within {self._options.read_timeout_ms} ms "
                "(readTimeoutMs); start it again when they are back"
            )
        return held

    def offer(self, logged: StreamOffset, moved: Collection[MessageQueue] = ()) -> None:
        """Mirror what Spark has logged, but no offsets that count other messages now: they would be a progress that
        nobody has made.
        """
        known = self.watch.bounds
        anew = {entry.queue for entry in trimmed(logged.ends, known, logged.uids) if entry.anew}
        left_out = anew.union(moved, self.member.resets())
        self.committer.offer({queue: end for queue, end in logged.ends.items() if queue not in left_out})

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        """Spark has this batch in its checkpoint and runs it, maybe again."""
        if not self._met:
            self._replayed = {**start.ends, **end.starts}
        for queue, (offset, number) in list(self._moved.items()):
            if end.starts.get(queue) == offset:
                self._due[queue] = QueueOffset(offset), number
        self._tell_followed()

    def _followed(self, start: StreamOffset) -> dict[MessageQueue, int]:
        """Where an operator moved the group, for the queues that are to follow with the next batch."""
        self._tell_followed()
        resets = self.member.resets()
        self._moved = {
            queue: (offset, number) for queue, (offset, number) in self._moved.items() if resets.get(queue) == number
        }
        new = [queue for queue in resets if queue in start.ends and queue not in self._moved]
        places = self.watch.progress(new) if new else {}
        places = {queue: place for queue, place in places.items() if place >= 0 and self._reachable(queue, place)}
        self._moved |= {queue: (place, resets[queue]) for queue, place in places.items()}
        self.member.sent(places)
        self.committer.forget(places)
        return places

    def _late(self, moved: Positions, bounds: Mapping[MessageQueue, Bounds]) -> set[MessageQueue]:
        """Moved queues that this batch cannot begin anew: nobody told how far they go, or not yet as far as that, or
        their lock is in doubt. A later batch does.
        """
        late = moved.keys() - bounds.keys()
        self._moved = {queue: move for queue, move in self._moved.items() if queue not in late}
        self._chosen = {queue: place for queue, place in self._chosen.items() if queue in late}
        return late

    def _tell_followed(self) -> None:
        resets = self.member.resets()
        self._due = {queue: due for queue, due in self._due.items() if resets.get(queue) == due[1]}
        for queue, (offset, number) in self._due.items():
            self.member.follow(queue, offset, number)

    def _conflicts(self, start: StreamOffset) -> dict[MessageQueue, int]:
        """Where a query that starts goes by the group and not by the checkpoint. Raises OffsetConflict."""
        if self._met:
            return self._chosen
        replayed = self._replayed or {}
        found = {
            queue: place
            for queue, place in self.member.found().items()
            if queue in start.ends and place >= 0 and place not in {start.ends[queue], replayed.get(queue)}
        }
        if not found:
            return {}
        group, place = self._options.group, min(found)
        said = (
            f"the progress of group {group} and the checkpoint differ on {named(found)}: {place} is at {found[place]} "
            f"in the group and at {start.ends[place]} in the checkpoint; the group was moved, or the last run was "
            "killed before it could report"
        )
        match self._options.membership.on_conflict:
            case OnConflict.FAIL:
                raise OffsetConflict(f"{said}; set onOffsetConflict to checkpoint or broker to say which one counts")
            case OnConflict.BROKER:
                log.warning("%s; going on at the group's progress", said)
                self._chosen = {queue: place for queue, place in found.items() if self._reachable(queue, place)}
                return self._chosen
        log.warning("%s; going on at the checkpoint (onOffsetConflict)", said)
        return {}

    def _reachable(self, queue: MessageQueue, place: int) -> bool:
        return self._frozen is None or (queue in self._frozen and place <= self._frozen[queue].high)

    def newest(self) -> dict[str, Any] | None:
        bounds = self._frozen or self.watch.bounds
        return StreamOffset(ends={queue: bound.high for queue, bound in bounds.items()}).to_json() if bounds else None

    def ordered(self) -> frozenset[str]:
        """The topics whose queues are not split. Their type does not change while a query runs."""
        if self._ordered is None:
            timeout_ms = self._options.read_timeout_ms
            ask = partial(cluster.ordered_topics, self._options)
            self._ordered = cluster.persist("the types of the topics", ask, timeout_ms=timeout_ms)
        return self._ordered

    def close(self) -> None:
        self.committer.close(timeout_ms=0 if self._group.wanted else CLOSE_MS)
        self.watch.close()
        self.member.leave(timeout_ms=GOODBYE_MS)
        self._group.delete()

    def _begins(self, start: StreamOffset, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """Where queues begin that came into the route after the query had begun: at the group's progress, else at their
        first message. Queues whose broker does not say are left out.
        """
        new = [queue for queue in bounds if queue not in start.ends and queue not in self._began]
        if new and self._frozen is not None and self._survey is not None:
            progress = {queue: self._survey.states[queue].committed for queue in new}
        else:
            progress = self.watch.progress(new) if new else {}
        self._began |= {
            queue: committed if committed >= 0 else bounds[queue].low for queue, committed in progress.items()
        }
        return {queue: self._began[queue] for queue in bounds if queue in self._began and queue not in start.ends}

    @staticmethod
    def _has_begun(queue: MessageQueue, start: StreamOffset, begins: Positions) -> bool:
        return queue in start.ends or queue in begins

    def _settled(self, start: StreamOffset, begins: Positions) -> dict[MessageQueue, Bounds]:
        """The frozen ends, once no position is ahead of one, or it has been for long enough."""
        while ahead := self._ahead(trimmed({**begins, **start.ends}, self._frozen or {}, start.uids)):
            time.sleep(AHEAD_PAUSE_S)
            told = self.watch.survey(wait_for_away=False).states
            self._frozen = {**(self._frozen or {}), **{queue: told[queue].bounds for queue in ahead if queue in told}}
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
        if new := away - self._told_away:
            why = "; ".join(dict.fromkeys(unavailable[queue] for queue in sorted(new)))
            counted.left_out(dict.fromkeys(new, 0), f"they make no progress until they are served again: {why}")
        elif self._told_away and not away:
            log.warning("all queues are served again: %s", named(self._told_away))
        self._told_away = away

    def _counted(self, end: StreamOffset, start: StreamOffset, gone: Iterable[Trimmed]) -> StreamOffset:
        """The end of a batch, with what it leaves out."""
        lost = {
            entry.queue: entry.lost(self.watch.seen.get((entry.queue, start.uids.get(place_of(entry.queue), "")), 0))
            for entry in gone
        }
        for entry in gone:
            counted.lost(entry.queue, lost[entry.queue], loss_of(entry))
        self.committer.forget(lost)
        self._began.clear()
        return replace(end, lost=lost, away=self._told_away)

    def _row_bytes(self, queue: MessageQueue, waiting: Positions) -> float | None:
        return cluster.row_bytes(self.watch.route().get(queue, ""), queue, waiting.get(queue, -1))

    def _send(self, positions: Positions) -> None:
        if not self._options.group:  # nobody to report for
            return
        route = self.watch.route()
        unplaced = [queue for queue in positions if queue not in route]
        if unplaced:
            log.warning("no broker known for %s, its progress stays in the checkpoint only", unplaced[0])
        client = self.member.client_id
        self.member.sent(positions)
        for address, queues in cluster.by_address(
            {queue: route[queue] for queue in positions if queue in route}
        ).items():
            try:
                cluster.commit(
                    address, self._options.group, {queue: positions[queue] for queue in queues}, client_id=client
                )
            except errors.PreconditionFailed:
                self.member.refused()
                raise


def _on_sigterm(runner: _Runner) -> None:
    """Spark ends the runner of a stopped query with SIGTERM: send the last progress first, then end as before."""
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()
    earlier = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two, one right after the other
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
