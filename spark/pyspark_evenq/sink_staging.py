"""One attempt of a task of a transactional batch: its rows are staged at the brokers, several blocks at a time.

Called by `sink_writer.write`. An attempt has a random token; only the attempts whose tokens the driver lists in its
decision become messages, so attempts that failed, were repeated or ran twice need no care here.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq import sink_cluster
from pyspark_evenq.sink_blocks import CHECKSUM_SPAN, SinkTarget, checksum_of, joined, pack, parted, pieces
from pyspark_evenq.sink_options import WriteOptions
from pyspark_evenq.sink_rows import checked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Routes", "Staged", "TaskAttempt", "stage"]

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 6 << 20
"""Brokers read 8 MiB at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """Whose rows they are."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What became of an attempt's rows; travels to the driver."""

    token: bytes
    coordinator: str
    address: str
    """Of the coordinator."""
    topics: tuple[str, ...]
    brokers: tuple[str, ...]
    """That have rows of it; none if the batch was decided before."""
    rows: int
    checksum: int
    """Of all rows, as `sink_blocks.checksum_of` has it."""


class Routes(dict[str, sink_cluster.Brokers]):
    """Routes of topics, asked for when first needed."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__()
        self._options = options

    def __missing__(self, topic: str) -> sink_cluster.Brokers:
        options = self._options
        brokers = self[topic] = sink_cluster.route_of(options.endpoints, topic, timeout_ms=options.write_timeout_ms)
        return brokers


class QueuesOf(dict[str, Sequence[MessageQueue]]):
    """The same, as `sink_blocks.parted` asks for it."""

    def __init__(self, routes: Routes) -> None:
        super().__init__()
        self._routes = routes

    def __missing__(self, topic: str) -> Sequence[MessageQueue]:
        return self._routes[topic].queues


def stage(options: WriteOptions, attempt: TaskAttempt, rows: Iterator[pa.RecordBatch]) -> Staged | None:
    """Stage all rows; safe at the brokers when it returns. Of a batch that was decided before they are only
    counted. None if there is no row and no topic to ask a broker about.
    """
    writer: _Stager | None = None
    routes = Routes(options)
    if options.topic:
        writer = _Stager(options, attempt, routes, options.topic)
    try:
        for batch in rows:
            if writer is None and batch.num_rows:
                topic = next(filter(None, batch.column("topic").to_pylist()), "")
                writer = _Stager(options, attempt, routes, topic) if topic else None
            if writer is None:
                if batch.num_rows:
                    raise errors.SettingsError("a row has no topic: its column topic is null or empty")
            else:
                writer.add(batch)
        return None if writer is None else writer.finish()
    except BaseException:
        if writer is not None:
            writer.give_up()
        raise


class _Stager:
    """The blocks of one attempt."""

    def __init__(self, options: WriteOptions, attempt: TaskAttempt, routes: Routes, topic: str) -> None:
        self._options = options
        self._attempt = attempt
        self._routes = routes
        self._queues = QueuesOf(routes)
        # Random, not Spark's attempt id: that begins at 0 again with each driver (decision 33).
        self._token = uuid.uuid4().bytes
        self._topics = {topic: None}
        self._addresses = dict(routes[topic].addresses)
        self._sequences: dict[str, int] = {}
        self._added = 0
        """Rows that were checked; of a batch that is to be decided `_rows` were sent of them."""
        self._rows = 0
        self._checksum = 0
        # Not 0: the tasks of a batch begin together, and would all send their first block to the same broker.
        self._turn = attempt.partition_id
        self._pool = ThreadPoolExecutor(options.in_flight, "evenq-sink")
        self._running: deque[Future[None]] = deque()
        beginning = sink_cluster.Beginning(
            query_id=attempt.query_id, batch_id=attempt.batch_id, topic=topic, fixed_topic=bool(options.topic),
            on_decided=options.on_decided_batch,
        )  # fmt: skip
        self.coordinator, self._decided = sink_cluster.coordinator_of(
            self._addresses, beginning, timeout_ms=options.write_timeout_ms
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch on their way; waits while too many are. Raises what went wrong with any."""
        options = self._options
        batch = checked(batch, first_row=self._added)
        self._added += batch.num_rows
        for piece in pieces(batch, rows_max=options.block_rows, bytes_max=options.block_bytes):
            self._checksum += checksum_of(piece)
        if self._decided:
            return
        for target, part in parted(batch, options.topic, self._queues):
            for piece in pieces(part, rows_max=options.block_rows, bytes_max=options.block_bytes):
                self._send(target, piece)

    def _send(self, target: SinkTarget, piece: pa.RecordBatch) -> None:
        from evenq.wire.stubs.evenq.v1 import staging_pb2

        brokers = self._routes[target.topic]
        name = target.broker_name
        if not name:  # the rows may go anywhere: block after block to the next broker
            names = list(brokers.addresses)
            self._turn += 1
            name = names[self._turn % len(names)]
        attempt = self._attempt
        head = staging_pb2.StageRequest(
            topic=target.topic, query_id=attempt.query_id, batch_id=attempt.batch_id,
            partition_id=attempt.partition_id, attempt_id=attempt.attempt_id, token=self._token,
            coordinator=self.coordinator, sequence=self._sequences.get(name, 0),
        )  # fmt: skip
        request = joined(head, pack(piece, first_row=self._rows, born_ms=time.time_ns() // 1_000_000))
        if len(request) > REQUEST_BYTES_MAX and piece.num_rows > 1:
            # Rows are cut by their mean size, so a piece with a few large ones may be over what a broker reads.
            half = piece.num_rows // 2
            self._send(SinkTarget(target.topic, name, target.queue_id), piece.slice(0, half))
            self._send(SinkTarget(target.topic, name, target.queue_id), piece.slice(half))
            return
        # Counted per broker: a block that is sent again has the same number, and is stored once.
        self._sequences[name] = self._sequences.get(name, 0) + 1
        self._rows += piece.num_rows
        self._topics[target.topic] = None
        while len(self._running) >= self._options.in_flight:
            self._running.popleft().result()
        self._running.append(
            self._pool.submit(
                sink_cluster.stage, brokers.addresses[name], request, timeout_ms=self._options.write_timeout_ms
            )
        )

    def finish(self) -> Staged:
        """All rows were added: wait until they are safe."""
        while self._running:
            self._running.popleft().result()
        self._pool.shutdown()
        return Staged(
            token=self._token, coordinator=self.coordinator, address=self._at(), topics=tuple(self._topics),
            brokers=tuple(self._sequences), rows=self._added, checksum=self._checksum % CHECKSUM_SPAN,
        )  # fmt: skip

    def give_up(self) -> None:
        """The task failed: what it staged shall go."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Else no broker has a row of this attempt, and none needs to hear of its token.
        if self._sequences:
            attempt = self._attempt
            with contextlib.suppress(errors.Error):  # then it goes when its time is over
                sink_cluster.abandon(self._at(), attempt.query_id, attempt.batch_id, list(self._topics), [self._token])

    def _at(self) -> str:
        return sink_cluster.address_of(self._addresses, self.coordinator)
