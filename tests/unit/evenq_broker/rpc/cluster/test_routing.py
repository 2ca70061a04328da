"""Routes and assignments on the wire, beyond the promises in tests/spec/test_cluster.py."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.rpc.cluster.routing import endpoints_of
from evenq_broker.settings import StoreSettings
from evenq_proofs.fake_registry import FakeRegistry

from evenq.client.rpc.transport import route_of
from evenq.errors import Error
from evenq.model import BrokerAddress, MessageType, Permission, QueueCounts
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, routes_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
POINT = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])


async def route(stage: Any, topic: str, namespace: str = "") -> Any:
    resource = definition_pb2.Resource(name=topic, resource_namespace=namespace)
    request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT)
    return await stage.call(V2 + "QueryRoute", request, service_pb2.QueryRouteResponse)


def other(read: int, write: int, permission: Permission = Permission.READ_WRITE) -> RegisteredBroker:
    counts = QueueCounts(
        broker_name="b",
        read_queues=read,
        write_queues=write,
        permission=permission,
        message_type=MessageType.MIXED,
    )
    return RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),), topics={"t": counts})


@pytest.mark.parametrize(
    ("host", "scheme"),
    [("10.1.2.3", definition_pb2.IPv4), ("::1", definition_pb2.IPv6), ("pod.svc", definition_pb2.DOMAIN_NAME)],
)
def test_an_address_is_told_with_the_scheme_that_fits_it(host: str, scheme: int) -> None:
    result = endpoints_of(BrokerAddress("default", host, 1))
    assert result.scheme == scheme
    assert len(result.addresses) == 1


async def test_read_write_queues_come_first_and_the_rest_of_a_resize_follows(stage: Any) -> None:
    """RT-8: a topic that grows or shrinks in steps."""
    broker = await stage.broker()
    for view, permissions in ((other(2, 3), [4, 4, 3]), (other(3, 2), [4, 4, 2])):
        broker.catalog.routes.snapshot("n", "x", [view], 0)
        response = await route(stage, "t")
        assert [(q.id, q.permission) for q in response.message_queues] == list(enumerate(permissions))
        assert list(response.message_queues[0].accept_message_types) == [1, 2, 3, 4], "MIXED is never LITE or PRIORITY"


async def test_a_closed_topic_has_no_route(stage: Any) -> None:
    broker = await stage.broker()
    broker.catalog.routes.snapshot("n", "x", [other(2, 2, Permission.NONE)], 0)
    with pytest.raises(Error) as caught:
        await route(stage, "t")
    assert caught.value.code == definition_pb2.TOPIC_NOT_FOUND


async def test_the_resource_is_echoed_as_it_came_and_its_namespace_is_part_of_the_name(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("ns%t", queues=1))
    response = await route(stage, "t", "ns")
    assert {(q.topic.resource_namespace, q.topic.name) for q in response.message_queues} == {("ns", "t")}
    assert broker.catalog.topics.get("ns%t") is not None
    assert broker.catalog.topics.get("t") is None


async def test_a_broker_that_is_gone_is_left_out_of_assignments_at_once(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    broker.catalog.routes.snapshot("n", "x", [other(1, 1)], 0)
    request = service_pb2.QueryAssignmentRequest(
        topic=definition_pb2.Resource(name="t"), group=definition_pb2.Resource(name="g"), endpoints=POINT
    )

    async def brokers() -> list[str]:
        response = await stage.call(V2 + "QueryAssignment", request, service_pb2.QueryAssignmentResponse)
        return [entry.message_queue.broker.name for entry in response.assignments]

    assert await brokers() == ["a", "b"]
    broker.catalog.routes.changed("n", [], ["b"], 0)
    assert await brokers() == ["a"]


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("STICKY", "AVG"),
        ("MACHINE_ROOM_NEARBY-STICKY", "MACHINE_ROOM_NEARBY-AVG"),
        ("UNHEARD_OF", "AVG"),
        ("AVG", "AVG"),
    ],
)
async def test_without_a_rebalancer_avg_stands_in_for_what_needs_one_and_the_answer_says_so(
    stage: Any, asked: str, used: str
) -> None:
    """XO-3: never an error; who has what is not known here, and rooms that are not known are shared."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=3))
    request = assignment_pb2.AssignmentRequest(group="g", topic="t", client_id="me", strategy=asked)
    response = await stage.call("/evenq.v1.Assignment/Query", request, assignment_pb2.AssignmentResponse)
    assert [entry.queue.queue_id for entry in response.queues] == [0, 1, 2]
    assert response.strategy == used


