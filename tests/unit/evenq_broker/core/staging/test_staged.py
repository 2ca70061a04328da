"""The table of staged rows through random histories, and what a snapshot of it makes."""

from __future__ import annotations

import random

from evenq_broker.core.staging.staged import StagedRows
from evenq_broker.core.state.staging_records import StagedEnded, StagedMoved, StagedPut


def put(number: int, *, token: str = "a", sequence: int = 0, query: str = "q", batch: int = 0) -> StagedPut:
    return StagedPut(number, number, query, batch, 0, 0, token, sequence, "b", 1, 2, 10, number)


def test_blocks_of_a_token_are_one_staging_in_the_order_of_their_sequence() -> None:
    table = StagedRows()
    for number, sequence in ((5, 1), (6, 0), (7, 2)):
        table.apply(put(number, sequence=sequence))
    [staging] = table.of(("q", 0))
    assert [block.put.number for block in staging.in_order()] == [6, 5, 7]
    assert (staging.rows, table.query_bytes("q"), staging.staged_ms) == (6, 30, 7)
    assert table.block("a", 1) is table.by_number(5)
    assert table.batches_before(("q", 1)) == [("q", 0)]


def test_a_block_that_moved_is_dumped_where_it_is_now() -> None:
    table = StagedRows()
    table.apply(put(5))
    table.apply(StagedMoved(5, 99))
    table.apply(StagedMoved(6, 100))  # of no staging
    other = StagedRows()
    for op in table.dump():
        other.apply(op)
    found = other.by_number(5)
    assert found is not None
    assert found.timer_id == 99


def test_any_history_keeps_the_sums_and_survives_a_snapshot() -> None:
    rng = random.Random(3)
    table = StagedRows()
    for number in range(2_000):
        if rng.random() < 0.6:
            table.apply(put(number, token=f"t{rng.randrange(5)}q{number % 3}", sequence=number, query=f"q{number % 3}"))
            if rng.random() < 0.1:
                table.apply(put(number, token="other"))  # its number is known
        else:
            table.apply(StagedEnded(tuple(rng.randrange(2_000) for _ in range(3))))
        if number % 100 == 0:
            table.check()
            copy = StagedRows()
            for op in table.dump():
                copy.apply(op)
                copy.apply(op)
            copy.check()
            assert (copy.rows, copy.bytes, copy.batches()) == (table.rows, table.bytes, table.batches())
