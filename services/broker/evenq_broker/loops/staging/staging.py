"""Rows staged at this broker: invisible until their batch is decided, then published or dropped.

Problem: Spark runs a task again, or twice at the same time, and repeats the commit of a batch whose end it did not
note. Each row must still become one message. So rows are stored invisibly, and one durable decision names the attempts
that count.

Idea: the rows of one call are a block, and a block is a timer of the store. It is durable, survives restarts, and is
rewritten before retention removes its segment. `rpc.staging.staging` stages blocks. The query's coordinator decides the
batch (`loops.staging.deciding`) and sends the decision to the brokers concerned. This broker publishes the blocks of
the winners and drops the others (`roll_forward`). A broker that missed a decision queries the coordinator (`resolve`).

Invariants:
- One group of the log holds the messages, the end of their blocks and the record `StagedEnded`: all or none. A
  published or dropped block is not in the table any more, so a repeated decision changes nothing.
- Table and journal change in the same step of the event loop. If the group is not stored, both are restored.
- Only the holder of the query's lock ends stored blocks. Earlier batches of a query are resolved before later ones.
- A broker never drops rows on its own. Their coordinator first records durably that they lost; or that coordinator was
  removed from the cluster for good, or the topic of the rows was deleted.

Example: task 0 of batch 7 runs twice (tokens A and B, 30 MiB each), task 1 once (C, 50 MiB), in blocks of 1 MiB. The
decision names A and C. With `staging.group_bytes` of 64 MiB, the first group publishes A and 34 MiB of C, the second
16 MiB of C; then B is dropped. After a crash between the groups, the next roll-forward publishes the last 16 MiB only.

References: `docs/internals/promises.md` (rows of a Spark batch); decisions 0033, 0046, 0048 and 0115. The protocol is a
two-phase commit (J. Gray, Notes on Data Base Operating Systems, 1978): staging prepares, the decision commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from evenq.errors import BadRequest, Error, Forbidden, StoreCorrupted, TooManyRequests
from evenq.model import TopicConfig
from evenq.runtime.failpoints import passing
from evenq.runtime.tasks import spawn
from evenq.store import Append, AppendBlock, StoredTimer, TimerAppend
from evenq_broker.core.shares import within_share
from evenq_broker.core.staging.decisions import QueryWriter
from evenq_broker.core.staging.rows import STAGED_ROWS, block_of, messages_of, token_and_sequence
from evenq_broker.core.staging.staged import Batch, StagedBlock, StagedRows
from evenq_broker.core.staging.staged import StagedAttempt as Staged
from evenq_broker.core.state.records import encode
from evenq_broker.core.state.staging_records import STAGING_KINDS, StagedEnded, StagedMoved, StagedPut, StagingOp
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.staging.deciding import BatchCoordinator, NameLocks, StagingStats
from evenq_broker.loops.state.kernel import Kernel

log = logging.getLogger(__name__)

DUE_TIMEOUTS = 2
"""The timer of a block fires after this many time limits. It removes an unknown block, and renews another."""
READS_MAX = 3
OVER_MAX = 10_000
"""Tokens remembered that were published or dropped here: a late call with one of them stages nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Query, batch, attempt and position of a block of rows."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int
    token: str
    sequence: int
    coordinator: str