async def test_members_that_ask_alike_are_answered_alike_also_by_a_broker_that_knows_of_an_older_strategy(
    stage: Any,
) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=3))
    await stage.during(broker.catalog.create_group("g", strategy="AVG_BY_CIRCLE"))
    for asked, used in (("AVG", "AVG"), ("", "AVG_BY_CIRCLE")):
        request = assignment_pb2.AssignmentRequest(group="g", topic="t", client_id="me", strategy=asked)
        response = await stage.call("/evenq.v1.Assignment/Query", request, assignment_pb2.AssignmentResponse)
        assert response.strategy == used


async def test_what_only_a_rebalancer_knows_is_not_implemented_without_one(stage: Any) -> None:
    await stage.broker()
    with pytest.raises(Error, match="has no rebalancer") as caught:
        await stage.call(
            "/evenq.v1.Assignment/Explain", assignment_pb2.ExplainRequest(group="g"), assignment_pb2.ExplainResponse
        )
    assert caught.value.code == definition_pb2.NOT_IMPLEMENTED


async def test_a_topic_in_the_making_is_answered_when_all_of_it_is_there(stage: Any) -> None:
    """A client would keep half a route for half a minute."""
    broker = await stage.broker()
    everywhere, made = asyncio.Event(), broker.cluster_catalog.create_topic

    async def slowly(name: str, **options: Any) -> Any:
        placements = await made(name, **options)
        await everywhere.wait()
        return placements

    broker.cluster_catalog.create_topic = slowly  # another broker that takes its time
    sending = asyncio.ensure_future(broker.cluster_catalog.ensure_topic("t"))
    await stage.until(lambda: broker.catalog.topics.get("t") is not None)
    asking = asyncio.ensure_future(route(stage, "t"))
    await stage.clock.advance(200)
    assert not asking.done()
    everywhere.set()
    assert len((await stage.during(asking)).message_queues) == 8
    await stage.during(sending)


@pytest.mark.parametrize(("settles", "waits_ms"), [(True, 1_000), (False, 2_000)])
async def test_a_broker_and_a_nameserver_that_restarted_together_tell_no_route_that_lacks_the_others(
    stage: Any, tmp_path: Path, settles: bool, waits_ms: int
) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    fields = {"nameservers": "ns:1", "store": StoreSettings(path=tmp_path, disk_free_min_bytes=0)}
    first = await stage.broker("a", **fields)
    await stage.during(first.catalog.create_topic("t", queues=1))
    first.catalog.routes.snapshot("another", "x", [other(1, 1)], stage.clock.monotonic_ms())
    first.cluster.routes_changed()  # it remembers the other one
    assert "b" in first.cluster.known.brokers
    await stage.during(first.close())
    registry.forget("after restart")
    registry.settling = True
    stage.net.serve("ns:1", registry.rpcs())
    await stage.broker("a", **fields)
    began_ms = stage.clock.monotonic_ms()
    asking = asyncio.ensure_future(route(stage, "t"))
    await stage.until(lambda: asking.done() or stage.clock.monotonic_ms() >= began_ms + 1_000)
    assert not asking.done()
    if settles:
        registry.settled()
    assert len((await asking).message_queues) == 1
    assert waits_ms - 500 <= stage.clock.monotonic_ms() - began_ms <= waits_ms + 50
    again_ms = stage.clock.monotonic_ms()
    await route(stage, "t")
    assert stage.clock.monotonic_ms() - again_ms <= 50


