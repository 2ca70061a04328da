"""MACHINE_ROOM_NEARBY beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenq.allocation import ByCircle, ConsistentHash, Nearby, PrefixRooms, coverage, divide
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
def test_every_queue_has_one_owner_whatever_the_rooms(queue_rooms, client_rooms, together) -> None:
    queues = sorted(MessageQueue("T", f"r{room}@b", index) for room, count in queue_rooms for index in range(count))
    ids = sorted(f"r{room}@c{number}" for number, room in enumerate(client_rooms))
    for inner in (ByCircle(), ConsistentHash()):
        assert coverage(queues, divide(Nearby(inner, together=together), "g", queues, ids)).complete
