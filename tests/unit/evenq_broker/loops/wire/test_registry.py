"""The words of nameservers: answers are read with their status, events without brokers that cannot be reached."""

from __future__ import annotations

import pytest
from evenq_broker.loops.wire.cluster import heartbeat_interval_ms, route_news, wants_everything

from evenq.errors import Error
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import registry_pb2

OK = definition_pb2.Status(code=definition_pb2.OK)
REFUSED = definition_pb2.Status(code=definition_pb2.UNAUTHORIZED, message="no")


@pytest.mark.parametrize(("told_ms", "read_ms"), [(3_000, 3_000), (0, 0), (-5, 0)])
def test_the_interval_that_a_nameserver_asks_for_is_no_negative_one(told_ms: int, read_ms: int) -> None:
    response = registry_pb2.RegisterResponse(status=OK, heartbeat_interval_ms=told_ms)
    assert heartbeat_interval_ms(response.SerializeToString()) == read_ms


@pytest.mark.parametrize("wanted", [True, False])
def test_a_nameserver_that_does_not_know_us_says_so(wanted: bool) -> None:
    response = registry_pb2.RegistryHeartbeatResponse(status=OK, full_wanted=wanted)
    assert wants_everything(response.SerializeToString()) is wanted


def test_refusals_are_raised() -> None:
    with pytest.raises(Error, match="no"):
        heartbeat_interval_ms(registry_pb2.RegisterResponse(status=REFUSED).SerializeToString())
    with pytest.raises(Error, match="no"):
        wants_everything(registry_pb2.RegistryHeartbeatResponse(status=REFUSED).SerializeToString())


def test_a_broker_without_an_address_is_left_out_of_the_news() -> None:
    event = registry_pb2.RouteEvent(nameserver="n", snapshot=True, removed=["gone"])
    event.brokers.add().broker.name = "unreachable"
    known = event.brokers.add().broker
    known.name = "a"
    known.listeners.add(name="default", host="h", port=1)
    news = route_news(event.SerializeToString())
    assert [view.name for view in news.brokers] == ["a"]
    assert (news.nameserver, news.snapshot, news.settling, list(news.removed)) == ("n", True, False, ["gone"])
    assert news.left == []


def test_brokers_that_left_come_with_the_time_since_then() -> None:
    event = registry_pb2.RouteEvent(nameserver="n", snapshot=True)
    for name, ago_ms in (("a", 7), ("b", -5)):
        left = event.left.add(ago_ms=ago_ms)
        left.state.broker.name = name
        left.state.broker.listeners.add(name="default", host="h", port=1)
    event.left.add().state.broker.name = "unreachable"
    assert [(view.name, ago_ms) for view, ago_ms in route_news(event.SerializeToString()).left] == [("a", 7), ("b", 0)]
