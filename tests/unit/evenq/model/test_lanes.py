"""Homes and lanes of message groups, owners of lite topics."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from evenq.model.lanes import home_of, lane_of, owner_among

NAMES = [f"broker-{letter}" for letter in "abcde"]


@given(st.text(min_size=1, max_size=64), st.permutations(NAMES))
def test_the_order_in_which_brokers_are_named_does_not_matter(group: str, names: list[str]) -> None:
    assert home_of(group, names) == home_of(group, NAMES)


@given(st.text(min_size=1, max_size=64))
def test_a_broker_that_goes_moves_only_its_own_groups(group: str) -> None:
    home = home_of(group, NAMES)
    for gone in NAMES:
        if gone != home:
            assert home_of(group, [name for name in NAMES if name != gone]) == home


def test_groups_spread_over_brokers_and_queues() -> None:
    shares = Counter((home_of(f"order-{n}", NAMES), lane_of(f"order-{n}", 4)) for n in range(10_000))
    assert len(shares) == 20
    assert all(400 < share < 600 for share in shares.values())


def test_they_are_the_same_in_every_release() -> None:
    assert [home_of(f"order-{n}", NAMES) for n in (1, 2, 3)] == HOMES
    assert [lane_of(f"order-{n}", 16) for n in (1, 2, 3)] == [15, 5, 3]


def test_an_owner_changes_only_with_its_own_broker() -> None:
    brokers = ["a", "b", "c"]
    names = [f"n{number}" for number in range(300)]
    before = {name: owner_among(brokers, "p", name) for name in names}
    assert {list(before.values()).count(broker) > 60 for broker in brokers} == {True}
    assert all(owner_among(["c", "a"], "p", name) == before[name] for name in names if before[name] != "b")
    assert all(owner_among([*brokers, "d"], "p", name) in {before[name], "d"} for name in names)
    assert owner_among([], "p", "n") == ""


HOMES = ["broker-e", "broker-e", "broker-c"]
