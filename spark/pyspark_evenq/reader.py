"""The batch reader: the messages between two sets of offsets, fixed when the query is planned.

Spark builds it in a short-lived planner process, calls `partitions` once and sends the pickled object to its workers,
which call `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster, connection, scanning
from pyspark_evenq.arrow_schema import Column
from pyspark_evenq.options import OffsetSpec, Place, ReadOptions
from pyspark_evenq.planner import QueueRange, tasks, trimmed
from pyspark_evenq.positions import QueueState, loss_of, resolve

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader"]


class BatchReader(DataSourceReader):
    """Reads each queue from its start to its end once."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Ask the brokers where the queues begin and end, and cut that into tasks."""
        options = self._options
        connection.sign_with(options.credentials())
        connection.secure_with(options.tls())
        route = cluster.persist(
            "the route", lambda: cluster.route(options.endpoints, options.topics), timeout_ms=options.read_timeout_ms
        )
        wants_group = options.starting is not None and options.starting.place is Place.GROUP
        states = cluster.states(route, options, group=options.group if wants_group else "")
        ranges = _ranges(options, states)
        planned = tasks(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            min_records=options.min_records_per_partition,
            ordered=cluster.ordered_topics(options),
        )
        return list(scanning.scan_tasks(planned, route))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches."""
        return scanning.read(partition, self._options, self._columns)


def _ranges(options: ReadOptions, states: dict[MessageQueue, QueueState]) -> list[QueueRange]:
    bounds = {queue: state.bounds for queue, state in states.items()}
    starts = resolve(
        options.starting or OffsetSpec(place=Place.EARLIEST),
        states,
        without_commit=Place.EARLIEST,
        by_timestamp=options.starting_timestamp_ms > 0,
    )
    ends = resolve(options.ending or OffsetSpec(place=Place.LATEST), states, without_commit=Place.LATEST)
    if options.fail_on_data_loss:
        for gone in (*trimmed(starts, bounds), *trimmed(ends, bounds)):
            raise loss_of(gone)
    ranges = []
    for queue, bound in sorted(bounds.items()):
        start = min(max(starts[queue], bound.low), bound.high)
        end = min(ends[queue], bound.high)
        if start < end:
            ranges.append(QueueRange(queue=queue, start=start, end=end))
    return ranges