async def test_an_answer_says_whether_a_settled_nameserver_sends_the_routes(stage: Any) -> None:
    """A client without any access point removes no broker from its route otherwise."""
    resource = definition_pb2.Resource(name="t")
    request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT).SerializeToString()
    request += routes_pb2.RouteQuestion(schemes=True).SerializeToString()

    async def settled(port: int = 8081) -> bool:
        call = stage.net.unary(f"a:{port}", V2 + "QueryRoute", request, timeout_ms=60_000)
        return routes_pb2.RouteSchemes.FromString(await stage.during(call)).settled

    broker = await stage.broker(nameservers="ns:1")
    await stage.during(broker.catalog.create_topic("t", queues=1))
    routes = broker.catalog.routes
    assert not await settled(), "no nameserver has answered"
    routes.snapshot("ns:1", "x", [other(1, 1)], stage.clock.monotonic_ms(), settling=True)
    assert not await settled()
    routes.snapshot("ns:1", "x", [other(1, 1)], stage.clock.monotonic_ms())
    assert await settled()
    routes.away("ns:1", stage.clock.monotonic_ms())
    assert not await settled()


async def test_a_broker_without_nameservers_knows_all_that_there_is(stage: Any) -> None:
    broker = await stage.broker()
    await broker.catalog.create_topic("t", queues=1)
    resource = definition_pb2.Resource(name="t")
    request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT).SerializeToString()
    request += routes_pb2.RouteQuestion(schemes=True).SerializeToString()
    response = await stage.during(stage.net.unary("a:8081", V2 + "QueryRoute", request, timeout_ms=60_000))
    assert routes_pb2.RouteSchemes.FromString(response).settled


async def test_our_own_sdk_is_told_which_brokers_speak_tls_or_have_copies_and_others_get_the_public_answer_alone(
    stage: Any,
) -> None:
    broker = await stage.broker()
    await broker.catalog.create_topic("t", queues=1)
    secure = replace(
        other(1, 1), addresses=(BrokerAddress("tls", "b", 8443, tls=True),), copies=3, epoch=7,
        followers=("evenqs://c:8083", "evenqs://d:8083"),
    )  # fmt: skip
    broker.catalog.routes.snapshot("n", "x", [secure], 0)
    resource = definition_pb2.Resource(name="t")
    request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT).SerializeToString()
    question = routes_pb2.RouteQuestion(schemes=True).SerializeToString()
    for _ in range(2):  # the second time the answer is a kept one
        public = await stage.during(stage.net.unary("a:8081", V2 + "QueryRoute", request, timeout_ms=5_000))
        ours = await stage.during(stage.net.unary("a:8081", V2 + "QueryRoute", request + question, timeout_ms=5_000))
        assert ours.startswith(public)
        assert list(routes_pb2.RouteSchemes.FromString(ours[len(public) :]).tls_brokers) == ["b"]
    found = route_of("t", ours)
    assert found.addresses["b"] == "evenqs://b:8443"
    assert "://" not in found.addresses[broker.runtime.settings.broker_name]
    assert found.epochs == {"b": 7}, "only brokers with copies have a leader that may be another one"
    assert found.followers == {"b": ("evenqs://c:8083", "evenqs://d:8083")}
    assert route_of("t", public).addresses["b"] == "b:8443"


async def test_clients_that_do_not_ask_who_leads_are_told_where_any_copy_answers(stage: Any) -> None:
    """The official SDKs ask for a route every 30 s. Our SDK follows the leader, so it is told the leader's own address."""
    broker = await stage.broker()
    group = BrokerAddress("any-copy", "group", 8081)
    view = other(2, 2)
    broker.catalog.routes.snapshot("n", "x", [replace(view, addresses=(*view.addresses, group), copies=3)], 0)
    for _ in range(2):  # made, and kept
        told = await route(stage, "t")
        assert {q.broker.endpoints.addresses[0].host for q in told.message_queues} == {"group"}
        question = routes_pb2.RouteQuestion(schemes=True).SerializeToString()
        request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name="t"), endpoints=POINT)
        ours = service_pb2.QueryRouteRequest.FromString(request.SerializeToString() + question)
        told = await stage.call(V2 + "QueryRoute", ours, service_pb2.QueryRouteResponse)
        assert {q.broker.endpoints.addresses[0].host for q in told.message_queues} == {"b"}
    asked = service_pb2.QueryAssignmentRequest(
        topic=definition_pb2.Resource(name="t"), group=definition_pb2.Resource(name="g"), endpoints=POINT
    )
    assigned = await stage.call(V2 + "QueryAssignment", asked, service_pb2.QueryAssignmentResponse)
    assert {one.message_queue.broker.endpoints.addresses[0].host for one in assigned.assignments} == {"group"}


