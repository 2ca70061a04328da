"""What a coordinator remembers of queries: one number for what is done, winners only as long as they are needed."""

from __future__ import annotations

from evenq_broker.core.staging.decisions import Decisions
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
