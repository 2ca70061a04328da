"""The judge of a rolling upgrade sees what it is for, and nothing in a good run."""

from __future__ import annotations

from evenq_proofs.rolling_upgrade.judging import (
    Acknowledged,
    Arrival,
    Outcome,
    longest_gap_ms,
    missing,
    reordered,
    repeated,
)

SENT = {"a": [Acknowledged(1, 0), Acknowledged(2, 10)], "b": [Acknowledged(1, 5)]}
ALL = [Arrival("a", 1, "0:0"), Arrival("b", 1, "1:0"), Arrival("a", 2, "0:1")]


def test_nothing_is_wrong_when_each_message_came_once_in_its_order() -> None:
    assert (missing("g", SENT, ALL), repeated("g", ALL), reordered("g", ALL)) == ([], [], [])
    assert Outcome().problems == []


def test_an_acknowledged_message_that_never_came_is_lost() -> None:
    assert missing("g", SENT, ALL[:2]) == ["g never got a:2"]


def test_a_message_that_came_twice_is_repeated_and_its_places_are_named() -> None:
    assert repeated("g", [*ALL, Arrival("a", 1, "0:7", 30)]) == ["g got a:1 at 0:0 (0 ms), 0:7 (30 ms)"]


def test_a_message_behind_a_later_one_of_its_stream_is_out_of_order_and_a_repeat_is_not() -> None:
    assert reordered("g", [ALL[2], ALL[0]]) == ["g got a:1 after 2"]
    assert reordered("g", [*ALL, ALL[0]]) == []


def test_a_stall_counts_if_it_reaches_into_the_time_and_also_without_an_end() -> None:
    times_ms = [0, 10, 500, 510]
    assert longest_gap_ms(times_ms, 100, 505) == 490
    assert longest_gap_ms(times_ms, 501, 510) == 10
    assert longest_gap_ms(times_ms, 505, 2_000) == 1_490


def test_what_is_wrong_is_told_with_its_number() -> None:
    assert Outcome(lost=["x"], repeated=["y", "z"]).problems == ["1 lost: x", "2 repeated: y; z"]
