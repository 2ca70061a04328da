"""The highest epoch wins in every table of routes (R14)."""

from __future__ import annotations

from evenq_broker.core.replication.route_epochs import RouteEpochs, RouteOf


def test_a_deposed_leader_that_registers_again_changes_nothing() -> None:
    routes = RouteEpochs()
    assert routes.offer("broker-a", RouteOf(1, 0))
    assert routes.offer("broker-a", RouteOf(2, 1))
    assert not routes.offer("broker-a", RouteOf(1, 0))
    assert not routes.offer("broker-a", RouteOf(2, 0))
    assert routes.newest("broker-a") == RouteOf(2, 1)


def test_groups_are_bounded() -> None:
    routes = RouteEpochs(groups_max=1)
    assert routes.offer("a", RouteOf(1, 0))
    assert not routes.offer("b", RouteOf(1, 0))
    routes.forget("a")
    assert routes.offer("b", RouteOf(1, 0))
