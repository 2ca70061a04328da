"""STICKY without weights, against all divisions there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.allocation import Context
from evenq.allocation.unweighted import evened
from evenq.model import MessageQueue

OTHER = "gone"


def q(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", f"b{index % 3}", index) for index in range(count)]


def owners_of(shares: dict[str, list[MessageQueue]]) -> dict[MessageQueue, str]:
    return {queue: own for own, share in shares.items() for queue in share}


def moved(before: dict[MessageQueue, str], after: dict[MessageQueue, str], ids: list[str]) -> int:
    return sum(owner in ids and after[queue] != owner for queue, owner in before.items())


def balanced(queues: list[MessageQueue], ids: list[str]) -> Iterator[tuple[str, ...]]:
    for owners in itertools.product(ids, repeat=len(queues)):
        sizes = [owners.count(own) for own in ids]
        if max(sizes) - min(sizes) <= 1:
            yield owners


@pytest.mark.parametrize(("queue_count", "member_count"), [(1, 1), (1, 3), (2, 3), (3, 2), (4, 2), (4, 3), (5, 3)])
def test_from_every_start_the_shares_are_balanced_with_the_fewest_moves_there_can_be(queue_count, member_count) -> None:
    queues, ids = q(queue_count), [f"c{index}" for index in range(member_count)]
    allowed = list(balanced(queues, ids))
    for start in itertools.product([*ids, OTHER], repeat=queue_count):
        before = dict(zip(queues, start, strict=True))
        after = owners_of(evened(queues, ids, Context(owners=before)))
        assert tuple(after[queue] for queue in queues) in allowed
        living = [(index, owner) for index, owner in enumerate(start) if owner != OTHER]
        fewest = min(sum(owners[index] != owner for index, owner in living) for owners in allowed)
        assert moved(before, after, ids) == fewest


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_budget_is_kept_unowned_queues_are_given_and_repeating_ends_balanced_with_the_fewest_moves(
    queue_count, member_count, budget, zones, rnd
) -> None:
    queues, ids = q(queue_count), [f"c{index}" for index in range(member_count)]
    zone_of_broker = {f"b{index}": f"z{index % zones}" for index in range(3)}
    zone_of_member = {own: f"z{rnd.randrange(zones)}" for own in ids}
    start = {queue: rnd.choice([*ids[: rnd.randint(1, member_count)], OTHER]) for queue in queues}
    facts = {"zone_of_broker": zone_of_broker, "zone_of_member": zone_of_member}
    fewest = moved(start, owners_of(evened(queues, ids, Context(owners=start, **facts))), ids)
    before, total = start, 0
    for _ in range(queue_count + 1):
        after = owners_of(evened(queues, ids, Context(owners=before, moves_max=budget, **facts)))
        assert sorted(after) == sorted(queues)
        step = moved(before, after, ids)
        assert step <= budget
        total, before = total + step, after
        if not step:
            break
    sizes = [list(before.values()).count(own) for own in ids]
    assert max(sizes) - min(sizes) <= 1
    assert total == fewest


def zoned(zone_of_member: dict[str, str], owners: dict[MessageQueue, str], **more: int) -> Context:
    brokers = {f"b{index}": f"z{index}" for index in range(3)}
    return Context(owners=owners, zone_of_broker=brokers, zone_of_member=zone_of_member, **more)


def test_queues_without_owner_go_to_members_of_their_zone_as_far_as_balance_lets_them() -> None:
    queues = q(6)  # two in each of z0, z1, z2
    shares = evened(queues, ["a", "b", "c"], zoned({"a": "z2", "b": "z0", "c": "z1"}, {}))
    assert {own: {queue.broker_name for queue in share} for own, share in shares.items()} == {
        "a": {"b2"},
        "b": {"b0"},
        "c": {"b1"},
    }
    shares = evened(queues, ["a", "b"], zoned({"a": "z0", "b": "z0"}, {}))
    assert sorted(len(share) for share in shares.values()) == [3, 3]


def test_a_newcomer_gets_queues_of_its_zone_from_who_is_far_from_them() -> None:
    queues = q(6)
    owners = {queue: "a" if queue.broker_name != "b1" or queue.queue_id == 1 else "b" for queue in queues}
    owners |= {queues[0]: "b", queues[3]: "b"}  # a: 1 2 5, b: 0 3 4
    shares = evened(queues, ["a", "b", "n"], zoned({"a": "z2", "b": "z0", "n": "z1"}, owners))
    assert sorted(queue.queue_id for queue in shares["n"]) == [1, 4]
    assert sorted(queue.queue_id for queue in shares["a"]) == [2, 5]
    assert sorted(queue.queue_id for queue in shares["b"]) == [0, 3]


def test_who_would_lose_a_queue_of_its_own_zone_keeps_the_larger_share() -> None:
    queues = [MessageQueue("T", "b0", index) for index in range(4)]
    owners = dict(zip(queues, ["far", "far", "near", "near"], strict=True))
    shares = evened(queues, ["far", "near", "n"], zoned({"far": "z1", "near": "z0", "n": "z2"}, owners))
    assert {own: len(share) for own, share in shares.items()} == {"far": 1, "near": 2, "n": 1}


def test_with_a_budget_the_largest_gives_to_the_smallest_first_and_near_queues_are_chosen() -> None:
    queues = q(9)
    owners = dict.fromkeys(queues, "a")
    shares = evened(queues, ["a", "b", "c"], zoned({"a": "z0", "b": "z1", "c": "z2"}, owners, moves_max=2))
    assert [len(shares[own]) for own in ("a", "b", "c")] == [7, 1, 1]
    assert [shares[own][0].broker_name for own in ("b", "c")] == ["b1", "b2"]


def test_unowned_queues_go_to_the_smallest_even_when_no_move_is_allowed_for_balance() -> None:
    queues = q(10)
    owners = dict.fromkeys(queues[:7], "a")
    shares = evened(queues, ["a", "b", "c"], Context(owners=owners, moves_max=1))
    assert sorted(len(share) for share in shares.values()) == [2, 2, 6]