class Staging:
    """The staged rows of one broker, and with `deciding` the decisions about them."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self.table = StagedRows()
        """Blocks that are staged and not ended, as the journal has them."""
        self.stats = StagingStats()
        self.deciding = BatchCoordinator(kernel, cluster=cluster, staging=self)
        self._settings = kernel.runtime.settings.staging
        kernel.ledger.keeps(dict.fromkeys(STAGING_KINDS, self.apply), self.dump)
        self._writing: dict[tuple[str, int], asyncio.Task[None]] = {}
        """Blocks that are being stored, by token and sequence. At most one write of a block runs."""
        self._over: dict[str, None] = {}
        """The newest `OVER_MAX` tokens with a block that ended here, oldest first."""
        self._locks = NameLocks()
        """By query id. Its holder alone settles batches of the query."""
        self._turn = 0
        """Spreads blocks over the queues of a topic."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def apply(self, op: StagingOp) -> None:
        """Applies an operation of the journal."""
        self.table.apply(op)
        self.deciding.table.apply(op)

    def dump(self) -> list[StagingOp]:
        """The state as operations."""
        return [*self.deciding.table.dump(), *self.table.dump()]

    def start(self) -> None:
        """Follows blocks that retention rewrites, and starts the sweep of undecided batches."""
        self._ledger.store.timers.on_moved = self._moved
        self._runtime.spawn(self.deciding.sweep(), name="staged rows")

    async def close(self) -> None:
        """Ends running work; the next start continues it."""
        await self.deciding.close()
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    # -- staging ------------------------------------------------------------------------------------------------------

    async def stage(self, origin: Origin, topic: TopicConfig, block: TimerAppend, rows: int, *, user: str = "") -> None:
        """Stores a block; durable when it returns. Raises BadRequest if the query has too much staged, TooManyRequests
        if all queries or those of its tenant have. Raises Forbidden and PreconditionFailed for a query of another
        writer, and errors of the store.
        """
        writer = QueryWriter(user=user, topics=(topic.name,))
        await self.deciding.may_stage(origin.query_id, origin.coordinator, writer)
        theirs = self.table.staging(origin.token)
        if theirs is not None and theirs.batch != (origin.query_id, origin.batch_id):
            raise Forbidden(
                f"the token of these rows of query {origin.query_id} belongs to other rows; use a new random token"
            )
        key = origin.token, origin.sequence
        writing = self._writing.get(key)
        if writing is None:
            # A retry of a stored or settled block: staged again, it would wait for a decision that was made before.
            if self.table.block(*key) is not None or origin.token in self._over:
                # Its record may not be safe yet: without it, a start drops the timer (decision 62).
                await self._ledger.journal.settled()
                return
            size = len(block.system)
            self._must_fit(origin.query_id, topic.name, size)
            writing = self._writing[key] = spawn(self._put(origin, topic, block, rows, size), name="stage rows")
            writing.add_done_callback(lambda task: self._written(key, task))
        await asyncio.shield(writing)  # also if the call is cancelled: its retry waits for the same write

    async def _put(self, origin: Origin, topic: TopicConfig, block: TimerAppend, rows: int, size: int) -> None:
        now_ms = self._runtime.clock.now_ms()
        block.due_ms = now_ms + DUE_TIMEOUTS * self._settings.timeout_ms
        stored = self._ledger.store.append((), timers=(block,))
        number = block.log_offset
        put = StagedPut(
            number,
            number,
            origin.query_id,
            origin.batch_id,
            origin.partition_id,
            origin.attempt_id,
            origin.token,
            origin.sequence,
            origin.coordinator,
            topic.topic_id,
            rows,
            size,
            now_ms,
        )
        self.table.apply(put)
        recorded = self._ledger.journal.record(put)
        try:
            await stored
        except Error:  # the log has no block: a retry stages it again
            self.table.end([number])
            self._ledger.journal.record(StagedEnded((number,)))
            raise
        await recorded
        self.stats.staged_rows += rows
        passing("staging.staged")

    def _written(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        del self._writing[key]
        if not task.cancelled():
            # Retrieved, because asyncio logs an exception that no caller awaits.
            task.exception()

    def _must_fit(self, query_id: str, topic: str, size: int) -> None:
        settings, name = self._settings, self._runtime.settings.broker_name
        of_query = self.table.query_bytes(query_id) + size
        # A retry does not help here: only the query's own decision frees space, and it waits for this block.
        if of_query > settings.query_bytes_max:
            raise BadRequest(
                f"query {query_id} has {self.table.query_bytes(query_id)} bytes staged for topic {topic} at broker "
                f"{name}, the limit is {settings.query_bytes_max} (staging.query_bytes_max): write less in one batch "
                "(maxOffsetsPerTrigger of the source), raise the limit, or write with delivery=atLeastOnce"
            )
        limit, total = settings.bytes_max, self.table.bytes
        if within_share(limit, total=total, own=total, more=size):
            return  # without counting the tenant's part
        tenant = self.deciding.tenant_of(query_id)
        own = sum(self.table.query_bytes(one) for one in self.table.queries() if self.deciding.tenant_of(one) == tenant)
        if not within_share(limit, total=total, own=own, more=size):
            raise TooManyRequests(
                f"{total} bytes are staged at broker {name}, {own} of them of {tenant or 'unsigned calls'}; the limit "
                f"is {limit} (staging.bytes_max), and one user or topic may have three times what is left of it: retry "
                "when other queries have decided their batches"
            )

    # -- decided batches ----------------------------------------------------------------------------------------------

    async def roll_forward(self, batch: Batch, coordinator: str, winners: Collection[str]) -> int:
        """Publishes the winners of a decided batch that are here, drops the others; earlier batches of the query go
        first. Returns the number of rows published by this call, durably. Raises errors of the store or the
        coordinator.
        """
        async with self._locks.of(batch[0]):
            for earlier in self.table.batches_before(batch):
                await self._resolve(earlier)
            return await self._settle(batch, coordinator, winners)

    async def resolve(self, batch: Batch) -> None:
        """Queries the outcome of a batch and applies it. Raises errors of the store or the coordinator."""
        async with self._locks.of(batch[0]):
            await self._resolve(batch)

    def broker_forgotten(self, name: str) -> None:
        """Drops rows of a coordinator that was removed for good: no broker knows its decisions any more."""
        self.deciding.broker_forgotten(name)
        for batch in self.table.batches():
            if any(staging.coordinator == name for staging in self.table.of(batch)):
                self.deciding.later(self._drop_of(batch, name), "drop rows of a forgotten coordinator")

    async def _drop_of(self, batch: Batch, coordinator: str) -> None:
        async with self._locks.of(batch[0]):
            mine = [staging for staging in self.table.of(batch) if staging.coordinator == coordinator]
            await self._drop(mine, f"broker {coordinator}, which decides about them, is forgotten")

    async def _resolve(self, batch: Batch) -> None:
        limit_ms = self._runtime.clock.now_ms() - self._settings.timeout_ms
        for coordinator in sorted({staging.coordinator for staging in self.table.of(batch)}):
            mine = [staging for staging in self.table.of(batch) if staging.coordinator == coordinator]
            expired = [staging.token for staging in mine if staging.staged_ms <= limit_ms]
            outcome = await self.deciding.outcome_from(coordinator, batch, [one.token for one in mine], expired)
            if outcome.decided:  # the roll-forward to this broker was lost or is late
                await self._settle(batch, coordinator, outcome.winners)
            else:  # undecided: only rows that the coordinator excluded are dropped, the others wait
                lost = [staging for staging in mine if staging.token in outcome.dropped]
                await self._drop(lost, "no decision came in time, or its task failed")

    async def _settle(self, batch: Batch, coordinator: str, winners: Collection[str]) -> int:
        mine = [staging for staging in self.table.of(batch) if staging.coordinator == coordinator]
        blocks = [block for staging in mine if staging.token in winners for block in staging.in_order()]
        published = await self._publish_all(list(_groups(blocks, self._settings.group_bytes)))
        if published:
            log.info(
                "published %d staged rows of query %s, batch %d, decided at broker %s", published, *batch, coordinator
            )
        await self._drop([staging for staging in mine if staging.token not in winners], "another attempt won")
        return published

    async def _publish_all(self, groups: Sequence[Sequence[StagedBlock]]) -> int:
        """Publishes one group of the log after another. While one is packed and written, the next one is read."""
        published = 0
        ahead: asyncio.Task[list[StoredTimer]] | None = None
        try:
            for at, group in enumerate(groups, 1):
                frames = await (self._frames(group) if ahead is None else ahead)
                ahead = spawn(self._frames(groups[at]), name="read staged rows") if at < len(groups) else None
                published += await self._publish(group, frames)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        return published

    async def _publish(self, blocks: Sequence[StagedBlock], frames: Sequence[StoredTimer]) -> int:
        """Publishes one group of the log; the blocks of a deleted topic end without messages."""
        now_ms = self._runtime.clock.now_ms()
        messages = _Messages()
        for block, frame in zip(blocks, frames, strict=True):
            topic = self._catalog.topics.by_id(block.put.topic_id)
            if topic is None:
                log.warning(
                    "%d rows of query %s, batch %d are dropped: their topic was deleted",
                    block.put.rows,
                    block.put.query_id,
                    block.put.batch_id,
                )
                continue
            self._turn += 1
            messages.add(frame, topic, self._turn % topic.write_queues, now_ms)
            # A block has thousands of rows: other calls run between two blocks.
            await self._runtime.clock.sleep_ms(0)
        gone = [block for block in blocks if self.table.by_number(block.put.number) is None]
        assert not gone, "only the holder of the query's lock ends its blocks"
        numbers = tuple(block.put.number for block in blocks)
        passing("staging.publishing")
        await self._ended(numbers, messages)
        passing("staging.published")
        for topic_id, sizes in messages.sizes():
            self._runtime.stats.topic(topic_id).came(sizes)
        self.stats.published_rows += len(messages)
        return len(messages)

    async def _ended(self, numbers: tuple[int, ...], messages: _Messages | None = None) -> None:
        """Ends blocks and appends their messages in one group; memory and log change in the same step."""
        ids = [block.timer_id for number in numbers if (block := self.table.by_number(number)) is not None]
        self._ledger.journal.flush()  # earlier records of these blocks must precede their end
        new = messages if messages is not None else _Messages()
        stored = self._ledger.store.append(
            new.entries, state=encode([StagedEnded(numbers)]), timers=new.timers, ended=ids, blocks=new.blocks
        )
        undo = self.table.end(numbers)
        for put in undo:
            self._over[put.token] = None
        while len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]
        stored.add_done_callback(lambda done: self._taken_back(done, undo))  # also if the caller is cancelled by then
        await asyncio.shield(stored)

    def _taken_back(self, done: asyncio.Future[None], puts: Sequence[StagedPut]) -> None:
        if done.cancelled() or done.exception() is not None:  # the group is not in the log: its blocks are staged again
            for put in puts:
                self.table.apply(put)
                self._over.pop(put.token, None)
            self._ledger.journal.record(*puts)

    async def _drop(self, stagings: Sequence[Staged], why: str) -> None:
        for staging in stagings:
            rows = staging.rows
            await self._ended(tuple(block.put.number for block in staging.in_order()))
            self.stats.dropped_rows += rows
            self.stats.dropped_stagings += 1
            log.info(
                "dropped %d staged rows of query %s, batch %d, partition %d, attempt %d: %s",
                rows,
                staging.query_id,
                staging.batch_id,
                staging.partition_id,
                staging.attempt_id,
                why,
            )

    async def _frames(self, blocks: Sequence[StagedBlock]) -> list[StoredTimer]:
        """Reads blocks from the log. Retention may move one between two tries. Raises StoreCorrupted."""
        timers: list[StoredTimer | None] = [None] * len(blocks)
        for _ in range(READS_MAX):
            missing = [at for at, frame in enumerate(timers) if frame is None]
            frames = await self._ledger.store.read_timers([blocks[at].timer_id for at in missing])
            for at, frame in zip(missing, frames, strict=True):
                if frame is not None and _is_of(frame, blocks[at].put):
                    timers[at] = frame
            if None not in timers:
                break
        for block, frame in zip(blocks, timers, strict=True):
            if frame is None:
                put = block.put
                raise StoreCorrupted(
                    f"log offset {block.timer_id} holds no whole block of staged rows: {put.rows} rows of query "
                    f"{put.query_id}, batch {put.batch_id}, partition {put.partition_id} cannot be published"
                )
        return [frame for frame in timers if frame is not None]

    # -- timers -------------------------------------------------------------------------------------------------------

    def due(self, timer: StoredTimer) -> TimerAppend | None:
        """Returns the timer to write again for a block that is still staged; None removes the block."""
        token, sequence = token_and_sequence(timer)
        block = self.table.block(token.hex(), sequence)
        if block is None:  # published or dropped, or a crash came between the block and its record
            return None
        due_ms = self._runtime.clock.now_ms() + DUE_TIMEOUTS * self._settings.timeout_ms
        again = TimerAppend(
            timer.topic_id,
            timer.queue_id,
            timer.tag_hash,
            due_ms=due_ms,
            kind=STAGED_ROWS,
            born_ms=timer.born_ms,
            head=timer.head,
            system=timer.system,
        )
        asyncio.get_running_loop().call_soon(self._renewed, block.put.number, again)  # it gets its offset in this step
        return again

    def _renewed(self, number: int, timer: TimerAppend) -> None:
        # If the disk is full and its group fails, the timer fires again and gets another offset.
        if timer.log_offset >= 0 and self.table.by_number(number) is not None:
            op = StagedMoved(number, timer.log_offset)
            self.table.apply(op)
            self._ledger.journal.record(op)

    def _moved(self, moved: Iterable[tuple[int, TimerAppend]]) -> asyncio.Future[None] | None:
        """Notes new offsets of rewritten blocks; `moved` has the previous ones."""
        ops = []
        for before, timer in moved:
            if timer.kind != STAGED_ROWS or timer.log_offset < 0:
                continue
            token, sequence = token_and_sequence(timer)
            block = self.table.block(token.hex(), sequence)
            if block is not None and block.timer_id == before:  # otherwise the block has a newer offset
                ops.append(StagedMoved(block.put.number, timer.log_offset))
        for op in ops:
            self.table.apply(op)
        return self._ledger.journal.record(*ops) if ops else None


