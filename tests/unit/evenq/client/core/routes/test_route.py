"""A route tells where its brokers answer, and says it clearly when it does not know one."""

import pytest

from evenq.client.core.routes.route import Route
from evenq.errors import ConnectionFailed

ROUTE = Route(topic="orders", writable=(), readable=(), addresses={"a": "127.0.0.1:1", "b": "127.0.0.1:2"})


def test_each_broker_of_the_route_has_its_address() -> None:
    assert ROUTE.address_of("a") == "127.0.0.1:1"
    assert ROUTE.address_of("b") == "127.0.0.1:2"


def test_a_broker_that_the_route_does_not_name_is_a_failed_connection_worth_another_try_with_a_new_route() -> None:
    with pytest.raises(ConnectionFailed, match="broker c is not in the route of orders now") as caught:
        ROUTE.address_of("c")
    assert caught.value.retryable
    assert caught.value.refresh_route
