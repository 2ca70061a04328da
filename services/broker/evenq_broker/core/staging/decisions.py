"""Decisions about batches of staged rows, as the broker that coordinates a Spark query keeps them.

Problem: Spark runs tasks again, also in parallel, and repeats the commit of a batch whose end it did not note. The rows
of one attempt of each task must become visible together and once, whatever crashes in between. A query id is the id of
a checkpoint, which can be copied, put back, or named by somebody else. So a query id and a batch number alone do not
prove that a repeated batch has the same rows.

Idea: rows are staged, invisible, under the random token of their attempt. One broker, the coordinator, decides each
batch with one durable record that lists the winning tokens. The brokers then publish their winners (roll forward).
Spark numbers the batches of a query upwards and begins one when the last is decided. So the number of the last decided
batch stands for all before it. Memory is bounded by the batches that some broker has not published yet.

Invariants:

- `last_batch` of a known query never falls, and the winners of an open decision only become fewer.
- A token in `dropped` can never win. A broker drops rows only after it is there, durably; `loops.staging.deciding`
  refuses a decision that lists it. An entry leaves when its batch, or a later one, is decided.
- A decision stays in `open` until every broker with winners is rolled forward.
- A query belongs to the user and the topics of its first Begin (`QueryWriter`); later operations do not change them.
- The content of the last batch is kept, because Spark repeats it after a crash, with the same rows. A smaller number,
  or other rows, come from another copy of the checkpoint.
- `held` and the counts of tenants are the sums over their queries; `_counted` keeps them at each change.
- Applying an operation again changes nothing.

Example: attempts t1 at broker-a, t2 and t3 at broker-b staged batch 7, where t3 repeated the task of t2. TokensDropped
(7, t3) comes first. BatchDecided(7, broker-a: t1, broker-b: t2) makes `last_batch` 7, opens the decision and removes t3
from `dropped`. After RolledForward of broker-a and of broker-b nothing is open. Batch 7 with the same rows passes again
without an effect; batch 6 is refused, unless the job chose `onDecidedBatch` otherwise.

Pure. Decisions 33 and 115; docs/guides/spark_guarantees.md. This is two-phase commit (Gray, 1978) in which a staged
block is the prepared state and only the coordinator may exclude one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from evenq.errors import Forbidden, PreconditionFailed
from evenq_broker.core.state.staging_records import (
    BatchDecided,
    QueryForgotten,
    QueryKnown,
    RolledForward,
    StagingOp,
    TokensDropped,
)

JOB_PREFIX = "job-"
"""Prefix of the ids of batch jobs, which never come back after they ended."""


@dataclass(slots=True)
class QueryCounts:
    """Amounts that the queries of one tenant, or of all, hold here."""

    queries: int = 0
    open: int = 0  # decided batches that are not published everywhere
    tokens: int = 0  # winners that some broker has not published, and dropped tokens of undecided batches

    def add(self, query: Query, sign: int) -> None:
        self.queries += sign
        self.open += sign * len(query.open)
        winners = sum(map(len, (tokens for one in query.open.values() for tokens in one.winners.values())))
        self.tokens += sign * (winners + len(query.dropped))


class OnDecided(StrEnum):
    """Handling of a batch that was decided before, unless it is the last one with the same rows."""

    FAIL = "fail"
    SKIP = "skip"
    WRITE = "write"


class BatchContent(NamedTuple):
    """Number and checksum of a batch's rows, in any order."""

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWriter:
    """User and topics of a call."""

    user: str = ""  # Empty: calls are not signed
    topics: tuple[str, ...] = ()
    fixed: bool | None = None  # True: the query never writes to other topics; None: not reported by the call

    @property
    def bound(self) -> tuple[str, ...] | None:
        """Topics to which the call binds a query, in the form of `QueryKnown`."""
        if self.fixed is None:
            return None
        return tuple(sorted(set(self.topics))) if self.fixed else ()

    def must_own(self, query_id: str, query: Query) -> None:
        """Raises Forbidden for another user's query, PreconditionFailed for one that writes to other topics."""
        self._must_be_user(query_id, query)
        ours = query.topics
        if ours is None or (not ours and self.fixed is not True):
            return
        if self.fixed is False or not set(self.topics) <= set(ours):
            raise PreconditionFailed(
                f"query {query_id} writes to {_listed(ours)}, this call is for {_listed(self.bound or self.topics)}: "
                "it comes from a copied checkpoint, or the query's topic was changed. Give the copy a checkpoint of "
                "its own; to move the query to the other topic, start it once with onDecidedBatch=write"
            )

    def _must_be_user(self, query_id: str, query: Query) -> None:
        if self.user and query.user and self.user != query.user:
            raise Forbidden(
                f"query {query_id} belongs to another user, not to {self.user}: run it with the keys that it began "
                "with, or give it a new checkpoint"
            )


