"""Routes and assignments: QueryRoute and QueryAssignment of the public protocol, and `evenq.v1.Assignment`.

Routes come from the watched copy of the nameservers' data. An answer is encoded once for each version, so its bytes
stay the same until something changes (wire contract 3.4). Each broker has one address in it: that of the listener of
the call. A broker group may have another one, `any-copy`, for clients that do not ask for the leader: they query routes
too seldom to follow it (decision 83). Assignments come from the rebalancer, if there is one. If it does not answer, the
last answer is repeated, or this broker computes one: the client gets no error (wire contract 6.1).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from evenq.allocation import Averagely, ContextDivider, Strategy, by_name, divide, stand_in
from evenq.errors import BadRequest, Error, IllegalAccessPoint, NotImplementedYet, TopicNotFound
from evenq.model import (
    MIXED_KINDS,
    BrokerAddress,
    GroupConfig,
    Listener,
    MessageQueue,
    MessageType,
    Permission,
    QueueCounts,
)
from evenq.serving.auth.calls import MESSAGING, rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, routes_pb2
from evenq_broker.core.assignment.local import Answer, Share, all_brokers, compute
from evenq_broker.core.clients.client_table import PRODUCER
from evenq_broker.core.cluster.routes import RegisteredBroker, TopicAt
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.cluster import away_messages
from evenq_broker.loops.wire.translation import message_type_number, permission_of, queue_message
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.cluster.forwarding import READER, ROLE

log = logging.getLogger(__name__)

ROUTES_CACHED_MAX = 10_000
NEWCOMER_MS = 3_000
"""Time after a join in which a member waits for the first decision about it."""
WHOLE_BROKERS = frozenset({MessageType.PRIORITY, MessageType.LITE})
"""Types of topics whose queues are not divided: every push consumer reads all queues of a broker."""
EXPLAIN_TIMEOUT_MS = 2_500


async def assign(
    catalog: Catalog,
    group: GroupConfig,
    topic: str,
    client_id: str,
    *,
    strategy: str = "",
    of_v2: bool = False,
    membership: GroupTables,
    rebalancer: RebalancerLink | None,
) -> Answer:
    """Returns the queues of one member: the rebalancer's answer, its last answer, or one computed here. Never fails.

    `of_v2`: until the rebalancer has decided, the member gets every broker, and takes what others leave.
    """
    link = rebalancer
    if link is not None and client_id:
        decided = await link.query(group.name, topic, client_id)
        if decided is not None:
            membership.answers.keep(group.name, topic, client_id, decided)
        if decided is not None or not link.gone():
            last = membership.answers.repeat(group.name, topic, client_id, lambda name: _alive(catalog, topic, name))
            if last is not None:
                return last
            if of_v2 and not link.gone():
                return Answer(all_brokers(catalog.routes.readable(topic)))
    name = strategy or group.strategy  # all members send the same one; a broker that was away may have an older one
    readers = membership.members.readers(group.name, topic)
    share, name = _share(name)
    computed = compute(group.name, client_id, catalog.routes.readable(topic), readers, share)
    return Answer(computed.queues, name)


class Routing:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        clients: ConnectedClients,
        sessions: Sessions,
        rebalancer: RebalancerLink | None,
    ) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._cluster_catalog, self._membership = cluster, cluster_catalog, membership
        self._clients, self._sessions, self._rebalancer = clients, sessions, rebalancer
        self._routes: dict[tuple[str, Listener, bool], tuple[int, bytes]] = {}

    def rpcs(self) -> list[Rpc]:
        service = "/evenq.v1.Assignment/"
        forwarded = [service + name for name in ("SetMessageRequestMode", "GetMessageRequestMode", "Simulate")]
        return [
            rpc(MESSAGING + "QueryRoute", self.query_route),
            rpc(MESSAGING + "QueryAssignment", self.query_assignment),
            rpc(service + "Query", self.query),
            *(rpc(method, partial(self.forward, method)) for method in forwarded),
        ]

    async def query_route(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(service_pb2.QueryRouteRequest, data, context)
        _check_access_point(request.endpoints)
        question = routes_pb2.RouteQuestion.FromString(data)
        listener = context.listener
        name = request.topic.name
        if question.local:
            return self._remembered(name)
        away = await self._away(request, wanted=question.schemes and question.whole)
        any_copy = not question.schemes
        key = (name, listener, any_copy)
        known = self._routes.get(key)
        if known is not None and known[0] == self._catalog.routes.version:
            return known[1] + self._schemes(question, self._catalog.routes.route(name), away, context)
        await self._routed(name)
        # After the last await: an answer is never kept under a version that it was not made from.
        version = self._catalog.routes.version
        route = self._catalog.routes.route(name)
        places = route or ([] if away else self._prospect(name, context))
        queues = [
            queue
            for at in places
            for queue in _queues(request.topic, at, at.broker.address(listener, any_copy=any_copy))
        ]
        if not queues and not away:
            raise TopicNotFound(
                f"topic {name!r} has no queue that is open on any live broker; see `evenq topic show {name}`"
            )
        response = service_pb2.QueryRouteResponse(status=OK, message_queues=queues).SerializeToString()
        if route:  # a prospect holds for one client, and only until the first message
            if len(self._routes) >= ROUTES_CACHED_MAX:
                self._routes.clear()
            self._routes[key] = (version, response)
        return response + self._schemes(question, places, away, context)

    def _schemes(
        self,
        question: routes_pb2.RouteQuestion,
        places: Sequence[TopicAt],
        away: Sequence[routes_pb2.AwayBroker],
        context: RpcContext,
    ) -> bytes:
        """Returns what the evenq SDK needs about addresses and the public answer has no field for."""
        if not question.schemes:
            return b""
        names = [at.broker.name for at in places if at.broker.address(context.listener).tls]
        any_broker = self._cluster.leads_anywhere(context)
        if any_broker:
            for broker in away:
                broker.ClearField("followers")
        leaders = [
            routes_pb2.GroupLeader(
                broker_name=at.broker.name,
                epoch=at.broker.epoch,
                followers=() if any_broker else at.broker.followers,
            )
            for at in places
            if at.broker.is_replaced
        ]
        return routes_pb2.RouteSchemes(
            tls_brokers=names,
            any_broker=any_broker,
            away=away,
            whole=question.whole,
            leaders=leaders,
            settled=self._cluster.settled,
        ).SerializeToString()

    def _remembered(self, topic: str) -> bytes:
        """Answers another broker with the brokers that this one remembers as away."""
        away = routes_pb2.RouteSchemes(away=away_messages(self._cluster.known.away(topic))).SerializeToString()
        return service_pb2.QueryRouteResponse(status=OK).SerializeToString() + away

    async def _away(self, request: service_pb2.QueryRouteRequest, *, wanted: bool) -> list[routes_pb2.AwayBroker]:
        """Returns the brokers with queues of the topic that are away. All live brokers are queried: one that started
        after they left does not know them. Brokers of a version without `away` answer with a route, which names none.
        """
        if not wanted:
            return []
        topic = request.topic.name
        await self._cluster.routes_known()
        plain = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic), endpoints=request.endpoints)
        question = routes_pb2.RouteQuestion(schemes=True, local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers(MESSAGING + "QueryRoute", plain.SerializeToString() + question)
        away = {one.broker_name: one for one in away_messages(self._cluster.known.away(topic))}
        for _, result in answers:
            if not isinstance(result, Error):
                named = routes_pb2.RouteSchemes.FromString(result).away
                away |= {one.broker_name: one for one in named if _tells_more(one, away.get(one.broker_name))}
        return [away[name] for name in sorted(away) if self._catalog.routes.broker(name) is None]

    async def query_assignment(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(service_pb2.QueryAssignmentRequest, data, context)
        group = await self._catalog.ensure_group(request.group.name)
        name = request.topic.name
        if context.client_id:
            # A member that the client table does not know would stay after its end, with queues that nobody reads.
            kind, table = definition_pb2.PUSH_CONSUMER, self._clients.table
            seen = table.seen(
                context.client_id, self._runtime.now_ms(), client_type=kind, group=group.name, language=context.language
            )
            if not seen.refused:
                self._sessions.seen_v2(context, group.name, kind)
        await self._exists(name)
        assignment = await self._shared(group, name, context.client_id)
        if request.endpoints.addresses:
            _check_access_point(request.endpoints)
        response = service_pb2.QueryAssignmentResponse(status=OK)
        places = {at.broker.name: at for at in self._catalog.routes.route(name)}
        for queue in assignment.queues:
            at = places.get(queue.broker_name)
            if at is not None:
                response.assignments.add(
                    message_queue=definition_pb2.MessageQueue(
                        topic=request.topic,
                        id=queue.queue_id,
                        permission=permission_of(at.counts, queue.queue_id),
                        broker=_broker_message(at.broker, at.broker.address(context.listener, any_copy=True)),
                    )
                )
        return response.SerializeToString()

    async def _shared(self, group: GroupConfig, topic: str, client_id: str) -> Answer:
        if self._catalog.routes.kind_of(topic) in WHOLE_BROKERS:
            return Answer(all_brokers(self._catalog.routes.readable(topic)))
        return await assign(
            self._catalog, group, topic, client_id, of_v2=True, membership=self._membership, rebalancer=self._rebalancer
        )

    async def query(self, data: bytes, context: RpcContext) -> bytes:
        """Returns an assignment with its generation, by which members are fenced."""
        request = parsed(assignment_pb2.AssignmentRequest, data)
        group = await self._catalog.ensure_group(request.group)
        await self._exists(request.topic)
        client_id = request.client_id or context.client_id
        assignment = await assign(
            self._catalog,
            group,
            request.topic,
            client_id,
            strategy=request.strategy,
            membership=self._membership,
            rebalancer=self._rebalancer,
        )
        if not assignment.counter and self._soon_decided(group.name, client_id):
            reason = "the rebalancer will decide in a moment; keep your queues, and query again when you are notified"
            return assignment_pb2.AssignmentResponse(status=OK, known=False, reason=reason).SerializeToString()
        return assignment_pb2.AssignmentResponse(
            status=OK,
            generation=common_pb2.Generation(epoch=assignment.epoch, counter=assignment.counter),
            known=True,
            queues=[assignment_pb2.AssignedQueue(queue=queue_message(queue)) for queue in assignment.queues],
            strategy=assignment.strategy,
            reason="decided by the rebalancer" if assignment.counter else "computed by the broker that answers",
        ).SerializeToString()

    def _soon_decided(self, group: str, client_id: str) -> bool:
        """True if the rebalancer will decide about the member soon: an answer from here would move queues twice."""
        link, member = self._rebalancer, self._membership.members.get(group, client_id)
        if link is None or member is None or link.gone():
            return False
        return not link.connected or self._runtime.clock.now_ms() - max(member.joined_ms, link.found_ms) < NEWCOMER_MS

    async def forward(self, method: str, request: bytes, _context: RpcContext) -> bytes:
        link = self._rebalancer
        if link is None:
            raise NotImplementedYet(
                f"broker {self._runtime.settings.broker_name} has no rebalancer; start one and set `rebalancer`"
            )
        return await link.forward(method, request, EXPLAIN_TIMEOUT_MS)

    async def _routed(self, topic: str) -> None:
        await self._cluster.routes_known()
        await self._cluster_catalog.topic_made(topic)

    async def _exists(self, topic: str) -> None:
        await self._routed(topic)
        if not self._catalog.routes.route(topic):
            self._catalog.read_topic(topic)

    def _prospect(self, topic: str, context: RpcContext) -> list[TopicAt]:
        """Returns the route that a missing topic would have: a producer queries it before the first message, which
        creates the topic with its type. Raises TopicNotFound, also for a client that is known to read.
        """
        self._catalog.may_make(topic)
        client = self._clients.table.get(context.client_id)
        if context.headers.get(ROLE) == READER or (client is not None and client.client_type > PRODUCER):
            raise self._catalog.no_topic(topic)
        queues = self._catalog.default_queues(MessageType.NORMAL)
        counts = QueueCounts(
            broker_name=self._runtime.settings.broker_name,
            read_queues=queues,
            write_queues=queues,
            permission=Permission.READ_WRITE,
            message_type=MessageType.MIXED,
        )
        return [TopicAt(view, counts) for view in self._catalog.routes.brokers() if view.broker_id == 0]


def endpoints_of(address: BrokerAddress) -> definition_pb2.Endpoints:
    """Returns exactly one address, with its scheme (wire contract 2.6)."""
    return definition_pb2.Endpoints(
        scheme=_scheme(address.host), addresses=[definition_pb2.Address(host=address.host, port=address.port)]
    )


@lru_cache(maxsize=4096)
def _scheme(host: str) -> definition_pb2.AddressScheme.ValueType:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return definition_pb2.DOMAIN_NAME
    return definition_pb2.IPv4 if address.version == 4 else definition_pb2.IPv6


def _check_access_point(endpoints: definition_pb2.Endpoints) -> None:
    if not endpoints.addresses:
        raise IllegalAccessPoint("the request names no access point; set `endpoints` to the host:port the client uses")
    first = endpoints.addresses[0]
    if not first.host.strip() or not 1 <= first.port <= 65_535:
        raise IllegalAccessPoint(
            f"the access point {first.host!r}:{first.port} is malformed; give a host and a port from 1 to 65535"
        )


def _tells_more(one: routes_pb2.AwayBroker, known: routes_pb2.AwayBroker | None) -> bool:
    """True if `one` is new or adds followers: a broker that started recently remembers none."""
    return known is None or (bool(one.followers) and not known.followers)


def _broker_message(view: RegisteredBroker, address: BrokerAddress) -> definition_pb2.Broker:
    return definition_pb2.Broker(name=view.name, id=view.broker_id, endpoints=endpoints_of(address))


def _queues(
    topic: definition_pb2.Resource, at: TopicAt, address: BrokerAddress
) -> Iterator[definition_pb2.MessageQueue]:
    # READ_WRITE ones come first, ids from 0: Node only uses queue 0 (wire contract 3.4).
    counts = at.counts
    if counts.permission is Permission.NONE:
        return
    broker = _broker_message(at.broker, address)
    types = MIXED_KINDS if counts.message_type is MessageType.MIXED else (counts.message_type,)
    for queue_id in range(max(counts.read_queues, counts.write_queues)):
        yield definition_pb2.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=permission_of(counts, queue_id),
            broker=broker,
            accept_message_types=[message_type_number(kind) for kind in types],
        )


def _alive(catalog: Catalog, topic: str, broker_name: str) -> bool:
    view = catalog.routes.broker(broker_name)
    return view is not None and topic in view.topics


@lru_cache(maxsize=256)
def _share(name: str) -> tuple[Share | None, str]:
    """Returns the strategy's function and name. AVG replaces STICKY: without a rebalancer the owners are not known."""
    if not name:
        return None, name
    strategy: Strategy = Averagely()
    try:
        strategy = stand_in(by_name(name))
    except BadRequest:
        log.warning("strategy %s is not installed here, using AVG instead", name, extra={"strategy": name})
    if name in {"CONFIG", "MACHINE_ROOM"}:
        log.warning(
            "strategy %s assigns no queues here, as a broker has neither lists nor machine rooms; use another strategy "
            "for its groups, see `evenq group list`",
            name,
            extra={"strategy": name},
        )

    def share(group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> Sequence[MessageQueue]:
        return divide(strategy, group, queues, ids)[own_id]  # unlike `allocate`, it accepts unknown machine rooms

    return (share if isinstance(strategy, ContextDivider) else strategy.allocate), strategy.name
