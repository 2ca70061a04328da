"""Names beyond tests/spec/test_allocation.py."""

from __future__ import annotations

import pytest

from evenq.allocation import MachineRoom, Nearby, by_name, known_names, requested_strategy, stand_in
from evenq.errors import BadRequest


def test_options_reach_the_strategy_that_takes_them() -> None:
    assert by_name("MACHINE_ROOM", rooms=["a", "b"]) == MachineRoom(frozenset({"a", "b"}))

    class Anywhere:
        def room_of_queue(self, queue):
            return "x"

        def room_of_client(self, client_id):
            return "x"

    resolver = Anywhere()
    strategy = by_name("MACHINE_ROOM_NEARBY-AVG", resolver=resolver)
    assert isinstance(strategy, Nearby)
    assert strategy.resolver is resolver


def test_all_known_names_are_names_of_strategies() -> None:
    for name in known_names():
        assert by_name(name.replace("<inner>", "AVG")).name == name.replace("<inner>", "AVG")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("STICKY", "AVG"),
        ("MACHINE_ROOM_NEARBY-STICKY", "MACHINE_ROOM_NEARBY-AVG"),
        ("MACHINE_ROOM_NEARBY-CONSISTENT_HASH", "MACHINE_ROOM_NEARBY-CONSISTENT_HASH"),
        ("AVG_BY_CIRCLE", "AVG_BY_CIRCLE"),
    ],
)
def test_avg_stands_in_for_sticky_where_nobody_knows_who_has_what(name, instead) -> None:
    assert stand_in(by_name(name)).name == instead


def test_a_group_asks_for_a_known_strategy_for_none_or_for_what_it_has() -> None:
    assert requested_strategy("") is None
    assert requested_strategy("None") == ""
    assert requested_strategy("STICKY") == "STICKY"
    with pytest.raises(BadRequest, match="'FAIREST'; known are AVG"):
        requested_strategy("FAIREST")


def test_no_server_takes_config_for_a_group() -> None:
    with pytest.raises(BadRequest, match=r"each member's own program.*strategy=Config"):
        requested_strategy("CONFIG")
