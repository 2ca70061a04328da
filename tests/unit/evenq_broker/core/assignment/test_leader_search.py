"""Which rebalancer to try next."""

from __future__ import annotations

import pytest
from evenq_broker.core.assignment.leader_search import NO_LEADER, LeaderSearch


def test_configured_addresses_are_tried_in_turn() -> None:
    search = LeaderSearch(["a", "b"])
    tried = []
    for _ in range(3):
        tried.append(search.target)
        search.failed()
    assert tried == ["a", "b", "a"]
    with pytest.raises(ValueError, match="needs an address"):
        LeaderSearch([])


def test_a_named_leader_is_gone_to_at_once_and_forgotten_when_it_fails() -> None:
    search = LeaderSearch(["service"])
    assert search.redirected("pod-2")
    assert search.target == "pod-2"
    search.found()
    search.failed()
    assert search.target == "service", "the copy that answers there knows who follows"


@pytest.mark.parametrize("named", [NO_LEADER, "", "a"])
def test_who_knows_no_leader_or_names_itself_makes_us_wait_and_ask_the_next(named: str) -> None:
    search = LeaderSearch(["a", "b"])
    assert not search.redirected(named)
    assert search.target == "b"


def test_after_three_hops_in_a_row_there_is_a_pause() -> None:
    search = LeaderSearch(["a"])
    assert [search.redirected(name) for name in "bcbcbc"] == [True, True, False] * 2
    search.found()
    assert search.redirected("x")
