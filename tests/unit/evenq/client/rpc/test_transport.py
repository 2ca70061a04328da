"""The first server that answers ends the question."""

from __future__ import annotations

import asyncio

import pytest

from evenq.client.rpc.transport import KEPT_MAX, RouteReader, first_answer, route_of
from evenq.errors import ConnectionFailed, Forbidden, RequestTimeout, TlsFailed, TopicNotFound
from evenq.model import MessageQueue
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import routes_pb2


def outcome(*targets: str, passed: list[str] | None = None) -> bytes:
    """Of servers by their names."""

    async def ask(target: str) -> bytes:
        match target.rstrip("0123456789"):
            case "silent":
                await asyncio.sleep(600)
            case "gone":
                raise ConnectionFailed(f"no server listens at {target}")
            case "late":
                raise RequestTimeout(f"no answer from {target}")
            case "untrusted":
                raise TlsFailed("it wants a certificate")
            case "strict":
                raise Forbidden("not you")
        return target.encode()

    async def story() -> bytes:
        async with asyncio.timeout(60):
            return await first_answer(targets, ask, passed_over=[].append if passed is None else passed.append)

    return asyncio.run(story())


def test_a_server_that_is_silent_is_not_waited_for() -> None:
    passed: list[str] = []
    assert outcome("silent1", "silent2", "good", passed=passed) == b"good"
    assert passed == ["silent1", "silent2"], "the next question begins with the one that answered"


def test_a_server_that_fails_is_followed_by_the_next_one() -> None:
    passed: list[str] = []
    assert outcome("gone", "late", "good", "silent", passed=passed) == b"good"
    assert passed == ["gone", "late"]
    assert outcome("good", "gone") == b"good"


def test_when_all_fail_the_last_error_is_told_and_a_refusal_ends_the_question() -> None:
    with pytest.raises(ConnectionFailed, match="gone2"):
        outcome("gone1", "late", "gone2")
    with pytest.raises(Forbidden):
        outcome("gone", "strict", "good")


def test_when_all_fail_trouble_with_tls_is_told_before_that_nobody_listens() -> None:
    """Of the copies of a broker only the leader listens: its error is the one that helps."""
    for order in (("untrusted", "gone", "late"), ("gone", "untrusted", "gone")):
        with pytest.raises(TlsFailed, match="certificate"):
            outcome(*order)
    assert outcome("untrusted", "gone", "good") == b"good"


def answer(*queues: tuple[str, int, int], code: int = v2.OK, replica: int = 0) -> bytes:
    response = service_pb2.QueryRouteResponse()
    response.status.code = code
    for broker, number, permission in queues:
        queue = response.message_queues.add(id=number, permission=permission)
        queue.topic.name, queue.broker.name, queue.broker.id = "t", broker, replica
        queue.broker.endpoints.addresses.add(host=f"host-{broker}", port=8081)
        queue.broker.endpoints.addresses.add(host="other", port=1)
    return response.SerializeToString()


def queues(*places: tuple[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", broker, number) for broker, number in places)


def test_queues_are_sorted_and_split_by_what_may_be_done_with_them() -> None:
    route = route_of("t", answer(("b", 0, v2.READ_WRITE), ("a", 10, v2.WRITE), ("a", 2, v2.READ), ("c", 0, v2.NONE)))
    assert route.readable == queues(("a", 2), ("b", 0))
    assert route.writable == queues(("a", 10), ("b", 0))
    assert route.addresses == {"a": "host-a:8081", "b": "host-b:8081", "c": "host-c:8081"}


def test_only_masters_count() -> None:
    route = route_of("t", answer(("a", 0, v2.READ_WRITE), replica=1))
    assert (route.readable, route.writable, route.addresses) == ((), (), {})


def test_a_topic_without_a_queue_is_not_found() -> None:
    with pytest.raises(TopicNotFound, match="create the topic first"):
        route_of("t", answer())
    with pytest.raises(TopicNotFound):
        route_of("t", answer(code=v2.TOPIC_NOT_FOUND))


def test_the_same_bytes_give_the_same_object_and_others_another() -> None:
    routing = RouteReader()
    first = routing.read("t", answer(("a", 0, v2.READ_WRITE)))
    assert routing.read("t", answer(("a", 0, v2.READ_WRITE))) is first
    grown = routing.read("t", answer(("a", 0, v2.READ_WRITE), ("a", 1, v2.READ_WRITE)))
    assert len(grown.readable) == 2
    assert routing.read("t", answer(("a", 0, v2.READ_WRITE))) == first


def test_no_more_answers_are_kept_than_the_limit() -> None:
    routing, same = RouteReader(), answer(("a", 0, v2.READ_WRITE))
    for number in range(KEPT_MAX):
        routing.read(f"t{number}", same)
    assert routing.read("one more", same) is not routing.read("one more", same)
    assert routing.read("t0", same) is routing.read("t0", same)


def test_addresses_that_lead_to_any_broker_name_the_one_that_is_meant() -> None:
    result = answer(("a", 0, v2.READ_WRITE), ("b", 0, v2.READ_WRITE))
    shared = result + routes_pb2.RouteSchemes(any_broker=True, tls_brokers=["b"]).SerializeToString()
    assert route_of("t", shared).addresses == {"a": "host-a:8081#a", "b": "evenqs://host-b:8081#b"}
    assert route_of("t", shared, one_address=True).addresses == {"a": "#a", "b": "#b"}
    assert route_of("t", result, one_address=True).addresses == {"a": "#a", "b": "#b"}


def test_followers_are_known_where_they_can_be_reached() -> None:
    leader = routes_pb2.GroupLeader(broker_name="a", epoch=3, followers=["b:8083", "c:8083"])
    response = answer(("a", 0, v2.READ_WRITE)) + routes_pb2.RouteSchemes(leaders=[leader]).SerializeToString()
    assert route_of("t", response).followers == {"a": ("b:8083", "c:8083")}
    assert route_of("t", response, one_address=True).followers == {}, "only the access point is"


def test_a_topic_is_fifo_if_it_takes_nothing_else() -> None:
    for types, is_fifo in (([v2.FIFO], True), ([v2.NORMAL], False), ([v2.NORMAL, v2.FIFO], False), ([], False)):
        response = service_pb2.QueryRouteResponse.FromString(answer(("a", 0, v2.READ_WRITE)))
        response.message_queues[0].accept_message_types.extend(types)
        assert route_of("t", response.SerializeToString()).fifo is is_fifo
