"""Queries that stage rows: who decides their batches, and at that broker what was decided.

Pure. Spark numbers the batches of a query upwards and begins one when the last is decided, so per query the number of
the last decided batch says of all up to it that they are; the winners of a batch are kept only until every broker that
has some is rolled forward. A token that was dropped can never win: what a broker may drop is fixed here first.

A query id is the id of a checkpoint, which can be copied, put back, or named by somebody else. So a query belongs to
the user and the topics of its first Begin (`QueryWriter`), and of its last batch the content is kept: Spark repeats
that one after a crash, with the same rows. A number below the last one, or other rows, come from another copy of the
checkpoint.
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

__all__ = [
    "JOB_PREFIX",
    "BatchContent",
    "BatchDecision",
    "BatchOutcome",
    "Decisions",
    "OnDecided",
    "Query",
    "QueryCounts",
    "QueryWriter",
]

JOB_PREFIX = "job-"
"""Of the ids of batch jobs, which never come back after they ended."""


@dataclass(slots=True)
class QueryCounts:
    """What the queries of one tenant, or of all, hold here."""

    queries: int = 0
    open: int = 0
    """Decided batches that are not published everywhere."""
    tokens: int = 0
    """Winners that some broker has not published, and what was dropped of batches that are not decided."""

    def add(self, query: Query, sign: int) -> None:
        self.queries += sign
        self.open += sign * len(query.open)
        winners = sum(map(len, (tokens for one in query.open.values() for tokens in one.winners.values())))
        self.tokens += sign * (winners + len(query.dropped))


class OnDecided(StrEnum):
    """What shall happen to a batch that was decided before, unless it is the last one with the same rows."""

    FAIL = "fail"
    SKIP = "skip"
    WRITE = "write"


class BatchContent(NamedTuple):
    """What the rows of a batch are, in any order."""

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWriter:
    """The user who calls, and the topics that the call names."""

    user: str = ""
    """Empty: calls are not signed."""
    topics: tuple[str, ...] = ()
    fixed: bool | None = None
    """Whether these are all topics that the query ever writes to; None: the call does not say."""

    @property
    def bound(self) -> tuple[str, ...] | None:
        """The topics that a query gets by this call, as `QueryKnown` has them."""
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
    """Broker to its tokens; a broker leaves when it is rolled forward."""
    decided_ms: int


class BatchOutcome(NamedTuple):
    """What a coordinator says of a batch."""

    decided: bool
    winners: Collection[str]
    dropped: Collection[str]
    """Only of an undecided batch: shall never win."""


@dataclass(slots=True)
class Query:
    """One query as this broker knows it."""

    coordinator: str
    used_ms: int
    last_batch: int = -1
    """Decided, as are all before it. Known to the coordinator only."""
    open: dict[int, BatchDecision] = field(default_factory=dict)
    """By batch id: those that some broker has not published yet."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Token that shall never win, to its batch; until that is decided."""
    user: str = ""
    """Whose it is; empty: not known."""
    topics: tuple[str, ...] | None = None
    """All that it writes to; empty: its rows name them; None: not known."""
    content: BatchContent | None = None
    """Of the last batch; None: not known."""

    @property
    def tenant(self) -> str:
        """Whose share of the limits it counts to: its user's, or its topic's where calls are not signed."""
        return self.user or next(iter(self.topics or ()), "")

    def must_repeat(self, query_id: str, batch_id: int, content: BatchContent | None, on_decided: OnDecided) -> None:
        """Raises PreconditionFailed unless a decided batch may pass as written."""
        if on_decided is OnDecided.SKIP:
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
    """The queries of one broker, those first that were used least lately."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.held = QueryCounts()
        self._of_tenants: dict[str, QueryCounts] = {}

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def open_count(self) -> int:
        """Decided batches that are not published everywhere."""
        return self.held.open

    def held_by(self, tenant: str) -> QueryCounts:
        """What the tenant has of it."""
        return self._of_tenants.get(tenant) or QueryCounts()

    def winners(self, query_id: str, batch_id: int, broker_name: str) -> list[str]:
        """Tokens of a decided batch that a broker still has to publish."""
        query = self.queries.get(query_id)
        decision = query.open.get(batch_id) if query is not None else None
        return decision.winners.get(broker_name, []) if decision is not None else []

    def behind(self, query_id: str) -> dict[str, list[int]]:
        """Brokers to the batches that they have not published yet, in ascending order."""
        brokers: dict[str, list[int]] = {}
        query = self.queries.get(query_id)
        for batch_id, decision in sorted(query.open.items()) if query is not None else ():
            for name in decision.winners:
                brokers.setdefault(name, []).append(batch_id)
        return brokers

    def use(self, query_id: str, now_ms: int) -> None:
        """The query is alive."""
        query = self.queries.pop(query_id, None)
        if query is not None:
            query.used_ms = max(query.used_ms, now_ms)
            self.queries[query_id] = query

    def idle(self, now_ms: int, *, memory_ms: int, job_memory_ms: int) -> list[str]:
        """Queries that were not used for that time and have nothing open here."""
        return [
            query_id
            for query_id, query in self.queries.items()
            if not query.open
            and now_ms - query.used_ms >= (job_memory_ms if query_id.startswith(JOB_PREFIX) else memory_ms)
        ]

    def saved(self, query_id: str) -> Query | None:
        """The query as it is now, for `restore`."""
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
        """What was changed since could not be written down."""
        with self._counted(query_id):
            if saved is None:
                self.queries.pop(query_id, None)
            else:
                self.queries[query_id] = saved

    def apply(self, op: StagingOp) -> None:
        """Take in one operation; twice is as once."""
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
                if query is not None and op.batch_id > query.last_batch:
                    query.dropped.update(dict.fromkeys(op.tokens, op.batch_id))

    @contextmanager
    def _counted(self, query_id: str) -> Iterator[None]:
        """Around each change of a query: what its tenant has."""
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
        # The first user and topics stay.
        query.user = query.user or op.user
        query.topics = op.topics if query.topics is None else query.topics
        if op.last_batch > query.last_batch:
            query.last_batch, query.content = op.last_batch, _content(op)
        self.use(op.query_id, op.used_ms)

    def _decided(self, op: BatchDecided) -> None:
        query = self.queries.get(op.query_id)
        if query is None:
            return
        winners: dict[str, list[str]] = {}
        for broker_name, token in op.winners:
            winners.setdefault(broker_name, []).append(token)
        if winners and op.batch_id not in query.open:
            query.open[op.batch_id] = BatchDecision(winners, op.decided_ms)
        if op.batch_id > query.last_batch:
            query.last_batch, query.content = op.batch_id, _content(op)
        query.dropped = {token: batch for token, batch in query.dropped.items() if batch > query.last_batch}
        self.use(op.query_id, op.decided_ms)

    def _rolled(self, op: RolledForward) -> None:
        query = self.queries.get(op.query_id)
        decision = query.open.get(op.batch_id) if query is not None else None
        if query is None or decision is None:
            return
        decision.winners.pop(op.broker_name, None)
        if not decision.winners:
            del query.open[op.batch_id]

    def dump(self) -> Iterator[StagingOp]:
        """Operations that make this table anew."""
        for query_id, query in self.queries.items():
            yield QueryKnown(
                query_id, query.coordinator, query.used_ms, query.last_batch, query.user, query.topics,
                *(query.content or ()),
            )  # fmt: skip
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
