"""Path of a client's calls over `Net`: choice of the server, headers, and what replaces servers that fail.

Problem: a client is configured with a few access points and must reach every broker of a cluster. Access points fail
and are replaced. One address may lead to all brokers.

Idea: one `Transport` per client answers two questions for each call.

- Which broker? `directed` reads `host:port#broker` as an address that leads to any broker. The header `x-evenq-broker`
  then names the broker that is meant. `#broker` alone is at the current access point.
- Which access point? Calls that any broker can answer begin at the access point that answered last, then try the others
  in order. One without a connection for 300 ms does not delay them: the next one is connected, too. A query for a route
  does not wait for a deadline either: after 300 ms of silence the next one is queried as well.

If no access point answers a query for a route, at most three brokers of the known routes are queried. The broker that
gave the last settled route, one with every live broker in it, then also gets the other calls for access points.

Example: the endpoint is `a:8081;b:8081`, `timeout_ms` 3,000. The machine of `a` vanishes: the next query goes to `b`
after 300 ms, and all calls begin at `b` from then on. `b` vanishes too: its deadline ends after 3,000 ms, that of `a`
after 3,300 ms. Then broker `c` of the known routes is queried; one warning is logged, and `_fallback` becomes `c`
if its route is settled. Later queries try `b` and `a` first, so one that returns is used with its first answer.

Invariants:

- Concurrent failures of one access point move `_turn` by one place: a move names the access point that it leaves.
- A route of a broker that may not know every live broker (`Route.partial`) removes no known broker.
- `_fallback` is empty unless `_lost` is True.

References: wire contract 2.1, decisions 31 (a call names its broker) and 130 (clients outlive their access points).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TypeVar

from evenq.client.core.routes.access_points import access_points
from evenq.client.core.routes.route import Route
from evenq.errors import ConnectionFailed, Error, RequestTimeout, TlsFailed, TopicNotFound
from evenq.model import BrokerAddress, MessageQueue
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.runtime.version import __version__
from evenq.wire.addresses import BROKER_HEADER, PLAIN, TLS, address_for, host_and_port, meant_broker
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import routes_pb2

log = logging.getLogger(__name__)
V2 = "/apache.rocketmq.v2.MessagingService/"
SCHEMES_WANTED = routes_pb2.RouteQuestion(schemes=True).SerializeToString()
ROLE, READER = "x-evenq-role", "reader"
BROKERS_MAX = 3
"""Largest number of brokers that are queried for one route while no access point answers."""
SILENT_MS = 300
"""Time without an answer after which the next server is queried as well."""
FailureT = TypeVar("FailureT", bound=Error)
Ask = Callable[[str], Coroutine[None, None, bytes]]
KEPT_MAX = 1_000
WRITABLE = frozenset({v2.WRITE, v2.READ_WRITE})
READABLE = frozenset({v2.READ, v2.READ_WRITE})


class RouteReader:
    """Reader of QueryRoute answers; keeps the last one of each of at most `KEPT_MAX` topics.

    An answer is read in one pass, and only if its bytes differ from the previous one: that for a topic with a thousand
    queues has tens of kilobytes, every client queries it periodically, and it rarely changes.
    """

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


def client_metadata(client_id: str, *, reads: bool = False) -> dict[str, str]:
    """Returns the headers of every call (wire contract 2.1). `reads`: route queries create no topic."""
    role = {ROLE: READER} if reads else {}
    return {
        **role,
        "x-mq-client-id": client_id,
        "x-mq-language": "PYTHON",
        "x-mq-client-version": __version__,
        "x-mq-protocol": "v2",
        "x-mq-namespace": "",
    }


class AccessPointSilent(ConnectionFailed):
    """Connection failure of the access points; a plain ConnectionFailed is that of a broker behind them."""


def silence(error: ConnectionFailed) -> ConnectionFailed:
    """Returns the error for an access point that could not be called. TlsFailed stays, as its text names the fix."""
    return error if isinstance(error, TlsFailed) else AccessPointSilent(str(error))


class Transport:
    """Path of one client's calls to the servers of a cluster."""

    def __init__(
        self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int = 3_000, reads: bool = False
    ) -> None:
        """`timeout_ms`: deadline of one call. `reads`: the client is a consumer."""
        self.net = net
        self._reads = reads
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.metadata = client_metadata(client_id, reads=reads)
        """Headers of every call; replaced as a whole by `rename`."""
        points = access_points(endpoint)
        self._endpoints = list(points.targets)
        """The access points as configured: never empty, never changed."""
        self._turn = 0
        """Index of the current access point; only `_pass_over` moves it."""
        self._routing = RouteReader(one_address=points.one_address)
        """The routes received so far, and with them the known brokers."""
        self._lost = False
        """True from a route that a broker gave in place of the access points until an access point gives one."""
        self._fallback = ""
        """Broker that replaces the access points meanwhile; empty: no settled broker is known."""

    def rename(self, client_id: str) -> None:
        """Uses another client id from the next call on."""
        self.client_id = client_id
        self.metadata = client_metadata(client_id, reads=self._reads)

    async def unary(self, address: str, method: str, request: bytes, *, wait_ms: int = 0, timeout_ms: int = 0) -> bytes:
        """Makes one call. `timeout_ms` 0: the client's. `wait_ms` is added to it."""
        deadline_ms = (timeout_ms or self.timeout_ms) + wait_ms
        target, metadata = self.directed(address)
        try:
            return await self.net.unary(target, method, request, timeout_ms=deadline_ms, metadata=metadata)
        except ConnectionFailed:
            if address.startswith("#"):  # `#broker`: the next attempt goes to the next access point
                self._pass_over(target)
            raise

    def stream(
        self, address: str, method: str, requests: AsyncIterator[bytes] | bytes, *, timeout_ms: int | None
    ) -> AsyncIterator[bytes]:
        """Opens a stream; `timeout_ms` None: no limit."""
        target, metadata = self.directed(address)
        return self.net.stream(target, method, requests, timeout_ms=timeout_ms, metadata=metadata)

    def directed(self, address: str) -> tuple[str, Mapping[str, str]]:
        """Returns target and headers of a call to `address`."""
        target, broker_name = meant_broker(address)
        if not broker_name:
            return address, self.metadata
        return target or self._endpoints[self._turn], {**self.metadata, BROKER_HEADER: broker_name}

    async def at_access_point(self, method: str, request: bytes) -> bytes:
        """Makes one call that any broker can answer: at the access points in turn, then at the broker that replaces
        them.

        Raises AccessPointSilent, TlsFailed, RequestTimeout.
        """
        try:
            return await self._at_access_points(method, request)
        except (ConnectionFailed, RequestTimeout):
            if not self._fallback:  # access points answered the last query, or no settled broker is known
                raise
            return await self.unary(self._fallback, method, request)

    async def _at_access_points(self, method: str, request: bytes) -> bytes:
        failure: ConnectionFailed | RequestTimeout | None = None
        targets = await self._reached()
        for target in targets:
            try:
                return await self.unary(target, method, request)
            except (ConnectionFailed, RequestTimeout) as error:
                failure = telling(failure, error)
                if target != targets[-1]:
                    self._pass_over(target)
        assert failure is not None, "there is at least one access point"
        raise silence(failure) if isinstance(failure, ConnectionFailed) else failure

    async def stream_at_access_point(self, method: str, request: bytes, *, timeout_ms: int) -> AsyncIterator[bytes]:
        """Yields frames from an access point; the next one is tried only while no frame was received."""
        targets = await self._reached()
        failure: ConnectionFailed | None = None
        for target in targets:
            begun = False
            try:
                async for frame in self.net.stream(
                    target, method, request, timeout_ms=timeout_ms, metadata=self.metadata
                ):
                    begun = True
                    yield frame
            except ConnectionFailed as error:
                failure = telling(failure, error)
                # Received frames are with the caller: another access point would send them again.
                if begun or target == targets[-1]:
                    raise failure from error
                self._pass_over(target)
            else:
                return

    def _in_turn(self) -> list[str]:
        """Returns all access points, the current one first. Each call has its own list and tries each of them once."""
        return [*self._endpoints[self._turn :], *self._endpoints[: self._turn]]

    async def _reached(self) -> list[str]:
        """Returns all access points, the first one with a connection before the others.

        The call that follows may change something, so it cannot be made at two of them; connections can.
        """
        connect = getattr(self.net, "connect", None)
        if connect is not None and len(self._endpoints) > 1:

            async def reach(target: str) -> bytes:
                await connect(target, timeout_ms=self.timeout_ms)
                return b""

            with suppress(ConnectionFailed, RequestTimeout):  # the calls raise the reason
                await first_answer(self._in_turn(), reach, passed_over=self._pass_over)
        return self._in_turn()

    def _pass_over(self, target: str) -> None:
        """Moves on from `target`, unless another call has done so."""
        if self._endpoints[self._turn] == target:
            self._turn = (self._turn + 1) % len(self._endpoints)

    def turn_away(self) -> None:
        """Leaves the current access point, or the broker that replaces it: it may be cut off from the others."""
        self._pass_over(self._endpoints[self._turn])
        if self._fallback:
            self._routing.pass_over(self._fallback)

    @property
    def access_point(self) -> str:
        """The current access point, `host:port`."""
        return self._endpoints[self._turn]

    def endpoints(self) -> v2.Endpoints:
        """Returns the current access point as v2 writes it."""
        host, port = host_and_port(self._endpoints[self._turn])
        endpoints = v2.Endpoints(scheme=v2.IPv6 if ":" in host else v2.DOMAIN_NAME)
        if host.replace(".", "").isdigit():
            endpoints.scheme = v2.IPv4
        endpoints.addresses.add(host=host, port=port)
        return endpoints

    async def query_route(self, topic: str) -> Route:
        """Queries an access point; if none answers, the brokers of earlier routes. Raises TopicNotFound."""
        request = service_pb2.QueryRouteRequest(endpoints=self.endpoints())
        request.topic.name = topic
        # Fields of evenq.v1 after those of v2: servers of other makes skip fields that they do not know.
        body = request.SerializeToString() + SCHEMES_WANTED
        try:
            if len(self._endpoints) == 1:  # nothing to query after 300 ms
                response = await self._at_access_points(V2 + "QueryRoute", body)
            else:
                response = await first_answer(
                    self._in_turn(),
                    lambda target: self.unary(target, V2 + "QueryRoute", body),
                    passed_over=self._pass_over,
                )
        except (ConnectionFailed, RequestTimeout) as error:  # no access point answers
            failure = silence(error) if isinstance(error, ConnectionFailed) else error
            return await self._route_of_brokers(topic, body, failure)
        if self._lost:  # an access point returned: it replaces the fallback broker
            log.info("an access point of %s answers again", ";".join(self._endpoints))
            self._lost, self._fallback = False, ""
        return self._routing.read(topic, response)

    async def _route_of_brokers(self, topic: str, body: bytes, failure: ConnectionFailed | RequestTimeout) -> Route:
        """Returns the route that a known broker gives: a client may outlive all of its access points. Raises `failure`,
        the error of the access points, if no broker answers.

        A broker that fails, or does not know every live broker, is queried after the others the next time.
        """
        brokers, passed = self._routing.brokers(besides=self._endpoints)[:BROKERS_MAX], list[str]()
        if not brokers:  # no route yet, or `?one-address`
            raise failure

        async def query(broker: str) -> bytes:
            try:
                return await self.unary(broker, V2 + "QueryRoute", body)
            except Error as error:  # another broker may answer where this one refuses
                raise ConnectionFailed(str(error)) from error

        try:
            response = await first_answer(brokers, query, passed_over=passed.append)
        except ConnectionFailed as error:  # no broker answers either
            passed = brokers
            raise failure from error
        finally:
            for broker in passed:
                self._pass_over_broker(broker)
        answerer = brokers[len(passed)]
        if not self._lost:
            log.warning(
                "no access point of %s answers; routes come from broker %s. Start the client with addresses of live "
                "brokers the next time: %s",
                ";".join(self._endpoints),
                answerer,
                failure,
            )
        self._lost = True
        try:
            route = self._routing.read_of_broker(topic, response)
        except Error:  # another broker may know the topic
            self._routing.pass_over(answerer)
            raise
        if route.partial:  # the broker may know itself alone: it serves this route and no other calls
            self._pass_over_broker(answerer)
        else:
            self._fallback = answerer
        return route

    def _pass_over_broker(self, broker: str) -> None:
        self._routing.pass_over(broker)
        if self._fallback == broker:
            self._fallback = ""


