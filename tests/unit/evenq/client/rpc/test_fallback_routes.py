"""Routes from known brokers while no access point answers: which are queried, how many, and what their answers change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.rpc.calls import Calls
from evenq.client.rpc.transport import BROKERS_MAX
from evenq.errors import ConnectionFailed, Forbidden, TopicNotFound
from evenq.model import MessageQueue
from evenq.runtime.clock import FakeClock
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import routes_pb2

NO_TOPIC = service_pb2.QueryRouteResponse(status=v2.Status(code=v2.TOPIC_NOT_FOUND)).SerializeToString()


def answer(*brokers: str, settled: bool = True, epoch: int = 0, any_broker: bool = False) -> bytes:
    """A route with one queue at each broker; names in capitals are called with TLS."""
    response = service_pb2.QueryRouteResponse(status=v2.Status(code=v2.OK))
    for name in brokers:
        queue = response.message_queues.add(id=0, permission=v2.READ_WRITE)
        queue.topic.name, queue.broker.name = "t", name
        queue.broker.endpoints.addresses.add(host=name.lower(), port=1)
    leaders = [routes_pb2.GroupLeader(broker_name=name, epoch=epoch) for name in brokers if epoch]
    schemes = routes_pb2.RouteSchemes(
        settled=settled,
        tls_brokers=[name for name in brokers if name.isupper()],
        leaders=leaders,
        any_broker=any_broker,
    )
    return response.SerializeToString() + schemes.SerializeToString()


class Net:
    """Servers by address: what they answer, or the error that a call to them raises. Others do not answer."""

    def __init__(self) -> None:
        self.servers: dict[str, bytes | Exception] = {}
        self.seen: list[str] = []

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any = None) -> bytes:
        await asyncio.sleep(0)
        assert "x-evenq-broker" not in metadata, "a broker that gets a call for another one names no shared address"
        self.seen.append(address)
        result = self.servers.get(address, ConnectionFailed(f"no server answers at {address}"))
        if isinstance(result, Exception):
            raise result
        return result

    def take(self) -> list[str]:
        """The calls since the last look."""
        seen, self.seen = self.seen, []
        return seen


class Stage:
    """A client that received a route from its access point, which then ended."""

    def __init__(self, endpoint: str = "point:1") -> None:
        self.net, self.clock = Net(), FakeClock()
        net: Any = self.net
        self.calls = Calls(net, endpoint=endpoint, client_id="c")
        self.book = RouteBook(self.calls, self.clock, refresh_ms=30_000)

    async def begin(self, *brokers: str, **terms: Any) -> None:
        self.net.servers["point:1"] = answer(*brokers, **terms)
        await self.book.get("t")
        del self.net.servers["point:1"]
        self.net.take()

    async def names(self) -> list[str]:
        """The brokers in the route after a refresh."""
        return list((await self.book.fresh("t")).addresses)


@pytest.fixture
def stage() -> Stage:
    return Stage("point:1")


@pytest.mark.parametrize("endpoint", ["point:1", "gone:1;point:1"])
async def test_a_client_without_any_access_point_learns_of_a_new_broker_and_that_an_old_one_left(endpoint: str) -> None:
    stage = Stage(endpoint)
    await stage.begin("a", "b")
    stage.net.servers["b:1"] = answer("b", "c")
    assert await stage.names() == ["b", "c"]
    assert (await stage.book.get("t")).readable == (MessageQueue("t", "b", 0), MessageQueue("t", "c", 0))
    del stage.net.servers["b:1"]
    stage.net.servers["c:1"] = answer("c", "d")
    assert await stage.names() == ["c", "d"], "a broker that was learned in this way is queried, too"


async def test_an_access_point_that_answers_again_is_the_only_one_to_be_queried(stage: Stage) -> None:
    await stage.begin("a", "b")
    stage.net.servers["a:1"] = answer("a", "b", "c")
    for _ in range(2):
        assert await stage.names() == ["a", "b", "c"]
        assert stage.net.take() == ["point:1", "a:1"]
    stage.net.servers["point:1"] = answer("a", "d")
    for _ in range(2):
        assert await stage.names() == ["a", "d"]
        assert stage.net.take() == ["point:1"]


async def test_each_refresh_calls_few_brokers_and_the_next_one_others(stage: Stage) -> None:
    await stage.begin(*"abcde")
    await stage.names()
    assert stage.net.take() == ["point:1", "a:1", "b:1", "c:1"]
    assert BROKERS_MAX == 3
    stage.net.servers["e:1"] = answer(*"abcdef")
    assert await stage.names() == [*"abcdef"]
    assert stage.net.take() == ["point:1", "d:1", "e:1"]
    await stage.names()
    assert stage.net.take() == ["point:1", "e:1"], "it stays with the broker that answers"


async def test_what_no_broker_answers_is_the_access_points_failure_and_changes_nothing(stage: Stage) -> None:
    await stage.begin("a", "b")
    stage.net.servers |= {"a:1": Forbidden("not you"), "b:1": Forbidden("not you")}
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.calls.query_route("t")
    stage.net.take()
    assert await stage.names() == ["a", "b"]
    stage.net.servers["b:1"] = answer("a", "b", "c")
    assert await stage.names() == ["a", "b", "c"], "a broker that refuses is not the only one to be queried"


async def test_a_client_that_has_received_no_route_queries_its_access_points_alone(stage: Stage) -> None:
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.book.get("t")
    assert stage.net.take() == ["point:1"]


async def test_brokers_are_called_as_their_route_says_and_each_server_once() -> None:
    """TLS stays TLS; a shared address is called without the name of a broker, and not at all if it is the access point."""

    stage = Stage("point:1")
    await stage.begin("A", "POINT")
    await stage.names()
    assert stage.net.take() == ["point:1", "evenqs://a:1"]

    stage = Stage("point:1")
    await stage.begin("a", "b", "point", any_broker=True)
    stage.net.servers["a:1"] = answer("a", "c", any_broker=True)
    assert (await stage.book.fresh("t")).addresses == {"a": "a:1#a", "c": "c:1#c"}
    assert stage.net.take() == ["point:1", "a:1"]

    stage = Stage("point:1?one-address")
    await stage.begin("a", "b")
    await stage.names()
    assert stage.net.take() == ["point:1"]


async def test_a_broker_that_may_not_know_all_others_adds_to_the_route_and_removes_nothing(stage: Stage) -> None:
    """A broker that restarts while no nameserver answers knows only itself."""
    await stage.begin("a", "b")
    stage.net.servers["a:1"] = answer("a", "c", settled=False)
    assert sorted(await stage.names()) == ["a", "b", "c"]
    route = await stage.book.get("t")
    assert [queue.broker_name for queue in route.readable] == ["a", "b", "c"]
    assert route.writable == route.readable
    assert stage.net.take() == ["point:1", "a:1"]
    stage.net.servers["b:1"] = answer("b", "c")
    assert sorted(await stage.names()) == ["b", "c"], "the next question goes to another broker, which knows all"
    assert stage.net.take() == ["point:1", "b:1"]
    stage.net.servers["point:1"] = answer("b", settled=False)
    assert await stage.names() == ["b"], "an access point is believed"


async def test_topics_that_are_refreshed_together_do_not_return_to_the_broker_that_knows_less(stage: Stage) -> None:
    await stage.begin("a", "b")
    stage.net.servers |= {"a:1": answer("a", settled=False), "b:1": answer("b", "c")}
    for _ in range(2):
        await asyncio.gather(*(stage.calls.query_route(topic) for topic in ("t", "u")))
    assert stage.net.take() == ["point:1"] * 2 + ["a:1"] * 2 + ["point:1"] * 2 + ["b:1"] * 2


async def test_a_partial_route_never_names_an_older_leader(stage: Stage) -> None:
    await stage.begin("a", "b", epoch=7)
    stage.net.servers["a:1"] = answer("a", settled=False, epoch=6)
    await stage.clock.advance(3_600_000)
    route = await stage.book.fresh("t")
    assert route.partial
    assert route.epochs == {"a": 7, "b": 7}


async def test_a_topic_that_a_broker_does_not_know_stays_known_and_another_broker_is_queried_next(stage: Stage) -> None:
    await stage.begin("a", "b")
    stage.net.servers |= {"a:1": NO_TOPIC, "b:1": answer("a", "b", "c")}
    assert await stage.names() == ["a", "b"]
    assert await stage.names() == ["a", "b", "c"]
    stage.net.servers["b:1"] = NO_TOPIC
    with pytest.raises(TopicNotFound):
        await stage.calls.query_route("u")


async def test_other_calls_to_the_access_point_go_to_the_settled_broker_that_gives_the_routes(stage: Stage) -> None:
    """Assignments, ends of transactions and recalls; a broker that lacks others would compute a wrong assignment."""
    await stage.begin("a", "b")
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.calls.at_access_point("/m", b"")
    stage.net.servers |= {"a:1": answer("a", settled=False), "b:1": answer("a", "b", "c")}
    await stage.names()
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.calls.at_access_point("/m", b"")
    await stage.names()
    stage.net.take()
    await stage.calls.at_access_point("/m", b"")
    assert stage.net.take() == ["point:1", "b:1"]
    stage.net.servers["point:1"] = answer("a", "b")
    await stage.names()
    del stage.net.servers["point:1"]
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.calls.at_access_point("/m", b"")
    await stage.names()
    await stage.calls.at_access_point("/m", b"")
    stage.net.servers = {}
    await stage.names()
    with pytest.raises(ConnectionFailed, match="point:1"):
        await stage.calls.at_access_point("/m", b"")


async def test_a_client_that_turns_away_from_its_source_of_routes_queries_another_broker(stage: Stage) -> None:
    """A leader that is cut off from the other copies continues to report that it leads."""
    await stage.begin("a", "b")
    stage.net.servers |= {"a:1": answer("a", "b"), "b:1": answer("a", "b", "c")}
    await stage.book.look("t", elsewhere=True)
    await stage.book.look("t", elsewhere=True)
    assert stage.net.take() == ["point:1", "a:1", "point:1", "b:1"]
