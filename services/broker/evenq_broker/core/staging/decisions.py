"""Queries that stage rows: who decides their batches, and at that broker what was decided.

Pure. Spark numbers the batches of a query upwards and begins one when the last is decided, so per query the number of
the last decided batch says of all up to it that they are; the winners of a batch are kept only until every broker that
has some is rolled forward. A token that was dropped can never win: what a broker may drop is fixed here first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from evenq_broker.core.state.staging_records import (
    BatchDecided,
    QueryForgotten,
    QueryKnown,
    RolledForward,
    StagingOp,
    TokensDropped,
)

__all__ = ["JOB_PREFIX", "BatchDecision", "BatchOutcome", "Decisions", "Query"]

JOB_PREFIX = "job-"
"""Of the ids of batch jobs, which never come back after they ended."""


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


class Decisions:
    """The queries of one broker, those first that were used least lately."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def open_count(self) -> int:
        """Decided batches that are not published everywhere."""
        return sum(len(query.open) for query in self.queries.values())

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
        return Query(query.coordinator, query.used_ms, query.last_batch, opened, dict(query.dropped))

    def restore(self, query_id: str, saved: Query | None) -> None:
        """What was changed since could not be written down."""
        if saved is None:
            self.queries.pop(query_id, None)
        else:
            self.queries[query_id] = saved

    def apply(self, op: StagingOp) -> None:
        """Take in one operation; twice is as once."""
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

    def _known(self, op: QueryKnown) -> None:
        query = self.queries.get(op.query_id)
        if query is None:
            self.queries[op.query_id] = Query(op.coordinator, op.used_ms, op.last_batch)
        else:
            query.last_batch = max(query.last_batch, op.last_batch)
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
        query.last_batch = max(query.last_batch, op.batch_id)
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
            yield QueryKnown(query_id, query.coordinator, query.used_ms, query.last_batch)
            for batch_id, decision in query.open.items():
                yield BatchDecided(query_id, batch_id, _pairs(decision.winners.items()), decision.decided_ms)
            by_batch: dict[int, list[str]] = {}
            for token, batch_id in query.dropped.items():
                by_batch.setdefault(batch_id, []).append(token)
            for batch_id, tokens in by_batch.items():
                yield TokensDropped(query_id, batch_id, tuple(tokens))


def _pairs(winners: Iterable[tuple[str, list[str]]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, token) for name, tokens in winners for token in tokens)
