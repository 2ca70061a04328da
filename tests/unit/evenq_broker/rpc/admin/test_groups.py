"""MACHINE_ROOM without rooms: refused where there can be none, warned about where there may be (AL-20)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.rpc.admin.groups import about_rooms

from evenq.errors import BadRequest


def broker(*, rebalancer: str = "r:1", zone: str = "", zones: tuple[str, ...] = ()) -> Any:
    members = [SimpleNamespace(zone=one) for one in zones]
    settings = SimpleNamespace(rebalancer=rebalancer, zone=zone, broker_name="b")
    membership = SimpleNamespace(members=SimpleNamespace(members=lambda _group: members))
    return SimpleNamespace(runtime=SimpleNamespace(settings=settings), membership=membership)


def test_without_a_rebalancer_nobody_knows_a_room() -> None:
    with pytest.raises(BadRequest, match=r"only a rebalancer knows.*MACHINE_ROOM_NEARBY-AVG"):
        about_rooms(broker(rebalancer="").runtime, "g", membership=broker(rebalancer="").membership)


def test_a_broker_that_knows_of_no_room_warns_and_says_how_to_give_one() -> None:
    (warning,) = about_rooms(broker().runtime, "g", membership=broker().membership)
    assert "machine_rooms" in warning
    assert "set `zone`" in warning
    assert "evenq group doctor g" in warning


@pytest.mark.parametrize("given", [{"zone": "z1"}, {"zones": ("", "z2")}])
def test_a_known_zone_is_a_room(given: dict[str, Any]) -> None:
    assert about_rooms(broker(**given).runtime, "g", membership=broker(**given).membership) == []
