"""The writers that Spark builds for `df.write` and `df.writeStream`: tasks send rows, the driver decides batches.

`write` runs in Spark's workers, `commit` and `abort` on the driver, in other instances that share only pickled state.
So the tasks' messages contain everything that a commit needs. Tasks of a stream read query and batch from local
properties of Spark; a batch job has its own id, made with the writer.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from evenq import errors
from evenq.runtime.allocator import keep_freed_memory
from pyspark_evenq.brokers import connection
from pyspark_evenq.options.sink import DeliveryGuarantee, WriteOptions
from pyspark_evenq.rows.collector import freeze_libraries
from pyspark_evenq.sink import cluster as sink_cluster
from pyspark_evenq.sink.blocks import CHECKSUM_SPAN
from pyspark_evenq.sink.publishing import publish
from pyspark_evenq.sink.staging import Staged, TaskAttempt, stage

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
JOB_PREFIX = "job-"


@dataclass
class Done(WriterCommitMessage):
    """Message of a finished task to the driver."""

    query_id: str
    staged: Staged | None
    """None: there is nothing to decide."""


def write(options: WriteOptions, query_id: str, batch_id: int, rows: Iterator[pa.RecordBatch]) -> Done:
    """Runs one attempt of one task: brokers have stored its rows when this returns."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise errors.InternalError("a writer of the evenq sink runs outside of a task of Spark")
    _connect(options)
    keep_freed_memory()  # of blocks: each is packed, sent and freed
    attempt = TaskAttempt(
        query_id=query_id, batch_id=batch_id, partition_id=context.partitionId(), attempt_id=context.taskAttemptId()
    )
    staged = None
    if options.delivery is DeliveryGuarantee.TRANSACTIONAL:
        staged = stage(options, attempt, rows)
    else:
        publish(options, attempt, rows)
    if options.gc_freeze:
        freeze_libraries()
    return Done(query_id, staged)


def commit(options: WriteOptions, batch_id: int, messages: list[WriterCommitMessage | None]) -> None:
    """Decides the batch after all tasks, once, however often this is called."""
    done = [message for message in messages if isinstance(message, Done) and message.staged is not None]
    if not done:
        return
    _connect(options)
    staged = [message.staged for message in done if message.staged is not None]
    query_id, coordinators = done[0].query_id, sorted({one.coordinator for one in staged})
    if len(coordinators) > 1:
        raise errors.PreconditionFailed(
            f"the tasks of batch {batch_id} of query {query_id} found different coordinators, {coordinators}, because "
            "the brokers changed while it began: run the batch again. If it fails again, a broker is of an older "
            "version and the topics of the rows are at different brokers: upgrade it, or write these topics with one "
            "query each"
        )
    first = staged[0]
    topics = sorted({topic for one in staged for topic in one.topics})
    # A task without rows has staged nothing, so no broker has its token.
    winners = [sink_cluster.Winner(one.token, one.brokers) for one in staged if one.brokers]
    rows = sum(one.rows for one in staged)
    already, behind = sink_cluster.decide(
        first.address,
        query_id,
        batch_id,
        topics,
        winners,
        rows=rows,
        checksum=sum(one.checksum for one in staged) % CHECKSUM_SPAN,
        on_decided=options.on_decided_batch,
        timeout_ms=options.write_timeout_ms,
    )
    how = "was decided before; nothing is written again" if already else f"is decided, {rows} rows"
    log.info("batch %d of query %s %s (coordinator %s)", batch_id, query_id, how, coordinators[0])
    if behind:
        log.warning(
            "batch %d of query %s is decided; brokers %s publish their part of it when they are back",
            batch_id,
            query_id,
            ", ".join(behind),
        )


def abort(options: WriteOptions, batch_id: int, messages: list[WriterCommitMessage | None]) -> None:
    """Drops the rows of a failed batch, unless it was decided after all."""
    done = [message for message in messages if isinstance(message, Done) and message.staged is not None]
    if not done:
        return
    staged = [message.staged for message in done if message.staged is not None]
    topics = sorted({topic for one in staged for topic in one.topics})
    try:
        _connect(options)
        sink_cluster.abandon(
            staged[0].address, done[0].query_id, batch_id, topics, [one.token for one in staged if one.brokers]
        )
    except errors.Error as error:
        log.warning(
            "rows of batch %d could not be dropped and stay staged until staging.timeout_ms: %s",
            batch_id,
            error.message,
        )


def _connect(options: WriteOptions) -> None:
    connection.sign_with(options.connection.credentials())
    connection.secure_with(options.connection.tls())


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of the micro-batches of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch_id = context.getLocalProperty(BATCH_ID) if context is not None else None
        if not query_id or batch_id is None:
            raise errors.InternalError("Spark does not set query and batch of this task; use PySpark 4.2 or newer")
        return write(self._options, query_id, int(batch_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Decides a batch; Spark repeats the call for a batch that it runs again."""
        commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        abort(self._options, batchId, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writer of one DataFrame."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._query_id = f"{JOB_PREFIX}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write(self._options, self._query_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options, 0, messages)