def _listed(topics: Collection[str]) -> str:
    return ", ".join(topics) if topics else "the topics that its rows name"


@dataclass(slots=True)
class BatchDecision:
    """A decided batch that some broker has not published yet."""

    winners: dict[str, list[str]]
    """Broker -> its tokens; a broker leaves when it is rolled forward."""
    decided_ms: int


class BatchOutcome(NamedTuple):
    """Coordinator's answer about a batch."""

    decided: bool
    winners: Collection[str]
    dropped: Collection[str]
    """Tokens that can never win; only of an undecided batch."""


@dataclass(slots=True)
class Query:
    """One query as this broker knows it."""

    coordinator: str
    used_ms: int
    last_batch: int = -1
    """The last decided batch, which stands for all before it; only the coordinator knows it."""
    open: dict[int, BatchDecision] = field(default_factory=dict)
    """Batch id -> decision that some broker has not published yet."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Token that can never win -> its batch, which is not decided."""
    user: str = ""  # its owner; empty: not known
    topics: tuple[str, ...] | None = None
    """All that it writes to; empty: its rows name them; None: not known."""
    content: BatchContent | None = None  # of the last batch; None: not known

    @property
    def tenant(self) -> str:
        """Tenant whose share of the limits it takes: its user, or its topic where calls are not signed."""
        return self.user or next(iter(self.topics or ()), "")

    def must_repeat(self, query_id: str, batch_id: int, content: BatchContent | None, on_decided: OnDecided) -> None:
        """Raises PreconditionFailed unless this repetition of a decided batch may pass as written."""
        if on_decided is OnDecided.SKIP:  # the job accepts that such a batch counts as written
            return
        if batch_id < self.last_batch:
            raise PreconditionFailed(
                f"batch {batch_id} of query {query_id} is older than batch {self.last_batch}, which was decided last: "
                f"this is an older or second copy of this checkpoint. {_COPIED}"
            )
        if content is not None and self.content is not None and content != self.content:
            raise PreconditionFailed(
                f"batch {batch_id} of query {query_id} was decided with {self.content.rows} rows, and now has "
                f"{content.rows} rows that are not the same: this is an older or second copy of this checkpoint, or "
                f"the job makes other rows each time, as uuid() and rand() do. {_COPIED}"
            )


_COPIED = (
    "Start with the newest checkpoint, or with a new one; or with onDecidedBatch=skip (such batches count as written) "
    "or onDecidedBatch=write (they are written, maybe a second time)"
)


