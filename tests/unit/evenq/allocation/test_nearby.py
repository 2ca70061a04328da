"""MACHINE_ROOM_NEARBY beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.allocation import ByCircle, ConsistentHash, Context, Nearby, PrefixRooms, by_name, coverage, divide
from evenq.errors import BadRequest
from evenq.model import MessageQueue


def test_rooms_are_read_from_the_front_of_names() -> None:
    rooms = PrefixRooms()
    assert rooms.room_of_queue(MessageQueue("T", "r1@b", 0)) == "r1"
    assert rooms.room_of_queue(MessageQueue("T", "plain", 0)) is None
    assert rooms.room_of_client("r2@host@7") == "r2"
    assert rooms.room_of_client("@x") == ""
    assert PrefixRooms("/").room_of_client("zone/x") == "zone"


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]),
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.booleans(),
)
@pytest.mark.slow
def test_every_queue_has_one_owner_whatever_the_rooms(queue_rooms, client_rooms, together) -> None:
    queues = sorted(MessageQueue("T", f"r{room}@b", index) for room, count in queue_rooms for index in range(count))
    ids = sorted(f"r{room}@c{number}" for number, room in enumerate(client_rooms))
    for inner in (ByCircle(), ConsistentHash()):
        assert coverage(queues, divide(Nearby(inner, together=together), "g", queues, ids)).complete


def q(broker: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", broker, index) for index in range(count)]


ZONED = [*q("a", 4), *q("b", 1), *q("c", 1), *q("d", 2)]
ZONES = Context(
    zone_of_broker={"a": "z1", "b": "z2", "c": "z3"}, zone_of_member={"m": "z1", "n": "z1", "o": "z4", "p": ""}
)


def test_zones_are_rooms_and_what_nobody_attends_is_shared_as_one_list() -> None:
    shares = divide(Nearby(), "g", ZONED, ["m", "n", "o", "p"], ZONES)
    assert (
        shares
        == {
            "m": [*q("a", 2), *q("b", 1)],
            "n": [*q("a", 4)[2:], *q("c", 1)],
            "o": q("d", 1),  # its zone has no broker
            "p": q("d", 2)[1:],  # its zone is not known
        }
    )
    apart = divide(Nearby(together=False), "g", ZONED, ["m", "n", "o", "p"], ZONES)
    assert [len(share) for share in apart.values()] == [5, 3, 0, 0]


def test_a_server_that_knows_no_zones_takes_the_names_and_an_unknown_room_is_no_error_there() -> None:
    queues, ids = [*q("r1@b", 4), *q("r2@b", 4), *q("r3@b", 4)], ["r1@a", "r1@b", "r3@c"]
    assert divide(Nearby(), "g", queues, ids, Context()) == Nearby().divide("g", queues, ids)
    shares = divide(Nearby(), "g", q("plain", 4), ["c1", "c2"], Context())
    assert [len(share) for share in shares.values()] == [2, 2]
    with pytest.raises(BadRequest, match="Machine room is null"):
        Nearby().divide("g", q("plain", 4), ["c1", "c2"])


def test_a_resolver_goes_before_zones() -> None:
    shares = divide(Nearby(resolver=PrefixRooms()), "g", q("r1@b", 4), ["r1@a", "r2@c"], ZONES)
    assert [len(share) for share in shares.values()] == [4, 0]


def test_inner_sticky_keeps_what_members_of_the_room_have() -> None:
    strategy = by_name("MACHINE_ROOM_NEARBY-STICKY")
    owners = dict.fromkeys(q("a", 2), "n") | dict.fromkeys(q("a", 4)[2:], "m")
    context = replace(ZONES, owners=owners)
    shares = divide(strategy, "g", ZONED, ["m", "n", "o", "p"], context)
    assert set(q("a", 2)) <= set(shares["n"])
    assert set(q("a", 4)[2:]) <= set(shares["m"])
    with pytest.raises(BadRequest, match="rebalancer"):
        strategy.allocate("g", "r1@a", q("r1@b"), ["r1@a"])
