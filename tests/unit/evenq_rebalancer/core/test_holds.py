"""One group's holds: who is waited for, for how long, and who takes over."""

from __future__ import annotations

from evenq_rebalancer.core.holds import Holds
from hypothesis import given
from hypothesis import strategies as st

TIMES = {"hold_ms": 1_000, "now_ms": 10, "wall_ms": 5_010}


def test_a_hold_says_who_where_and_until_when() -> None:
    holds = Holds()
    hold = holds.left("a", "web-0", **TIMES)
    assert hold is not None
    assert (hold.client_id, hold.place, hold.until_ms, hold.until_wall_ms) == ("a", "web-0", 1_010, 6_010)
    assert holds.standing == [hold]
    assert holds.next_ms() == 1_010


def test_no_hold_without_a_time_for_it() -> None:
    holds = Holds()
    assert holds.left("a", "web-0", hold_ms=0, now_ms=0, wall_ms=0) is None
    assert holds.next_ms() is None


def test_a_successor_of_the_same_place_takes_over_once() -> None:
    holds = Holds()
    hold = holds.left("a", "web-0", **TIMES)
    assert holds.joined("x", "web-1") is None
    assert holds.joined("x", "") is None
    assert holds.joined("b", "web-0") is hold
    assert holds.joined("c", "web-0") is None
    assert len(holds) == 0


def test_who_comes_back_under_its_own_id_is_its_own_successor() -> None:
    holds = Holds()
    first, second = holds.left("a", "deployment", **TIMES), holds.left("b", "deployment", **TIMES)
    assert holds.joined("b", "deployment") is second
    assert holds.joined("new", "deployment") is first


def test_of_several_with_one_place_the_oldest_is_followed_first() -> None:
    holds = Holds()
    left = [holds.left(own, "deployment", **TIMES) for own in "zma"]
    assert [holds.joined(f"new-{number}", "deployment") for number in range(3)] == left


def test_time_ends_a_hold_and_so_does_a_policy_without_any() -> None:
    holds = Holds()
    hold = holds.left("a", "web-0", **TIMES)
    later = holds.left("b", "web-1", hold_ms=2_000, now_ms=10, wall_ms=0)
    assert holds.expire(1_009) == []
    assert holds.expire(1_010) == [hold]
    assert holds.clear() == [later]
    assert holds.next_ms() is None


def test_their_number_is_bounded() -> None:
    holds = Holds(holds_max=2)
    assert [bool(holds.left(own, own, **TIMES)) for own in "abc"] == [True, True, False]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["left", "joined", "time"]), st.sampled_from("abcdef"), st.sampled_from(["p", "q", ""])),
    max_size=60,
)


@given(EVENTS)
def test_every_hold_ends_within_its_time_whatever_happens(events) -> None:
    holds, now_ms, began = Holds(holds_max=4), 0, {}
    for event, own, place in events:
        if event == "left":
            hold = holds.left(own, place, hold_ms=50, now_ms=now_ms, wall_ms=now_ms)
            if hold:
                began[own] = now_ms
        elif event == "joined":
            taken = holds.joined(own, place)
            assert taken is None or taken.client_id == own or taken.place == place != ""
        else:
            now_ms += 20
            holds.expire(now_ms)
        assert len(holds) <= 4
        for hold in holds.standing:
            assert now_ms < began[hold.client_id] + 50
    holds.expire(now_ms + 50)
    assert len(holds) == 0


def test_a_hold_of_the_leader_before_goes_on_until_its_time() -> None:
    holds = Holds()
    hold = holds.resumed("a", "web-0", until_wall_ms=5_310, **TIMES)
    assert hold is not None
    assert (hold.until_ms, hold.until_wall_ms) == (310, 5_310)
    assert holds.resumed("b", "web-0", until_wall_ms=5_010, **TIMES) is None, "it is over"
    assert holds.resumed("a", "web-0", until_wall_ms=5_310, **TIMES) is None, "one for each"
    assert holds.resumed("c", "web-0", until_wall_ms=5_310, **TIMES | {"hold_ms": 0}) is None


@given(until_wall_ms=st.integers(-(1 << 62), 1 << 62), wall_ms=st.integers(0, 1 << 50), hold_ms=st.integers(0, 10_000))
def test_no_clock_makes_a_hold_longer_than_the_policy_says(until_wall_ms, wall_ms, hold_ms) -> None:
    hold = Holds().resumed("a", "web-0", until_wall_ms=until_wall_ms, hold_ms=hold_ms, now_ms=7, wall_ms=wall_ms)
    if hold is not None:
        assert 7 < hold.until_ms <= 7 + hold_ms
        assert hold.until_wall_ms - wall_ms == hold.until_ms - 7


def test_a_new_leader_takes_up_no_more_holds_than_any() -> None:
    holds = Holds(holds_max=2)
    taken = [holds.resumed(own, "web", until_wall_ms=5_310, **TIMES) for own in "abc"]
    assert [hold is not None for hold in taken] == [True, True, False]
