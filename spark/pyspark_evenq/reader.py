"""The batch reader: the messages between two sets of offsets, fixed when the query is planned.

Spark builds it in a short-lived planner process, calls `partitions` once and sends the pickled object to its workers,
which call `read`. It keeps both with the DataFrame or view: a second query of it has the offsets of the first, and here
nothing is called before its tasks run. They log it; what filters narrowed is an error, for another query has others.
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
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster, connection, scanning
from pyspark_evenq.arrow_schema import OutputColumn
from pyspark_evenq.losses import counted
from pyspark_evenq.marks import Place as MarkedPlace
from pyspark_evenq.offset_options import OffsetSpec, Place
from pyspark_evenq.offsets import place_of
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.planner import OffsetRange, Trimmed, tasks, trimmed
from pyspark_evenq.positions import QueueState, loss_of, resolve, vouched

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader"]

log = logging.getLogger(__name__)
EXECUTION_IDS = ("spark.sql.execution.root.id", "spark.sql.execution.id")
PLANS_MAX = 1_000
_executions: dict[str, str] = {}
"""By plan: the first query whose tasks this worker ran."""


class BatchReader(DataSourceReader):
    """Reads each queue from its start to its end once."""

    narrowed = False
    """Whether filters of one query left something out."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        self._options = options
        self._columns = columns
        self._plan, self._planned_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000

    def partitions(self) -> list[InputPartition]:
        """Ask the brokers where the queues begin and end, and cut that into tasks."""
        options = self._options
        # Kept by the process and not pickled with the reader: each worker does it again.
        connection.sign_with(options.credentials())
        connection.secure_with(options.tls())
        # Progress is known to leaders only: who asks for it needlessly could not plan by what followers know (decision
        # 71).
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
        """What the last message of each range is now: a task notices if it is another one when it has read it."""
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
        """What is left of the ranges; `route` says whom to ask."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches."""
        if execution := _execution():
            # A task that failed is tried by another worker, so what is refused is known to all of this host.
            first = _claimed(self._plan, execution) if self.narrowed else _executions.get(self._plan, execution)
            if first != execution:
                self._used_again()
            _executions[self._plan] = execution  # so that a worker logs once for each further query
            while len(_executions) > PLANS_MAX:
                del _executions[next(iter(_executions))]
        leave_out = not self._options.fail_on_unavailable
        return scanning.read(partition, self._options, self._columns, leave_out=leave_out)

    def _used_again(self) -> None:
        """Another query had this plan. Raises SettingsError if that one's filters narrowed it."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._planned_ms / 1_000))
        if self.narrowed:
            raise errors.SettingsError(
                f"this DataFrame or view was planned at {at} for another query, whose filters narrowed it "
                "(filterPushdown=true): rows would be missing; call load() for each query, or leave filterPushdown out"
            )
        log.warning(
            "a DataFrame or view is used again: it was planned at %s, and messages that were stored since are not in "
            "it; call load() for each query, or CREATE OR REPLACE the view", at,
        )  # fmt: skip


def _execution() -> str:
    """The query whose task this is; empty if nothing says so, as for a task of an RDD."""
    from pyspark import TaskContext

    context = TaskContext.get()
    ids = [context.getLocalProperty(name) for name in EXECUTION_IDS] if context is not None else []
    return next(filter(None, ids), "") or ""


def _claimed(plan: str, execution: str) -> str:
    """The first query whose task ran on this host with the plan. Links hold it: they are made with their content."""
    folder = Path(tempfile.gettempdir()) / f"evenq-plans-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            (folder / plan).symlink_to(execution)
            for old in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime_ns)[:-PLANS_MAX]:
                old.unlink(missing_ok=True)
        return str((folder / plan).readlink())
    except OSError as failure:
        log.warning("whether a plan is used again is known to single workers only: %s", failure)
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
