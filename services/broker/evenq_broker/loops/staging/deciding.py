"""Decisions about batches of staged rows. The query's coordinator makes each once; brokers receive or query it.

`rpc.staging.staging` begins, decides and abandons. `sweep` continues after a crash or the absence of a broker: the
coordinator rolls forward decided batches, and every broker queries the outcome of stagings without one. A decision is
durable before a caller or broker receives it; so is the record that a token shall never win. Rows are dropped only
after that record, however long the coordinator is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evenq.errors import BadRequest, ConnectionFailed, Error, PreconditionFailed, TooManyRequests
from evenq.runtime.failpoints import passing
from evenq.runtime.tasks import outlasting, spawn
from evenq_broker.core.shares import within_share
from evenq_broker.core.staging.decisions import (
    BatchContent,
    BatchOutcome,
    Decisions,
    OnDecided,
    Query,
    QueryWriter,
)
from evenq_broker.core.staging.staged import Batch, StagedRows
from evenq_broker.core.state.staging_records import (
    BatchDecided,
    QueryForgotten,
    QueryKnown,
    RolledForward,
    StagingOp,
    TokensDropped,
)
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.staging import ask_outcome, check_rolled_forward, outcome_of, roll_forward

log = logging.getLogger(__name__)
ROLL_FORWARD = "/evenq.v1.Staging/RollForward"
OUTCOME = "/evenq.v1.Staging/Outcome"
ROLL_MS = 60_000
"""Deadline of a roll-forward at another broker: it may have many rows to write."""
ROLL_WAIT_MS = 20_000
"""Longest wait of a decision's caller until brokers are rolled forward."""
DROPPED_MAX = 100_000
TOKENS_MAX = 2_000_000
"""Of all queries: winners that a broker has not published, and tokens that were dropped without a decision."""
QUERY_ID_MAX = 255
_ANYBODY = QueryWriter()
"""Brokers, and clients whose calls are not signed and name no topics."""


