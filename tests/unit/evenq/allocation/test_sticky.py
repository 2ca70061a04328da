"""STICKY as a whole: joins, leaves, order of the arguments, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.allocation import Context, Sticky, by_name, coverage, divide, verified
from evenq.errors import BadRequest
from evenq.model import MessageQueue

STICKY = Sticky()


def q(count: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, f"b{index // 8}", index % 8) for index in range(count)]


def owners_of(shares: dict[str, list[MessageQueue]]) -> dict[MessageQueue, str]:
    return {queue: own for own, share in shares.items() for queue in share}


NAMES = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=14, unique=True)
ZONES = st.sampled_from(["", "z0", "z1", "z2"])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 70), NAMES, st.data())
@pytest.mark.slow
def test_a_join_moves_queues_only_to_the_newcomer_and_a_leave_only_the_leavers(queue_count, names, data) -> None:
    queues = q(queue_count)
    zones = {
        "zone_of_broker": {f"b{index}": data.draw(ZONES) for index in range(9)},
        "zone_of_member": {own: data.draw(ZONES) for own in names},
    }
    owners: dict[MessageQueue, str] = {}
    living = [names[0]]
    for own in [*names[1:], *data.draw(st.permutations(names))[:-1]]:
        before, owners_before = list(living), owners
        living = [other for other in living if other != own] if own in living else [*living, own]
        shares = divide(STICKY, "g", queues, living, Context(owners=owners, **zones))
        assert coverage(queues, shares).complete
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1
        owners = owners_of(shares)
        moved = [queue for queue, owner in owners_before.items() if owners[queue] != owner]
        if own in living:
            assert {owners[queue] for queue in moved} <= {own}
            assert len(moved) == (min(sizes) if owners_before else 0) or len(before) == 1
        else:
            assert {owners_before[queue] for queue in moved} <= {own}


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), NAMES, st.booleans(), st.booleans(), st.integers(0, 3), st.data())
def test_the_order_of_the_arguments_does_not_matter(queue_count, names, weighty, zoned, moves_max, data) -> None:
    queues = q(queue_count)
    owners = {queue: data.draw(st.sampled_from([*names, "gone"])) for queue in queues}
    weights = {queue: float(data.draw(st.integers(0, 9))) for queue in queues} if weighty else {}
    brokers = {f"b{index}": data.draw(ZONES) for index in range(9)} if zoned else {}
    members = {own: data.draw(ZONES) for own in names} if zoned else {}

    def answer(queues: list[MessageQueue], ids: list[str], pairs: list[tuple[MessageQueue, str]]):
        context = Context(
            owners=dict(pairs),
            zone_of_broker=brokers,
            zone_of_member=members,
            weight_of_queue=weights,
            moves_max=moves_max,
        )
        return divide(STICKY, "g", queues, ids, context)

    first = answer(queues, names, list(owners.items()))
    again = answer(queues[::-1], sorted(names), list(owners.items())[::-1])
    assert again == first
    assert list(again) == sorted(names)
    assert verified(first, queues, names) == first
    assert all(share == sorted(share) for share in first.values())


def test_what_was_decided_once_is_decided_again() -> None:
    ids = ["a", "b", "c"]
    first = divide(STICKY, "g", q(8), ids)
    assert divide(STICKY, "g", q(8), ids, Context(owners=owners_of(first))) == first


def test_new_queues_move_no_old_ones() -> None:
    before = owners_of(divide(STICKY, "g", q(8), ["a", "b", "c"]))
    after = owners_of(divide(STICKY, "g", q(16), ["a", "b", "c"], Context(owners=before)))
    assert {queue: after[queue] for queue in before} == before


def test_remainders_of_many_topics_do_not_pile_up_on_one_member() -> None:
    ids = [f"c{index}" for index in range(5)]
    owners = [
        own for number in range(100) for own, share in divide(STICKY, "g", q(1, f"t{number}"), ids).items() if share
    ]
    assert max(owners.count(own) for own in ids) <= 35  # AVG gives all 100 to the first


def test_a_client_is_refused_with_where_to_go() -> None:
    with pytest.raises(BadRequest, match=r"member of group 'g' cannot divide by STICKY.*rebalancer"):
        by_name("STICKY").allocate("g", "a", q(2), ["a"])


def test_a_group_without_members_divides_into_nothing_and_queues_must_be_told() -> None:
    assert divide(STICKY, "g", q(2), []) == {}
    with pytest.raises(BadRequest, match="mqAll"):
        divide(STICKY, "g", [], ["a"])
    with pytest.raises(BadRequest, match="currentCID"):
        divide(STICKY, "g", q(2), ["a", ""])