async def test_a_prospect_says_who_speaks_tls_as_well_and_is_not_kept(stage: Any) -> None:
    """A producer that speaks to a topic before it is there must not fall back to plain text; the topic's own route is
    reported once it is made, also where nothing else changed.
    """
    broker = await stage.broker(default_queues=4)
    secure = replace(other(1, 1), addresses=(BrokerAddress("tls", "b", 8443, tls=True),))
    broker.catalog.routes.snapshot("n", "x", [secure], 0)
    resource = definition_pb2.Resource(name="new")
    request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT).SerializeToString()
    question = routes_pb2.RouteQuestion(schemes=True).SerializeToString()
    reader = {"x-mq-client-id": "r", "x-evenq-role": "reader"}
    for _ in range(2):
        ours = await stage.during(stage.net.unary("a:8081", V2 + "QueryRoute", request + question, timeout_ms=5_000))
        found = route_of("new", ours)
        assert found.addresses["b"] == "evenqs://b:8443"
        assert "://" not in found.addresses[broker.runtime.settings.broker_name]
        response = await stage.during(
            stage.net.unary("a:8081", V2 + "QueryRoute", request, timeout_ms=5_000, metadata=reader)
        )
        assert service_pb2.QueryRouteResponse.FromString(response).status.code == 40402
    await broker.catalog.create_topic("new", queues=1)
    [queue] = (await route(stage, "new")).message_queues
    assert queue.broker.name == broker.runtime.settings.broker_name


async def test_a_route_names_the_queues_of_brokers_that_are_gone_to_those_who_ask(stage: Any) -> None:
    broker = await stage.broker()
    await broker.catalog.create_topic("t", queues=1)
    b, c = other(2, 2), replace(other(3, 3), name="c", topics={"alone": other(3, 3).topics["t"]})
    resource = definition_pb2.Resource(name="t")
    reader = {"x-mq-client-id": "r", "x-evenq-role": "reader"}

    async def ask(topic: str, **question: bool) -> tuple[Any, list[tuple[str, int]], bool]:
        resource.name = topic
        request = service_pb2.QueryRouteRequest(topic=resource, endpoints=POINT).SerializeToString()
        request += routes_pb2.RouteQuestion(**question).SerializeToString()
        call = stage.net.unary("a:8081", V2 + "QueryRoute", request, timeout_ms=60_000, metadata=reader)
        answer = await stage.during(call)
        response = routes_pb2.RouteSchemes.FromString(answer)
        away = [(one.broker_name, one.read_queues) for one in response.away]
        return service_pb2.QueryRouteResponse.FromString(answer), away, response.whole

    broker.catalog.routes.snapshot("n", "x", [b, c], 0)
    broker.cluster.routes_changed()
    broker.catalog.routes.snapshot("n", "x", [], 0)
    broker.cluster.routes_changed()
    for _ in range(2):  # the second time the answer is a kept one
        answer, away, whole = await ask("t", schemes=True, whole=True)
        assert (len(answer.message_queues), away, whole) == (1, [("b", 2)], True)
        assert (await ask("t", schemes=True))[1:] == ([], False)
    answer, away, _ = await ask("alone", schemes=True, whole=True)
    assert (answer.status.code, len(answer.message_queues), away) == (20000, 0, [("c", 3)])
    assert (await ask("alone", schemes=True))[0].status.code == 40402
    assert (await ask("t", schemes=True, local=True))[1] == [("b", 2)]
    await broker.cluster.known.forget("b")
    assert (await ask("t", schemes=True, whole=True))[1] == []