class Decisions:
    """The queries of one broker, the least recently used first."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}  # by id; `use` moves a query to the end
        self.held = QueryCounts()  # the sum over all queries
        self._of_tenants: dict[str, QueryCounts] = {}  # the sum over a tenant's queries; never without a query

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def open_count(self) -> int:
        """Decided batches that are not published everywhere."""
        return self.held.open

    def held_by(self, tenant: str) -> QueryCounts:
        return self._of_tenants.get(tenant) or QueryCounts()

    def winners(self, query_id: str, batch_id: int, broker_name: str) -> list[str]:
        """Returns the tokens of a decided batch that a broker still has to publish."""
        query = self.queries.get(query_id)
        decision = query.open.get(batch_id) if query is not None else None
        return decision.winners.get(broker_name, []) if decision is not None else []

    def behind(self, query_id: str) -> dict[str, list[int]]:
        """Returns broker -> batches that it has not published yet, ascending."""
        brokers: dict[str, list[int]] = {}
        query = self.queries.get(query_id)
        for batch_id, decision in sorted(query.open.items()) if query is not None else ():
            for name in decision.winners:
                brokers.setdefault(name, []).append(batch_id)
        return brokers

    def use(self, query_id: str, now_ms: int) -> None:
        query = self.queries.pop(query_id, None)
        if query is not None:
            query.used_ms = max(query.used_ms, now_ms)
            self.queries[query_id] = query

    def idle(self, now_ms: int, *, memory_ms: int, job_memory_ms: int) -> list[str]:
        """Returns queries that were not used for that time and have nothing open here."""
        return [
            query_id
            for query_id, query in self.queries.items()
            if not query.open
            and now_ms - query.used_ms >= (job_memory_ms if query_id.startswith(JOB_PREFIX) else memory_ms)
        ]

    def saved(self, query_id: str) -> Query | None:
        """Returns a copy of the query, for `restore`."""
        query = self.queries.get(query_id)
        if query is None:
            return None
        opened = {
            batch_id: BatchDecision(
                {name: list(tokens) for name, tokens in decision.winners.items()}, decision.decided_ms
            )
            for batch_id, decision in query.open.items()
        }
        return replace(query, open=opened, dropped=dict(query.dropped))

    def restore(self, query_id: str, saved: Query | None) -> None:
        """Puts back a saved query, because its later changes could not be recorded."""
        with self._counted(query_id):
            if saved is None:
                self.queries.pop(query_id, None)
            else:
                self.queries[query_id] = saved

    def apply(self, op: StagingOp) -> None:
        """Applies one operation; a repetition changes nothing."""
        match op:
            case QueryKnown() | QueryForgotten() | BatchDecided() | RolledForward() | TokensDropped():
                with self._counted(op.query_id):
                    self._apply(op)

    def _apply(self, op: QueryKnown | QueryForgotten | BatchDecided | RolledForward | TokensDropped) -> None:
        match op:
            case QueryKnown():
                self._known(op)
            case QueryForgotten():
                self.queries.pop(op.query_id, None)
            case BatchDecided():
                self._decided(op)
            case RolledForward():
                self._rolled(op)
            case TokensDropped():
                query = self.queries.get(op.query_id)
                # Otherwise the batch was decided first, and these tokens have lost anyway.
                if query is not None and op.batch_id > query.last_batch:
                    query.dropped.update(dict.fromkeys(op.tokens, op.batch_id))

    @contextmanager
    def _counted(self, query_id: str) -> Iterator[None]:
        """Keeps the counts right around a change of a query."""
        self._count(self.queries.get(query_id), -1)
        yield
        self._count(self.queries.get(query_id), 1)

    def _count(self, query: Query | None, sign: int) -> None:
        if query is None:
            return
        theirs = self._of_tenants.setdefault(query.tenant, QueryCounts())
        for held in (self.held, theirs):
            held.add(query, sign)
        if not theirs.queries:
            del self._of_tenants[query.tenant]

    def _known(self, op: QueryKnown) -> None:
        query = self.queries.get(op.query_id)
        if query is None:
            query = self.queries[op.query_id] = Query(op.coordinator, op.used_ms)
        # The first user and topics stay. Those of an older version are not known, and the next writer sets them.
        query.user = query.user or op.user
        query.topics = op.topics if query.topics is None else query.topics
        if op.last_batch > query.last_batch:  # of a snapshot
            query.last_batch, query.content = op.last_batch, _content(op)
        self.use(op.query_id, op.used_ms)

    def _decided(self, op: BatchDecided) -> None:
        query = self.queries.get(op.query_id)
        if query is None:  # forgotten since
            return
        winners: dict[str, list[str]] = {}
        for broker_name, token in op.winners:
            winners.setdefault(broker_name, []).append(token)
        if winners and op.batch_id not in query.open:  # otherwise nothing to publish, or a repetition
            query.open[op.batch_id] = BatchDecision(winners, op.decided_ms)
        if op.batch_id > query.last_batch:  # a snapshot repeats older decisions that are open
            query.last_batch, query.content = op.batch_id, _content(op)
        query.dropped = {token: batch for token, batch in query.dropped.items() if batch > query.last_batch}
        self.use(op.query_id, op.decided_ms)

    def _rolled(self, op: RolledForward) -> None:
        query = self.queries.get(op.query_id)
        decision = query.open.get(op.batch_id) if query is not None else None
        if query is None or decision is None:  # forgotten, or rolled forward everywhere
            return
        decision.winners.pop(op.broker_name, None)
        if not decision.winners:
            del query.open[op.batch_id]

    def dump(self) -> Iterator[StagingOp]:
        for query_id, query in self.queries.items():
            yield QueryKnown(
                query_id,
                query.coordinator,
                query.used_ms,
                query.last_batch,
                query.user,
                query.topics,
                *(query.content or ()),
            )
            for batch_id, decision in query.open.items():
                yield BatchDecided(query_id, batch_id, _pairs(decision.winners.items()), decision.decided_ms)
            by_batch: dict[int, list[str]] = {}
            for token, batch_id in query.dropped.items():
                by_batch.setdefault(batch_id, []).append(token)
            for batch_id, tokens in by_batch.items():
                yield TokensDropped(query_id, batch_id, tuple(tokens))


def _content(op: QueryKnown | BatchDecided) -> BatchContent | None:
    return BatchContent(op.rows, op.checksum) if op.rows >= 0 else None


def _pairs(winners: Iterable[tuple[str, list[str]]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, token) for name, tokens in winners for token in tokens)
