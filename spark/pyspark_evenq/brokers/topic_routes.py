"""A topic's route from any broker, for readers and writers.

Called by the clusters of source and sink. Uses the public QueryRoute, and fields that only evenq brokers return: TLS,
queues that are away, addresses of followers.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from evenq import errors
from evenq.client.core.routes.access_points import access_points
from evenq.model.queue import MessageQueue
from evenq.model.route import BrokerAddress
from evenq.wire.addresses import address_for, host_and_port
from pyspark_evenq.brokers import connection

log = logging.getLogger(__name__)
T = TypeVar("T")
CALL_MS = 5_000


class RoutedQueue(NamedTuple):
    """A queue that some broker serves now."""

    queue: MessageQueue
    address: str
    """Address of its broker, as `connection` takes it."""
    readable: bool
    writable: bool
    takes_groups: bool
    """Whether it accepts messages with a message group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueues:
    """The queues of a topic."""

    queues: tuple[RoutedQueue, ...]
    away: Mapping[MessageQueue, str]
    """Readable queues that no live broker serves -> reason as a text; empty unless requested."""
    whole: bool
    """Whether the answering broker reports queues that are away."""
    followers: Mapping[str, tuple[str, ...]]
    """Broker name, also of a broker that is away -> addresses of its followers, as `connection` takes them."""


def first_answer(endpoints: Sequence[str], ask: Callable[[str], T]) -> T:
    """Returns the answer of the first endpoint that can be reached. Raises the refusal of that one."""
    for endpoint in endpoints[:-1]:
        try:
            return ask(endpoint)
        except (errors.ConnectionFailed, errors.RequestTimeout) as silent:
            log.warning("no answer from %s, trying the next endpoint: %s", endpoint, silent)
    return ask(endpoints[-1])


def query_route(topic: str, endpoint: str, *, whole: bool = False, writes: bool = False) -> TopicQueues:
    """Returns the route from the broker at the endpoint. `whole`: also the queues that are away; `writes`: the call is
    marked as a writer's (`connection.unary`). Raises TopicNotFound and the errors of a call.
    """
    from evenq.wire.status import check
    from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
    from evenq.wire.stubs.evenq.v1 import routes_pb2

    points = access_points(endpoint)
    target = points.addresses[0]
    host, port = host_and_port(points.targets[0])
    request = service_pb2.QueryRouteRequest(
        topic=definition_pb2.Resource(name=topic),
        endpoints=definition_pb2.Endpoints(
            scheme=definition_pb2.AddressScheme.DOMAIN_NAME,
            addresses=[definition_pb2.Address(host=host, port=port)],
        ),
    )
    method = "/apache.rocketmq.v2.MessagingService/QueryRoute"
    # Own fields after those of v2: other servers skip fields that they do not know.
    question = routes_pb2.RouteQuestion(schemes=True, whole=whole).SerializeToString()
    content = connection.unary(
        target, method, request.SerializeToString() + question, timeout_ms=CALL_MS, writes=writes
    )
    response = service_pb2.QueryRouteResponse.FromString(content)
    check(response.status)
    schemes = routes_pb2.RouteSchemes.FromString(content)
    secure, any_broker = frozenset(schemes.tls_brokers), schemes.any_broker
    readable = (definition_pb2.Permission.READ, definition_pb2.Permission.READ_WRITE)
    writable = (definition_pb2.Permission.WRITE, definition_pb2.Permission.READ_WRITE)
    queues = []
    for queue in response.message_queues:
        if not queue.broker.endpoints.addresses:
            continue
        address, name = queue.broker.endpoints.addresses[0], queue.broker.name
        at = BrokerAddress("", address.host, address.port, name in secure).address
        if points.one_address or any_broker:
            at = address_for(name, target if points.one_address else at)
        queues.append(
            RoutedQueue(
                queue=MessageQueue(topic, name, queue.id),
                address=at,
                readable=queue.permission in readable,
                writable=queue.permission in writable,
                takes_groups=definition_pb2.MessageType.FIFO in queue.accept_message_types,
            )
        )
    away = {
        MessageQueue(topic, one.broker_name, queue_id): _since(one.broker_name, one.gone_ms)
        for one in schemes.away
        for queue_id in range(one.read_queues)
    }
    followers = {one.broker_name: tuple(one.followers) for one in schemes.away if one.followers}
    followers |= {one.broker_name: tuple(one.followers) for one in schemes.leaders if one.followers}
    if points.one_address or any_broker:
        followers = {}  # one address leads to leaders only
    return TopicQueues(queues=tuple(queues), away=away, whole=schemes.whole, followers=followers)


def _since(broker_name: str, gone_ms: int) -> str:
    if not gone_ms:
        return f"{broker_name} is not there"
    gone = dt.datetime.fromtimestamp(gone_ms / 1000, dt.UTC)
    return f"{broker_name} is gone since {gone.isoformat(timespec='seconds')}"
