"""MACHINE_ROOM beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from evenq.allocation import Context, MachineRoom, divide
from evenq.model import MessageQueue


def test_without_rooms_nobody_gets_anything() -> None:
    assert MachineRoom().allocate("g", "a", [MessageQueue("T", "r@b", 0)], ["a"]) == []


def q(broker: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", broker, index) for index in range(count)]


ZONED = [*q("a"), *q("b"), *q("c"), *q("d")]
BROKERS = {"a": "z1", "b": "z2", "c": "z3"}


def given_out(context: Context, rooms: frozenset[str] = frozenset()) -> list[MessageQueue]:
    shares = divide(MachineRoom(rooms), "g", ZONED, ["m", "n"], context)
    return sorted(queue for share in shares.values() for queue in share)


def test_without_rooms_the_zones_of_the_members_take_part_and_what_is_unknown_is_not_left_unread() -> None:
    zones = {"m": "z1", "n": "z3"}
    assert given_out(Context(zone_of_broker=BROKERS, zone_of_member=zones)) == [*q("a"), *q("c"), *q("d")]
    assert given_out(Context(zone_of_broker=BROKERS, zone_of_member={"m": "z1"})) == [*q("a"), *q("d")]
    assert given_out(Context(zone_of_broker=BROKERS)) == ZONED
    assert given_out(Context()) == ZONED


def test_configured_rooms_stay_exact_whatever_a_server_knows() -> None:
    assert given_out(Context(zone_of_broker=BROKERS, zone_of_member={"m": "z1"}), frozenset({"z1"})) == []
