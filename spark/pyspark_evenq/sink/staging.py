"""One attempt of a task of a transactional batch: its rows are staged at the brokers, several blocks in parallel.

Problem: Spark runs a task again after a failure, and twice at the same time with speculation. Each row must still
become one message. A worker cannot know which attempt counts, and it may die after any call.

Idea: an attempt has a random token, and all of its blocks carry it. Brokers keep them invisible. The driver then sends
the tokens of the successful attempts to the query's coordinator (`writer.commit`), and only their rows become messages.
So attempts that failed, were repeated or ran twice need no treatment here.

Invariants:
- A block has the token and the next number of its broker. A retried call has the same number, and the broker stores it
  once. Brokers publish the blocks of a token in the order of their numbers.
- Rows with a message group or a queue id go to one broker, so the numbers keep their order. Other rows go to the
  brokers in turn, block by block.
- `stage` returns only when brokers have acknowledged every block. If any call fails, the attempt fails.
- If the coordinator has decided the batch before, nothing is sent. Rows are only counted and hashed, so that the
  coordinator can compare the repeated batch with the decided one (decision 115).
- Nothing here drops rows that could have won: an abandoned token belongs to an attempt that failed.

Example: partition 4 has 10,000 rows of 2 KiB without a message group, `blockRows` is 1,000 and `blockBytes` 1 MiB. They
become 20 blocks: 19 of 512 rows and one of 272. With brokers a, b and c, the first block goes to c (4 + 1 modulo 3),
then a, b, c and so on. c and a get 7 blocks each, with numbers 0 to 6, and b gets 6. At most `inFlight` (4) calls run
at the same time. If the worker dies after 12 blocks, the next attempt stages all rows under another token; the 12
blocks are dropped when the coordinator has recorded that their token lost.

References: decisions 33 (staged rows, one coordinator), 46 and 115; docs/internals/promises.md (rows of a Spark batch).
The protocol is a two-phase commit (J. Gray, Notes on Data Base Operating Systems, 1978), of which this is the prepare.
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
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink import cluster as sink_cluster
from pyspark_evenq.sink.blocks import CHECKSUM_SPAN, SinkTarget, checksum_of, joined, pack, parted, pieces
from pyspark_evenq.sink.rows import checked

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 6 << 20
"""Brokers accept up to 8 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """Identity of an attempt."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Result of an attempt, sent to the driver."""

    token: bytes
    coordinator: str
    address: str
    topics: tuple[str, ...]
    brokers: tuple[str, ...]
    """Brokers that have rows of the attempt; none if the batch was decided before."""
    rows: int
    checksum: int
    """Of all rows, as in `blocks.checksum_of`."""


