"""Where two logs part, by their epochs alone."""

from __future__ import annotations

import pytest
from evenq_broker.core.replication.epoch_table import ENTRIES_MAX, EpochStart, EpochTable, TableRefused, common_end
from hypothesis import given
from hypothesis import strategies as st


def table_of(log: list[int]) -> EpochTable:
    table = EpochTable()
    for offset, epoch in enumerate(log):
        table = table.appended(epoch, offset)
    return table


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs of one group: a common begin, then each its own epochs, as leaders of one epoch write one log."""
    common = sorted(draw(st.lists(st.integers(1, 4), max_size=8)))
    last = common[-1] if common else 0
    mine = sorted(draw(st.lists(st.sampled_from([last + 1, last + 3]), max_size=5)))
    theirs = sorted(draw(st.lists(st.sampled_from([last + 2, last + 4]), max_size=5)))
    return common + mine, common + theirs


@given(histories())
def test_the_cut_is_behind_the_last_record_that_both_have(pair: tuple[list[int], list[int]]) -> None:
    mine, theirs = pair
    expected = 0
    while expected < min(len(mine), len(theirs)) and mine[expected] == theirs[expected]:
        expected += 1
    assert (common_end(table_of(mine), len(mine), table_of(theirs), len(theirs)) or 0) == expected


@given(histories(), st.integers(0, 13))
def test_a_cut_table_is_that_of_the_cut_log(pair: tuple[list[int], list[int]], end: int) -> None:
    log = pair[0]
    assert table_of(log).cut(end) == table_of(log[:end])
    for offset, epoch in enumerate(log):
        assert table_of(log).epoch_at(offset) == epoch


def test_the_example_of_kip_101_keeps_the_record_that_high_water_marks_lose() -> None:
    follower, leader = table_of([1, 1]), table_of([1, 1, 2])
    assert common_end(follower, 2, leader, 3) == 2


def test_an_epoch_that_goes_back_is_refused() -> None:
    with pytest.raises(TableRefused, match="epoch 1 at 5 behind epoch 2"):
        EpochTable().appended(2, 0).appended(1, 5)


def test_what_retention_leaves_begins_in_the_epoch_that_wrote_it() -> None:
    table = table_of([1, 1, 2, 2, 3]).begun(3)
    assert table == EpochTable(3, (EpochStart(2, 3), EpochStart(3, 4)))
    assert table.epoch_at(2) == 0
    assert common_end(table_of([1, 1, 2, 2]), 4, table, 5) == 4
    assert common_end(table_of([1, 1]), 2, table, 5) is None


def test_a_table_is_bounded_and_then_knows_the_newest_epochs() -> None:
    table = table_of(list(range(1, ENTRIES_MAX + 101)))
    assert len(table.entries) == ENTRIES_MAX
    assert table.last_epoch == ENTRIES_MAX + 100


@pytest.mark.parametrize(
    ("table", "end", "said"),
    [
        (EpochTable(0, (EpochStart(2, 0), EpochStart(1, 4))), 9, "epoch 1 at 4 follows epoch 2 at 0"),
        (EpochTable(0, (EpochStart(1, 4), EpochStart(2, 4))), 9, "epoch 2 at 4"),
        (EpochTable(0, (EpochStart(1, 0), EpochStart(2, 9))), 9, "begins at 9"),
        (EpochTable(5, ()), 4, "a log from 5 to 4"),
        (EpochTable(-1, ()), 4, "a log from -1 to 4"),
        (EpochTable(0, tuple(EpochStart(n + 1, n) for n in range(ENTRIES_MAX + 1))), 5000, "1001 epochs, at most 1000"),
    ],
)
def test_a_table_that_is_none_is_refused(table: EpochTable, end: int, said: str) -> None:
    assert said in table.problem(end)


@given(st.lists(st.integers(1, 5), max_size=9).map(sorted))
def test_every_table_of_a_log_is_taken(log: list[int]) -> None:
    assert table_of(log).problem(len(log)) == ""