class _Messages:
    """Messages of one group: whole blocks, then single ones from the first row with a future delivery time on."""

    def __init__(self) -> None:
        self.blocks: list[AppendBlock] = []
        self.entries: list[Append] = []
        self.timers: list[TimerAppend] = []

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) + len(self.entries) + len(self.timers)

    def add(self, frame: StoredTimer, topic: TopicConfig, queue_id: int, now_ms: int) -> None:
        """Adds the rows of one more block; those without a queue of their own go to `queue_id`."""
        if not self.entries and not self.timers:  # the store appends blocks before messages
            block = block_of(frame, topic, queue_id=queue_id, now_ms=now_ms)
            if block is not None:
                self.blocks.append(block)
                return
        for message in messages_of(frame, topic, queue_id=queue_id, now_ms=now_ms):
            if isinstance(message, Append):
                self.entries.append(message)
            else:
                self.timers.append(message)

    def sizes(self) -> Iterator[tuple[int, list[int]]]:
        """Yields the bytes of each message that is stored now, topic by topic."""
        for block in self.blocks:
            yield block.topic_id, block.sizes()
        by_topic: dict[int, list[int]] = {}
        for entry in self.entries:
            by_topic.setdefault(entry.topic_id, []).append(len(entry.head) + len(entry.system))
        yield from by_topic.items()


def _groups(blocks: Sequence[StagedBlock], bytes_max: int) -> Iterable[list[StagedBlock]]:
    group: list[StagedBlock] = []
    size = 0
    for block in blocks:
        if group and size + block.put.size > bytes_max:
            yield group
            group, size = [], 0
        group.append(block)
        size += block.put.size
    if group:
        yield group


def _is_of(timer: StoredTimer, put: StagedPut) -> bool:
    return timer.kind == STAGED_ROWS and token_and_sequence(timer) == (bytes.fromhex(put.token), put.sequence)