class Routes(dict[str, sink_cluster.Brokers]):
    """Topic -> its route, queried when first needed."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__()
        self._options = options

    def __missing__(self, topic: str) -> sink_cluster.Brokers:
        options = self._options
        brokers = self[topic] = sink_cluster.route_of(options.endpoints, topic, timeout_ms=options.write_timeout_ms)
        return brokers


class QueuesOf(dict[str, Sequence[MessageQueue]]):
    """Topic -> its writable queues, for `blocks.parted`."""

    def __init__(self, routes: Routes) -> None:
        super().__init__()
        self._routes = routes

    def __missing__(self, topic: str) -> Sequence[MessageQueue]:
        return self._routes[topic].queues


def stage(options: WriteOptions, attempt: TaskAttempt, rows: Iterator[pa.RecordBatch]) -> Staged | None:
    """Stages all rows; brokers have stored them when it returns. Rows of a batch that was decided before are only
    counted. Returns None without a row and a topic of the options: then there is nothing to decide.
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
        """Ordered set of the topics with rows of this attempt; the first one also before it has rows."""
        self._addresses = dict(routes[topic].addresses)
        """Writable brokers of the first topic: the coordinator is one, or is called through one (`address_of`)."""
        self._sequences: dict[str, int] = {}
        """Broker -> number of its next block. A broker is in it exactly if it may have rows of this attempt."""
        self._added = 0
        """Rows that were checked, sent or not."""
        self._rows = 0
        """Rows that were sent: the number of the next row in the blocks. 0 for a batch that was decided before."""
        self._checksum = 0
        """Sum of the hashes of all added rows, for the comparison with a decided batch."""
        # Not 0: the tasks of a batch start together, and would all send their first block to the same broker.
        self._turn = attempt.partition_id
        self._pool = ThreadPoolExecutor(options.in_flight, "evenq-sink")
        self._running: deque[Future[None]] = deque()
        """At most `in_flight` calls whose result was not checked yet, oldest first."""
        beginning = sink_cluster.BegunBatch(
            query_id=attempt.query_id,
            batch_id=attempt.batch_id,
            topic=topic,
            fixed_topic=bool(options.topic),
            on_decided=options.on_decided_batch,
        )
        self.coordinator, self._decided = sink_cluster.coordinator_of(
            self._addresses, beginning, timeout_ms=options.write_timeout_ms
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Starts sending the rows of one Arrow batch; waits while too many calls run. Raises failures of calls."""
        options = self._options
        batch = checked(batch, first_row=self._added)
        self._added += batch.num_rows
        for piece in pieces(batch, rows_max=options.block_rows, bytes_max=options.block_bytes):
            self._checksum += checksum_of(piece)
        if self._decided:  # a repeated batch: its content is compared, nothing is sent
            return
        for target, part in parted(batch, options.topic, self._queues):
            for piece in pieces(part, rows_max=options.block_rows, bytes_max=options.block_bytes):
                self._send(target, piece)

    def _send(self, target: SinkTarget, piece: pa.RecordBatch) -> None:
        from evenq.wire.stubs.evenq.v1 import staging_pb2

        brokers = self._routes[target.topic]
        name = target.broker_name
        if not name:  # no fixed broker: block by block to the next one
            names = list(brokers.addresses)
            self._turn += 1
            name = names[self._turn % len(names)]
        attempt = self._attempt
        head = staging_pb2.StageRequest(
            topic=target.topic,
            query_id=attempt.query_id,
            batch_id=attempt.batch_id,
            partition_id=attempt.partition_id,
            attempt_id=attempt.attempt_id,
            token=self._token,
            coordinator=self.coordinator,
            sequence=self._sequences.get(name, 0),
        )
        request = joined(head, pack(piece, first_row=self._rows, born_ms=time.time_ns() // 1_000_000))
        if len(request) > REQUEST_BYTES_MAX and piece.num_rows > 1:
            # Pieces are cut by the rows' mean size, so one with a few large rows may exceed the brokers' limit.
            half = piece.num_rows // 2
            self._send(SinkTarget(target.topic, name, target.queue_id), piece.slice(0, half))
            self._send(SinkTarget(target.topic, name, target.queue_id), piece.slice(half))
            return
        # Before the call, which may store the block even if it fails.
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
        """Waits until brokers have stored all rows. Raises the failure of any call."""
        while self._running:
            self._running.popleft().result()
        self._pool.shutdown()
        return Staged(
            token=self._token,
            coordinator=self.coordinator,
            address=self._at(),
            topics=tuple(self._topics),
            brokers=tuple(self._sequences),
            rows=self._added,
            checksum=self._checksum % CHECKSUM_SPAN,
        )

    def give_up(self) -> None:
        """Drops the staged rows of a failed task."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Otherwise no broker has a row of this attempt, so none needs its token.
        if self._sequences:
            attempt = self._attempt
            with contextlib.suppress(errors.Error):  # brokers drop the rows after `staging.timeout_ms`
                sink_cluster.abandon(self._at(), attempt.query_id, attempt.batch_id, list(self._topics), [self._token])

    def _at(self) -> str:
        return sink_cluster.address_of(self._addresses, self.coordinator)
