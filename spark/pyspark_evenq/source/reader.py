"""The batch reader: messages between two sets of offsets, which are fixed when the query is planned.

Spark builds it in a short-lived planner process, calls `partitions` once and sends the pickled object to its workers,
which call `read`. Spark keeps both with the DataFrame or view. So a second query of it has the offsets of the first
one, and only its tasks can notice that. They log it; with pushed filters, which may differ, it is an error.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from evenq import errors
from evenq.columns.arrow_schema import OutputColumn
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster, connection
from pyspark_evenq.options.offsets import OffsetSpec, Place
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.losses import counted
from pyspark_evenq.plan.marks import Place as MarkedPlace
from pyspark_evenq.plan.offsets import place_of
from pyspark_evenq.plan.planner import OffsetRange, Trimmed, tasks, trimmed
from pyspark_evenq.plan.positions import QueueState, loss_of, resolve, vouched
from pyspark_evenq.source import scanning

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
EXECUTION_IDS = ("spark.sql.execution.root.id", "spark.sql.execution.id")
PLANS_MAX = 1_000
_executions: dict[str, str] = {}
"""Plan -> the last query whose tasks this worker ran."""


class BatchReader(DataSourceReader):
    """Reader of each queue from its start to its end, once."""

    narrowed = False
    """True if filters of the query reduced the plan."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        self._options = options
        self._columns = columns
        self._plan, self._planned_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000

    def partitions(self) -> list[InputPartition]:
        """Queries the bounds of the queues from the brokers, and divides the ranges into tasks."""
        options = self._options
        # State of the process, not pickled with the reader: each worker does it again.
        connection.sign_with(options.credentials())
        connection.secure_with(options.tls())
        # Only if needed: leaders alone have progress, and without it followers may answer (decision 71).
        wants_group = options.starting is not None and options.starting.place is Place.GROUP
        survey = cluster.survey(options, group=options.group if wants_group else "", suits=partial(_suits, options))
        if options.fail_on_unavailable:
            survey.must_be_complete(options.read_timeout_ms)
        ranges = self._narrowed(_ranges(options, survey), survey.located.addresses)
        planned = tasks(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            min_records=options.min_records_per_partition,
            max_partitions=options.max_partitions,
            ordered=cluster.ordered_topics(options),
        )
        if survey.unavailable:
            why = "; ".join(dict.fromkeys(survey.unavailable.values()))
            counted.left_out(dict.fromkeys(survey.unavailable, 0), why)
        uids = {place_of(queue): state.bounds.uid for queue, state in survey.states.items()}
        return list(scanning.scan_tasks(planned, survey.located, uids, self._marks(ranges, survey)))

    @staticmethod
    def _marks(ranges: list[OffsetRange], survey: cluster.Survey) -> dict[MarkedPlace, str]:
        """Returns marks of the ranges' last messages: a task compares them after it has read the range."""
        ends = {part.queue: part.end for part in ranges}
        addresses = {queue: survey.located.addresses[queue] for queue in ends if queue in survey.located.addresses}
        marks: dict[MarkedPlace, str] = {}
        for address, queues in cluster.by_address(addresses).items():
            try:
                marks |= cluster.marks(address, [(queue, ends[queue]) for queue in queues])
            except errors.Error as failure:
                log.warning("no marks from %s, the ends of its ranges are not checked: %s", address, failure)
        return marks

    def _narrowed(self, ranges: list[OffsetRange], route: cluster.Route) -> list[OffsetRange]:  # noqa: ARG002
        """Returns the ranges after pushed filters; `route`: addresses of the brokers to query."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if execution := _execution():
            # Another worker may retry a failed task, so for a rejection the first query is shared by the whole host.
            first = _claimed(self._plan, execution) if self.narrowed else _executions.get(self._plan, execution)
            if first != execution:
                self._used_again()
            _executions[self._plan] = execution  # so that a worker logs once for each further query
            while len(_executions) > PLANS_MAX:
                del _executions[next(iter(_executions))]
        leave_out = not self._options.fail_on_unavailable
        return scanning.read(partition, self._options, self._columns, leave_out=leave_out)

    def _used_again(self) -> None:
        """Logs that another query had this plan. Raises SettingsError if filters of that query reduced it."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._planned_ms / 1_000))
        if self.narrowed:
            raise errors.SettingsError(
                f"this DataFrame or view was planned at {at} for another query, whose filters narrowed it "
                "(filterPushdown=true): rows would be missing; call load() for each query, or leave filterPushdown out"
            )
        log.warning(
            "a DataFrame or view is used again: it was planned at %s, and messages that were stored since are not in "
            "it; call load() for each query, or CREATE OR REPLACE the view",
            at,
        )


def _execution() -> str:
    """Returns the query of this task; empty if Spark does not set it, as for a task of an RDD."""
    from pyspark import TaskContext

    context = TaskContext.get()
    ids = [context.getLocalProperty(name) for name in EXECUTION_IDS] if context is not None else []
    return next(filter(None, ids), "") or ""


def _claimed(plan: str, execution: str) -> str:
    """Returns the first query whose task ran on this host with the plan, from a link: its creation is atomic."""
    folder = Path(tempfile.gettempdir()) / f"evenq-plans-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            (folder / plan).symlink_to(execution)
            for old in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime_ns)[:-PLANS_MAX]:
                old.unlink(missing_ok=True)
        return str((folder / plan).readlink())
    except OSError as failure:
        log.warning("the repeated use of a plan is only detected within one worker: %s", failure)
        return _executions.get(plan, execution)


def _suits(options: ReadOptions, queue: MessageQueue, state: QueueState) -> bool:
    specs = (options.starting, options.ending)
    return all(spec is None or vouched(spec, queue, state) for spec in specs)


def _ranges(options: ReadOptions, survey: cluster.Survey) -> list[OffsetRange]:
    states = survey.states
    bounds = {queue: state.bounds for queue, state in states.items()}
    starts = resolve(
        options.starting or OffsetSpec(place=Place.EARLIEST),
        states,
        without_commit=Place.EARLIEST,
        left_out=survey.unavailable,
    )
    ending = options.ending or OffsetSpec(place=Place.LATEST)
    ends = resolve(ending, states, without_commit=Place.LATEST, left_out=survey.unavailable)
    for gone in (*trimmed(starts, bounds), *trimmed(ends, bounds)):
        if options.fail_on_data_loss:
            raise loss_of(gone)
    ranges = []
    for queue, bound in sorted(bounds.items()):
        start = min(max(starts[queue], bound.low), bound.high)
        end = min(ends[queue], bound.high)
        planned = OffsetRange(queue=queue, start=starts[queue], end=ends[queue])
        lost = max(planned.count, 0) - max(end - start, 0)
        if lost > 0:
            missing = planned.start if planned.start < bound.low else planned.end
            counted.lost(queue, lost, loss_of(Trimmed(queue=queue, position=missing, bounds=bound)))
        if start < end:
            ranges.append(OffsetRange(queue=queue, start=start, end=end))
    return ranges
