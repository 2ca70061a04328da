"""Reading of route answers: in one pass, and only if the bytes differ from the previous answer.

Used by `rpc.transport`. The answer for a topic with a thousand queues has tens of kilobytes. Every client queries it
periodically, and it rarely changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count

from evenq.client.core.routes.route import Route
from evenq.errors import TopicNotFound
from evenq.model import BrokerAddress, MessageQueue
from evenq.wire.addresses import PLAIN, TLS, address_for, meant_broker
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import routes_pb2

KEPT_MAX = 1_000
WRITABLE = frozenset({v2.WRITE, v2.READ_WRITE})
READABLE = frozenset({v2.READ, v2.READ_WRITE})


class RouteReader:
    """Reader of QueryRoute answers; keeps the last one of each of at most `KEPT_MAX` topics."""

    def __init__(self, *, one_address: bool = False) -> None:
        """`one_address`: brokers are reached through the access point alone, whatever addresses a route has."""
        self._one_address = one_address
        self._last: dict[str, tuple[bytes, Route]] = {}
        self._passed_over: dict[str, int] = {}
        """By broker address: a number that is higher the later the broker was passed over."""
        self._numbers = count(1)

    def read(self, topic: str, response: bytes) -> Route:
        """Returns the route; the same object while the bytes are the same. Raises the status's error, TopicNotFound."""
        last = self._last.get(topic)
        if last is not None and last[0] == response:
            return last[1]
        route = route_of(topic, response, one_address=self._one_address)
        if len(self._last) < KEPT_MAX or topic in self._last:
            self._last[topic] = (response, route)
        return route

    def read_of_broker(self, topic: str, response: bytes) -> Route:
        """Returns the route in an answer of a broker that replaces the access points; partial unless the broker is
        settled.

        A partial route is not kept: `brokers` would lose those that it does not name.
        """
        if routes_pb2.RouteSchemes.FromString(response).settled:
            return self.read(topic, response)
        return replace(route_of(topic, response, one_address=self._one_address), partial=True)

    def brokers(self, *, besides: Collection[str]) -> list[str]:
        """Returns the brokers of the kept routes, the one passed over last at the end, without those in `besides`."""
        routes = [route for _, route in self._last.values()]
        named = {meant_broker(address)[0] for route in routes for address in route.addresses.values()}
        known = {one for one in named if one and one.removeprefix(TLS).removeprefix(PLAIN) not in besides}
        self._passed_over = {one: number for one, number in self._passed_over.items() if one in known}
        return sorted(known, key=lambda one: (self._passed_over.get(one, 0), one))

    def pass_over(self, broker: str) -> None:
        """Puts this broker behind the others. Not an index: concurrent calls could move it back to the same broker."""
        self._passed_over[broker] = next(self._numbers)


def route_of(topic: str, response: bytes, *, one_address: bool = False) -> Route:
    """Returns the masters' queues, sorted, and their brokers' addresses. Raises as `RouteReader.read`."""
    message = service_pb2.QueryRouteResponse.FromString(response)
    check(message.status)
    if not message.message_queues:
        raise TopicNotFound(f"the access point has no queue of topic {topic}; create the topic first")
    writable: list[MessageQueue] = []
    readable: list[MessageQueue] = []
    addresses: dict[str, str] = {}
    schemes = routes_pb2.RouteSchemes.FromString(response)
    secure, any_broker = frozenset(schemes.tls_brokers), schemes.any_broker
    for wire in message.message_queues:
        broker = wire.broker
        # 0 is the master; in RocketMQ's routes its slaves have the same name and other ids.
        if broker.id != 0:
            continue
        name = broker.name  # not `messages.queue_of`: reading the broker once is a quarter faster
        if name not in addresses:
            for address in broker.endpoints.addresses[:1]:
                own = BrokerAddress("", address.host, address.port, name in secure).address
                if one_address or any_broker:
                    own = address_for(name, "" if one_address else own)
                addresses[name] = own
        queue, permission = MessageQueue(wire.topic.name, name, wire.id), wire.permission
        if permission in WRITABLE:
            writable.append(queue)
        if permission in READABLE:
            readable.append(queue)
    writable.sort(key=_place)
    readable.sort(key=_place)
    epochs = {leader.broker_name: leader.epoch for leader in schemes.leaders if leader.broker_name in addresses}
    followers = {} if one_address or any_broker else {one.broker_name: tuple(one.followers) for one in schemes.leaders}
    return Route(
        topic=topic,
        writable=tuple(writable),
        readable=tuple(readable),
        addresses=addresses,
        epochs=epochs,
        followers=followers,
        fifo=list(message.message_queues[0].accept_message_types) == [v2.FIFO],
    )


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id