async def first_answer(targets: Sequence[str], ask: Ask, *, passed_over: Callable[[str], None]) -> bytes:
    """Queries several servers that can all answer: the next one as well when one fails or is silent for a moment.

    For queries that change nothing. A vanished machine is noticed only at the end of a call's deadline; a sender that
    waits for the route of a broker group cannot wait that long.

    Returns the first answer; calls `passed_over` with each server before the one that gave it. If all fail, raises a
    TlsFailed, or otherwise the last failure. Raises other errors immediately.
    """
    left = list(targets)
    running: dict[asyncio.Task[bytes], str] = {}
    failure: ConnectionFailed | RequestTimeout | None = None
    try:
        while left or running:
            if left:
                target = left.pop(0)
                running[spawn(ask(target), name=f"question to {target}")] = target
            done, _ = await asyncio.wait(
                running, timeout=SILENT_MS / 1_000 if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task in done]:
                target = running.pop(task)
                try:
                    response = task.result()
                except (ConnectionFailed, RequestTimeout) as error:
                    failure = telling(failure, error)
                    continue
                for passed in targets[: list(targets).index(target)]:
                    passed_over(passed)
                return response
    finally:
        for task in running:
            task.cancel()
    assert failure is not None, "there is at least one server"
    raise failure


def telling(before: FailureT | None, error: FailureT) -> FailureT:
    """Returns a TlsFailed, because copies that do not lead do not listen at all; otherwise the later error."""
    return before if isinstance(before, TlsFailed) else error