class NameLocks:
    """Locks by name: work on one name runs one after another, work on different names in parallel. There is one lock
    for each name that is held or waited for; other names take no memory.
    """

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Holds the lock of this name."""
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[name]
            if users > 1:
                self._locks[name] = lock, users - 1
            else:
                del self._locks[name]


@dataclass(slots=True)
class StagingStats:
    """Counters since the start."""

    staged_rows: int = 0
    published_rows: int = 0
    dropped_rows: int = 0
    dropped_stagings: int = 0
    decisions: int = 0


class StagedHere(Protocol):
    """The staged rows of this broker, as the decisions use them."""

    stats: StagingStats
    table: StagedRows

    async def roll_forward(self, batch: Batch, coordinator: str, winners: Collection[str]) -> int: ...
    async def resolve(self, batch: Batch) -> None: ...


class BatchCoordinator:
    """The queries known here, and the batches that this broker decides."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, staging: StagedHere) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._staging = cluster, staging
        self.table = Decisions()
        self._locks = NameLocks()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent: Counter[str] = Counter()
        """Brokers that do not answer, and the number of failed calls in a row."""

    @property
    def own(self) -> str:
        """This broker's name."""
        return self._runtime.settings.broker_name

    def tenant_of(self, query_id: str) -> str:
        """Returns the tenant whose share of the limits the query counts to; "" if it is not known."""
        query = self.table.queries.get(query_id)
        return "" if query is None else query.tenant

    # -- what writers call --------------------------------------------------------------------------------------------

    async def begin(
        self,
        query_id: str,
        batch_id: int,
        coordinator: str,
        *,
        writer: QueryWriter = _ANYBODY,
        on_decided: OnDecided = OnDecided.FAIL,
    ) -> tuple[str, bool]:
        """Returns the query's coordinator as known here ("": not known), and whether that is this broker and it decided
        the batch. `coordinator`: recorded durably if none is known. Raises BadRequest, TooManyRequests; Forbidden and
        PreconditionFailed for a query of another writer (`QueryWriter.must_own`) or an older batch
        (`Query.must_repeat`).
        """
        _check(query_id, batch_id)
        async with self._locks.of(query_id):  # a decision that is being written is not reported before it is durable
            query = self.table.queries.get(query_id)
            now_ms = self._runtime.clock.now_ms()
            if query is None and coordinator:
                query = await self._know(query_id, coordinator, writer)
            if query is None:
                return "", False
            if on_decided is OnDecided.WRITE:
                query = await self._take_back(query_id, query, batch_id, writer)
            else:
                writer.must_own(query_id, query)
                query = await self._bind(query_id, query, writer)
            self.table.use(query_id, now_ms)
            decided = query.coordinator == self.own and batch_id <= query.last_batch
            if decided:
                query.must_repeat(query_id, batch_id, None, on_decided)
            return query.coordinator, decided

    async def may_stage(self, query_id: str, coordinator: str, writer: QueryWriter) -> None:
        """Raises Forbidden and PreconditionFailed for a query of others. An unknown one becomes the caller's."""
        query = self.table.queries.get(query_id)
        if query is None:
            _check(query_id, 0)
            async with self._locks.of(query_id):
                query = self.table.queries.get(query_id) or await self._know(query_id, coordinator, writer)
        writer.must_own(query_id, query)

    async def decide(
        self,
        query_id: str,
        batch_id: int,
        winners: Mapping[str, Collection[str]],
        *,
        writer: QueryWriter = _ANYBODY,
        content: BatchContent | None = None,
        on_decided: OnDecided = OnDecided.FAIL,
    ) -> bool:
        """Decides a batch, unless it is decided; durable when it returns. `winners`: token to the brokers with rows of
        it. Returns whether it was decided before, with the same `content`. Raises PreconditionFailed if a winner was
        dropped before, another broker decides for this query, or the batch is of a copied checkpoint; Forbidden.
        """
        # A task of its own: if the caller is cancelled, the decision must still become durable or be undone.
        work = self._decide(query_id, batch_id, winners, writer, content, on_decided)
        return bool(await outlasting(self._spawn(work, "decide a batch")))

    async def _decide(
        self,
        query_id: str,
        batch_id: int,
        winners: Mapping[str, Collection[str]],
        writer: QueryWriter,
        content: BatchContent | None,
        on_decided: OnDecided,
    ) -> bool:
        _check(query_id, batch_id)
        async with self._locks.of(query_id):
            query = await self._mine(query_id, writer)
            if batch_id <= query.last_batch:
                query.must_repeat(query_id, batch_id, content, on_decided)
                return True
            # Their brokers may have dropped these rows by now: the batch would silently lack them.
            lost = [token for token in winners if token in query.dropped]
            if lost:
                raise PreconditionFailed(
                    f"batch {batch_id} of query {query_id} cannot be decided at broker {self.own}: {len(lost)} of its "
                    f"{len(winners)} stagings were dropped, after staging.timeout_ms without a decision or by an "
                    "abort; run the batch again"
                )
            limit, own = self._runtime.settings.staging.decisions_max, self.table.held_by(query.tenant).open
            if not within_share(limit, total=self.table.open_count, own=own):
                raise TooManyRequests(
                    f"{self.table.open_count} decided batches wait at broker {self.own}, {own} of them of "
                    f"{_named(query.tenant)}, for brokers that are away (staging.decisions_max {limit}; one user or "
                    "topic may have three times what is left of it): "
                    f"{', '.join(sorted(self.table.behind(query_id)) or ['of other queries'])}"
                )
            pairs = tuple((name, token) for token, names in winners.items() for name in names)
            self._must_keep(query, len(pairs), f"batch {batch_id} of query {query_id}")
            passing("staging.deciding")
            decided = BatchDecided(query_id, batch_id, pairs, self._runtime.clock.now_ms(), *(content or ()))
            await self._record(query_id, decided)
            passing("staging.decided")
            self._staging.stats.decisions += 1
            log.info(
                "decided batch %d of query %s: %d stagings at %s",
                batch_id,
                query_id,
                len(winners),
                ", ".join(sorted({name for name, _ in pairs})) or "no broker",
            )
            return False

    async def abandon(
        self, query_id: str, batch_id: int, tokens: Collection[str], *, writer: QueryWriter = _ANYBODY
    ) -> bool:
        """Excludes tokens from winning, durably. True: the batch is decided, and nothing is abandoned."""
        return bool(await outlasting(self._spawn(self._abandon(query_id, batch_id, tokens, writer), "abandon rows")))

    async def _abandon(self, query_id: str, batch_id: int, tokens: Collection[str], writer: QueryWriter) -> bool:
        _check(query_id, batch_id)
        async with self._locks.of(query_id):
            query = await self._mine(query_id, writer)
            if batch_id <= query.last_batch:
                return True
            await self._drop(query_id, batch_id, tokens)
        # Outside of the query's lock, which the query of the outcome takes again.
        self._spawn(self._staging.resolve((query_id, batch_id)), "drop abandoned rows")
        return False

    async def roll_forward(self, query_id: str) -> list[str]:
        """Publishes the query's decided batches everywhere; returns the brokers that still lack some after a while."""
        work = self._spawn(self._roll(query_id), "roll a batch forward")
        sleeping = self._spawn(self._runtime.clock.sleep_ms(ROLL_WAIT_MS), "wait for a roll-forward")
        try:
            await asyncio.wait({work, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
        return sorted(self.table.behind(query_id))

    # -- calls of brokers ---------------------------------------------------------------------------------------------

    async def outcome(
        self, query_id: str, batch_id: int, broker_name: str, tokens: Collection[str], expired: Collection[str]
    ) -> BatchOutcome:
        """Returns the outcome of a broker's stagings. Tokens in `expired` durably lose if the batch is undecided."""
        work = self._outcome(query_id, batch_id, broker_name, tokens, expired)
        outcome: BatchOutcome = await outlasting(self._spawn(work, "report an outcome"))
        return outcome

    async def _outcome(
        self, query_id: str, batch_id: int, broker_name: str, tokens: Collection[str], expired: Collection[str]
    ) -> BatchOutcome:
        _check(query_id, batch_id)
        async with self._locks.of(query_id):
            query = await self._mine(query_id)
            if batch_id <= query.last_batch:
                return BatchOutcome(True, self.table.winners(query_id, batch_id, broker_name), ())
            lost = [token for token in expired if token not in query.dropped]
            if lost:
                log.warning(
                    "batch %d of query %s was not decided in time: %d stagings at broker %s are dropped",
                    batch_id,
                    query_id,
                    len(lost),
                    broker_name,
                )
                await self._drop(query_id, batch_id, lost)
            return BatchOutcome(False, (), [token for token in tokens if token in query.dropped])

    async def outcome_from(
        self, coordinator: str, batch: tuple[str, int], tokens: Sequence[str], expired: Sequence[str]
    ) -> BatchOutcome:
        """Queries the outcome from the coordinator. Raises ConnectionFailed, RequestTimeout."""
        query_id, batch_id = batch
        if coordinator == self.own:
            return await self.outcome(query_id, batch_id, self.own, tokens, expired)
        request = ask_outcome(query_id, batch_id, self.own, tokens, expired)
        return outcome_of(await self._cluster.peers.ask(coordinator, OUTCOME, request))

    # -- periodic work ------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Continues unfinished work, periodically."""
        settings, clock = self._runtime.settings.staging, self._runtime.clock
        while True:
            for query_id in [query_id for query_id, query in self.table.queries.items() if query.open]:
                await self._roll(query_id)
            await self._ask_about_silent(clock.now_ms() - settings.ask_interval_ms)
            self._forget(clock.now_ms())
            await clock.sleep_ms(settings.ask_interval_ms)

    def broker_forgotten(self, name: str) -> None:
        """Forgets a removed broker: its queries may get another coordinator, and no decided batch waits for it."""
        ops: list[StagingOp] = []
        for query_id, query in self.table.queries.items():
            if query.coordinator == name:
                ops.append(QueryForgotten(query_id))
            ops += [RolledForward(query_id, batch, name) for batch in self.table.behind(query_id).get(name, ())]
        for op in ops:
            self.table.apply(op)
        if ops:
            log.warning("broker %s is forgotten, with its decisions and the staged rows that it was to publish", name)
            self._ledger.journal.record(*ops)

    async def close(self) -> None:
        """Ends running work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_about_silent(self, before_ms: int) -> None:
        staging = self._staging
        silent: set[str] = set()
        for batch in staging.table.batches():
            stagings = staging.table.of(batch)
            coordinator = stagings[0].coordinator if stagings else ""
            # One try for each coordinator: each further batch would wait for the same timeout.
            if coordinator in silent or max((one.staged_ms for one in stagings), default=0) > before_ms:
                continue
            try:
                await staging.resolve(batch)
            except Error as error:
                silent.add(coordinator)
                self._missed(coordinator, f"batch {batch[1]} of query {batch[0]} stays undecided", error)
            else:
                self._answered(coordinator)

    def _forget(self, now_ms: int) -> None:
        settings, staging = self._runtime.settings.staging, self._staging
        idle = self.table.idle(now_ms, memory_ms=settings.memory_ms, job_memory_ms=2 * settings.timeout_ms)
        # Rows staged here keep their query: only its coordinator knows their outcome.
        gone = [QueryForgotten(query_id) for query_id in idle if not staging.table.has_query(query_id)]
        for op in gone:
            self.table.apply(op)
        if gone:
            self._ledger.journal.record(*gone)

    # -- rolling forward ----------------------------------------------------------------------------------------------

    async def _roll(self, query_id: str) -> None:
        async with self._locks.of(query_id):  # so that all of these decisions are durable
            behind = self.table.behind(query_id)
        await asyncio.gather(*(self._roll_at(name, query_id, batches) for name, batches in behind.items()))

    async def _roll_at(self, name: str, query_id: str, batches: Sequence[int]) -> None:
        for batch_id in batches:
            winners = list(self.table.winners(query_id, batch_id, name))
            if not winners:
                continue
            try:
                if name == self.own:
                    await self._staging.roll_forward((query_id, batch_id), self.own, winners)
                else:
                    await self._roll_there(name, query_id, batch_id, winners)
            except Error as error:
                self._missed(name, f"batch {batch_id} of query {query_id} is decided and not published there", error)
                return
            passing("staging.rolled")
            self._answered(name)
            op = RolledForward(query_id, batch_id, name)
            self.table.apply(op)
            self._ledger.journal.record(op)

    async def _roll_there(self, name: str, query_id: str, batch_id: int, winners: Sequence[str]) -> None:
        view = self._catalog.routes.broker(name)
        if view is None:
            raise ConnectionFailed(f"broker {name!r} is not alive: no nameserver knows it")
        request = roll_forward(query_id, batch_id, self.own, winners)
        address = self._cluster.peers.address_of(view)
        check_rolled_forward(await self._runtime.net.unary(address, ROLL_FORWARD, request, timeout_ms=ROLL_MS))

    def _missed(self, name: str, what: str, error: Error) -> None:
        self._silent[name] += 1
        if self._silent[name] == 1:
            log.warning(
                "%s: broker %s does not answer (%s); it is called again until it does", what, name, error.message
            )

    def _answered(self, name: str) -> None:
        missed = self._silent.pop(name, 0)
        if missed:
            log.info("broker %s answers about staged rows again, after %d tries", name, missed)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _mine(self, query_id: str, writer: QueryWriter = _ANYBODY) -> Query:
        """Returns the query, which this broker decides. Raises PreconditionFailed, Forbidden."""
        query = self.table.queries.get(query_id)
        if query is None:  # forgotten, or its Begin did not reach this broker
            query = await self._know(query_id, self.own, writer)
        writer.must_own(query_id, query)
        if query.coordinator != self.own:
            raise PreconditionFailed(
                f"broker {query.coordinator} decides for query {query_id}, not {self.own}; call that broker"
            )
        return query

    async def _know(self, query_id: str, coordinator: str, writer: QueryWriter) -> Query:
        limit = self._runtime.settings.staging.queries_max
        tenant = Query(coordinator, 0, user=writer.user, topics=writer.bound).tenant
        own = self.table.held_by(tenant).queries
        if not within_share(limit, total=len(self.table), own=own):
            raise TooManyRequests(
                f"broker {self.own} remembers {len(self.table)} queries, {own} of {_named(tenant)}, and query "
                f"{query_id} is one more (staging.queries_max {limit}; one user or topic may have three times what is "
                "left of it): keep the checkpoints of streams, so that they stay the same queries"
            )
        now_ms = self._runtime.clock.now_ms()
        await self._record(query_id, QueryKnown(query_id, coordinator, now_ms, -1, writer.user, writer.bound))
        return self.table.queries[query_id]

    async def _bind(self, query_id: str, query: Query, writer: QueryWriter) -> Query:
        """Gives a query of an older version, or one that began without a user, to its next writer."""
        lacks_user, lacks_topics = bool(writer.user) and not query.user, query.topics is None
        if lacks_user or (lacks_topics and writer.bound is not None):
            now_ms = self._runtime.clock.now_ms()
            await self._record(query_id, QueryKnown(query_id, query.coordinator, now_ms, -1, writer.user, writer.bound))
        return self.table.queries[query_id]

    async def _take_back(self, query_id: str, query: Query, batch_id: int, writer: QueryWriter) -> Query:
        """Undoes decisions from this batch on, and changes the topics to those that the writer names now."""
        replace(writer, topics=(), fixed=None).must_own(query_id, query)
        last_batch = min(query.last_batch, batch_id - 1)
        topics = query.topics if writer.bound is None else writer.bound
        user = query.user or writer.user
        if (last_batch, topics, user) == (query.last_batch, query.topics, query.user):
            return query
        if query.open:
            raise TooManyRequests(
                f"batches of query {query_id} are decided and not published yet at brokers "
                f"{', '.join(self.table.behind(query_id))}: onDecidedBatch=write takes them back when they are; retry"
            )
        log.warning(
            "query %s takes its decisions after batch %d back (the last one was %d) and writes to %s: "
            "onDecidedBatch=write",
            query_id,
            last_batch,
            query.last_batch,
            ", ".join(topics or ()) or "the topics that its rows name",
        )
        known = QueryKnown(query_id, query.coordinator, self._runtime.clock.now_ms(), last_batch, user, topics)
        # Brokers may have dropped rows of these tokens, so they still cannot win.
        dropped = [TokensDropped(query_id, batch, (token,)) for token, batch in query.dropped.items()]
        await self._record(query_id, QueryForgotten(query_id), known, *dropped)
        return self.table.queries[query_id]

    async def _drop(self, query_id: str, batch_id: int, tokens: Collection[str]) -> None:
        query = self.table.queries[query_id]
        if len(query.dropped) + len(tokens) > DROPPED_MAX:
            raise TooManyRequests(f"query {query_id} abandoned {DROPPED_MAX} stagings of batches without a decision")
        self._must_keep(query, len(tokens), f"an abort of query {query_id}")
        await self._record(query_id, TokensDropped(query_id, batch_id, tuple(tokens)))

    def _must_keep(self, query: Query, more: int, what: str) -> None:
        total, own = self.table.held.tokens, self.table.held_by(query.tenant).tokens
        if not within_share(TOKENS_MAX, total=total, own=own, more=more):
            raise TooManyRequests(
                f"{what} names {more} stagings, and broker {self.own} keeps {total}, {own} of them of "
                f"{_named(query.tenant)}; the limit is {TOKENS_MAX}, of which one user or topic may have three times "
                "what is left: retry when brokers that are away have published theirs"
            )

    async def _record(self, query_id: str, *ops: StagingOp) -> None:
        # Memory and log change in one step. Others see the change behind the query's lock, when it is durable.
        saved = self.table.saved(query_id)
        for op in ops:
            self.table.apply(op)
        try:
            await asyncio.shield(self._ledger.journal.record_once(*ops))
        except Error:
            self.table.restore(query_id, saved)
            raise

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def later(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Runs work in the background; an unexpected error is logged."""
        self._spawn(work, name)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Error):
            log.error("staged rows: %s failed", task.get_name(), exc_info=error)


def _check(query_id: str, batch_id: int) -> None:
    if not query_id or len(query_id) > QUERY_ID_MAX or not query_id.isprintable():
        raise BadRequest(f"the query id {query_id[:64]!r} is empty, not printable or over {QUERY_ID_MAX} characters")
    if batch_id < 0:
        raise BadRequest(f"the batch id of query {query_id} is {batch_id}, it must be 0 or more")


def _named(tenant: str) -> str:
    return tenant or "unsigned calls"
