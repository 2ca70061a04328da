"""What a coordinator remembers of queries: one number for what is done, winners only as long as they are needed."""

from __future__ import annotations

import random

from evenq_broker.core.staging.decisions import BatchContent, Decisions, Query, QueryCounts
from evenq_broker.core.state.staging_records import (
    BatchDecided,
    QueryForgotten,
    QueryKnown,
    RolledForward,
    StagingOp,
    TokensDropped,
)


def table_of(*ops: StagingOp) -> Decisions:
    table = Decisions()
    for op in (QueryKnown("q", "a", 1), *ops):
        table.apply(op)
    return table


def copied(table: Decisions) -> Decisions:
    other = Decisions()
    for op in [*table.dump(), *table.dump()]:
        other.apply(op)
    return other


def test_winners_are_kept_until_their_broker_has_published_them() -> None:
    table = table_of(BatchDecided("q", 4, (("a", "x"), ("b", "x"), ("b", "y")), 9))
    assert table.behind("q") == {"a": [4], "b": [4]}
    assert list(table.winners("q", 4, "b")) == ["x", "y"]
    table.apply(RolledForward("q", 4, "b"))
    table.apply(RolledForward("q", 4, "b"))
    assert (table.behind("q"), list(table.winners("q", 4, "b")), table.open_count) == ({"a": [4]}, [], 1)
    assert copied(table).queries == table.queries
    table.apply(RolledForward("q", 4, "a"))
    assert (table.open_count, table.queries["q"].last_batch) == (0, 4)


def test_a_decision_ends_what_was_dropped_up_to_it() -> None:
    table = table_of(TokensDropped("q", 4, ("x",)), TokensDropped("q", 5, ("y",)))
    assert copied(table).queries == table.queries
    table.apply(BatchDecided("q", 4, (), 9))
    assert table.queries["q"].dropped == {"y": 5}
    table.apply(TokensDropped("q", 4, ("late",)))
    assert table.queries["q"].dropped == {"y": 5}


def test_a_coordinator_is_kept_and_a_decision_that_could_not_be_written_is_taken_back() -> None:
    table = table_of(QueryKnown("q", "other", 2))
    assert table.queries["q"].coordinator == "a"
    saved = table.saved("q")
    table.apply(BatchDecided("q", 0, (("a", "x"),), 9))
    table.restore("q", saved)
    assert (table.queries["q"].last_batch, table.open_count) == (-1, 0)
    table.restore("q", None)
    assert len(table) == 0


def test_only_queries_without_open_decisions_are_idle_and_jobs_sooner() -> None:
    table = table_of(QueryKnown("job-1", "a", 1), QueryKnown("open", "a", 1), BatchDecided("open", 0, (("a", "x"),), 1))
    assert table.idle(11, memory_ms=100, job_memory_ms=10) == ["job-1"]
    assert sorted(table.idle(101, memory_ms=100, job_memory_ms=10)) == ["job-1", "q"]
    table.use("q", 90)
    assert table.idle(101, memory_ms=100, job_memory_ms=10) == ["job-1"]
    table.apply(QueryForgotten("q"))
    assert "q" not in table.queries


def test_the_first_user_and_topics_stay_and_the_content_is_that_of_the_last_batch() -> None:
    table = table_of(QueryKnown("q", "a", 2, -1, "u", ("t",)), QueryKnown("q", "a", 3, -1, "v", ("s",)))
    table.apply(BatchDecided("q", 4, (), 9, 5, 6))
    table.apply(BatchDecided("q", 3, (), 9, 7, 8))
    query = table.queries["q"]
    assert (query.user, query.topics, query.content, query.tenant) == ("u", ("t",), BatchContent(5, 6), "u")
    assert copied(table).queries == table.queries
    table.apply(BatchDecided("q", 5, (), 9))
    assert table.queries["q"].content is None, "an older client said nothing of it"


def held_of(queries: list[Query]) -> QueryCounts:
    opened = [decision for query in queries for decision in query.open.values()]
    winners = sum(len(tokens) for decision in opened for tokens in decision.winners.values())
    return QueryCounts(len(queries), len(opened), winners + sum(len(query.dropped) for query in queries))


def test_what_a_tenant_has_is_counted_through_every_change() -> None:
    rng, table = random.Random(1), Decisions()
    for at in range(2_000):
        name = f"q{rng.randrange(8)}"
        saved = table.saved(name)
        change: list[StagingOp] = [
            QueryKnown(name, "a", at, -1, rng.choice(["", "u"]), rng.choice([None, (), ("t",)])), QueryForgotten(name),
            BatchDecided(name, rng.randrange(5), (("a", "x"), ("b", "x")), at),
            RolledForward(name, rng.randrange(5), rng.choice("ab")), TokensDropped(name, 9, ("y",)),
        ]  # fmt: skip
        table.apply(rng.choice(change))
        if rng.random() < 0.2:
            table.restore(name, saved)
        for tenant in ("", "u", "t"):
            theirs = [query for query in table.queries.values() if query.tenant == tenant]
            assert table.held_by(tenant) == held_of(theirs)
        assert table.held == held_of(list(table.queries.values()))
    assert set(table._of_tenants) <= {"", "u", "t"}
