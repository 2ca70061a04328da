"""SyncLiteSubscription, and receives of LITE topics over all brokers (wire contract 2.7, 3.14, 5.6).

A broker that receives a subscription forwards it to all brokers of the parent topic. A message goes to the broker that
owns its lite topic. A simple consumer always calls the same broker, so that broker looks at all brokers: first at one
of them, in turn, then it waits for all at the same time. Waiting takes no messages. If two brokers deliver at the same
moment, one delivery is given back and does not count. When brokers of the topic join or leave, the wait starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from evenq.errors import (
    BadRequest,
    ClientIdRequired,
    Error,
    HaNotAvailable,
    IllegalLiteTopic,
    IllegalTopic,
    TopicNotFound,
)
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite.lite_topics import lite_problem
from evenq_broker.core.lite.subscriptions import LiteSubscribeAction, Subscriber
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.delivery.receive_wish import Batch
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.peers import lite_start_of
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import FOR_ALL, MARK, forward, mark, owner_of
from evenq_broker.rpc.polls.fetching import Fetched, fetch

log = logging.getLogger(__name__)

READY_METHOD = "/evenq.v1.Peers/LiteReady"

Took = Batch | Fetched | None


class LiteSubscriptionHandler:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, clients: ConnectedClients, lite: Lites) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._clients, self._lite = cluster, clients, lite

    async def sync(self, data: bytes, context: RpcContext) -> bytes:
        """Adds, removes or replaces the lite subscriptions of a client to one parent topic, at every broker."""
        request = parsed(service_pb2.SyncLiteSubscriptionRequest, data, context)
        if not context.client_id:
            raise ClientIdRequired("a lite subscription belongs to a client; send the header x-mq-client-id")
        if int(request.action) not in list(map(int, LiteSubscribeAction)):
            raise BadRequest(
                f"action {request.action} is unknown; the actions are 0 (PARTIAL_ADD) to 3 (COMPLETE_REMOVE)"
            )
        names = _names(request, context.language)
        self._must_be_legal(request, names)
        name = request.topic.name
        topic = self._catalog.topics.get(name)
        if topic is None and MARK not in context.headers and self._catalog.routes.route(name):
            return await self._elsewhere(name, data, context)
        try:
            topic = topic or self._catalog.read_topic(name)
        except TopicNotFound:
            self._is_gone(request, names, data, context)
            raise
        if topic.message_type is not MessageType.LITE:
            raise IllegalTopic(
                f"topic {name} takes {topic.message_type} messages and has no lite topics; create a topic for them "
                "with `evenq topic create NAME --type lite`"
            )
        group = await self._catalog.ensure_group(request.group.name)
        who = Subscriber(context.client_id, group.name, topic.name)
        self._clients.table.seen(context.client_id, self._runtime.now_ms(), group=group.name)
        start = lite_start_of(request.offset_option) if request.HasField("offset_option") else None
        await self._lite.sync(who, LiteSubscribeAction(request.action), names, start)
        if MARK not in context.headers:
            await self._to_all(topic.name, data, context)
        return OK_STATUS

    def _is_gone(
        self, request: service_pb2.SyncLiteSubscriptionRequest, names: list[str], data: bytes, context: RpcContext
    ) -> None:
        """Raises HaNotAvailable if the topic may exist at a broker that is away."""
        topic = request.topic.name
        if not self._cluster.is_nowhere(topic):
            raise HaNotAvailable(
                f"no broker that has topic {topic} can be reached now; repeat the call in some seconds"
            )
        # Clients repeat their whole set, and must learn which subscriptions have ended, at any broker with their
        # stream. The stream need not have been open at the deletion (decision 16).
        if int(request.action) == LiteSubscribeAction.COMPLETE_ADD:
            self._lite.is_gone(context.client_id, request.group.name, topic, names)
            for peer in self._cluster.peers.all() if MARK not in context.headers else ():
                self._runtime.spawn(self._say_gone(peer.name, data, context), name="lite topic is gone")

    async def _say_gone(self, peer: str, request: bytes, context: RpcContext) -> None:
        address = owner_of(self._kernel, peer, context, cluster=self._cluster)
        if address is not None:
            with contextlib.suppress(Error):
                await forward(self._runtime, address, request, context)

    async def _elsewhere(self, topic: str, request: bytes, context: RpcContext) -> bytes:
        # This broker joined after the topic was created, so it does not have it.
        answers = await self._to_all(topic, request, context)
        errors = [result for result in answers if result is not None]
        if errors and len(errors) == len(answers):
            raise errors[0]
        return OK_STATUS

    async def _to_all(self, topic: str, request: bytes, context: RpcContext) -> list[Error | None]:
        peers = [at.broker.name for at in self._catalog.routes.route(topic)]
        return await asyncio.gather(*(self._pass_on(peer, request, context) for peer in peers))

    def _must_be_legal(self, request: service_pb2.SyncLiteSubscriptionRequest, names: list[str]) -> None:
        if LiteSubscribeAction(request.action) in {
            LiteSubscribeAction.PARTIAL_REMOVE,
            LiteSubscribeAction.COMPLETE_REMOVE,
        }:
            return
        for name in names:
            problem = lite_problem(name, self._runtime.settings.lite_topic_size_max)
            if problem:
                raise IllegalLiteTopic(problem)

    async def _pass_on(self, peer: str, request: bytes, context: RpcContext) -> Error | None:
        # A broker that is away receives it within 30 s after its return: clients repeat their whole set.
        address = owner_of(self._kernel, peer, context, cluster=self._cluster)
        if address is None:
            return None
        try:
            reply = await forward(self._runtime, address, request, context)
            check(service_pb2.SyncLiteSubscriptionResponse.FromString(reply).status)
        except Error as error:
            log.warning("lite subscription not forwarded to broker %s: %s", peer, error.message, extra={"peer": peer})
            return error
        return None


def _names(request: service_pb2.SyncLiteSubscriptionRequest, language: str) -> list[str]:
    names = list(request.lite_topic_set)
    if (
        language == "PYTHON"
        and int(request.action) == LiteSubscribeAction.PARTIAL_ADD
        and len(names) > 1
        and set(map(len, names)) == {1}
    ):
        return ["".join(names)]  # 5.1.2 subscribes to one name at a time, but sends its characters as names
    return names


def owner_elsewhere(
    kernel: Kernel, topic: str, name: str, context: RpcContext, *, cluster: ClusterLink, lite: Lites
) -> str:
    """Returns the other broker that owns this lite topic; empty: its messages are stored here."""
    if MARK in context.headers or lite_problem(name, kernel.runtime.settings.lite_topic_size_max):
        return ""
    owner = lite.owner(topic, name)
    return "" if owner_of(kernel, owner, context, cluster=cluster) is None else owner


class _Places:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.moved = asyncio.Event()
        """Set when the topic has other brokers now."""


class LiteReceiver:
    """Receives of simple consumers on LITE topics, over all brokers."""

    def __init__(self, kernel: Kernel, taker: MessageTaker, *, cluster: ClusterLink) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster = cluster
        self._taker = taker
        self._turn = 0
        self._places: dict[str, _Places] = {}
        self._watching = False

    async def receive(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        request: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        *,
        here: Callable[[int], Awaitable[Batch | Fetched | None]],
        until_ms: int,
    ) -> Took:
        """Returns messages of any broker. `here` takes from this one, and waits until the given time."""
        if MARK in context.headers and FOR_ALL not in context.headers:
            return await here(until_ms)
        who = Subscriber(context.client_id, group.name, topic.name)
        while True:
            places = self._places_of(topic.name)
            taken = await self._round(places, who, request, context, here, until_ms)
            if taken is not None or not places.moved.is_set() or self._runtime.now_ms() >= until_ms:
                return taken

    async def _round(
        self,
        places: _Places,
        who: Subscriber,
        request: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        here: Callable[[int], Awaitable[Took]],
        until_ms: int,
    ) -> Took:
        own = self._runtime.settings.broker_name
        names = [own, *(name for name in places.names if name != own)]
        self._turn += 1
        first = names[self._turn % len(names)]
        now_ms = self._runtime.now_ms()
        taken = await (
            here(now_ms) if first == own else fetch(self._kernel, first, request, context, cluster=self._cluster)
        )
        if taken is not None or until_ms <= now_ms:
            rest = [] if taken is not None else [name for name in names if name != first]
            return taken or await self._first(rest, who, request, context, here, now_ms)
        return await self._first(names, who, request, context, here, until_ms, moved=places.moved)

    def _places_of(self, topic: str) -> _Places:
        names = tuple(at.broker.name for at in self._catalog.routes.route(topic))
        known = self._places.get(topic)
        if known is None or known.names != names:
            if known is not None:
                known.moved.set()
            known = self._places[topic] = _Places(names)
        if not self._watching:
            self._watching = True
            self._runtime.spawn(self._watch(), name="places of lite topics")
        return known

    async def _watch(self) -> None:
        changes = self._catalog.changes.routes
        while True:
            seen = changes.count
            for topic, known in list(self._places.items()):
                if known.names != tuple(at.broker.name for at in self._catalog.routes.route(topic)):
                    del self._places[topic]
                    known.moved.set()
            await changes.wait(seen, clock=self._runtime.clock)

    async def _first(
        self,
        places: list[str],
        who: Subscriber,
        request: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        here: Callable[[int], Awaitable[Took]],
        until_ms: int,
        *,
        moved: asyncio.Event | None = None,
    ) -> Took:
        own = self._runtime.settings.broker_name
        over = spawn(moved.wait(), name="lite receive moves") if moved is not None else None
        tasks = [
            spawn(
                _run(here(until_ms) if name == own else self._from(name, who, request, context, until_ms)),
                name=f"lite receive at {name}",
            )
            for name in places
        ]
        waiting = set(tasks)
        taken: Took = None
        try:
            while waiting and taken is None and (over is None or not over.done()):
                done, _ = await asyncio.wait(
                    waiting if over is None else {*waiting, over}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting -= done
                results = [task.result() for task in tasks if task in done]
                taken = next((one for one in results if one is not None), None)
        finally:
            if over is not None:
                over.cancel()
            for task in tasks:
                task.cancel()
                task.add_done_callback(partial(self._let_go, taken))
        return taken

    async def _from(
        self,
        peer: str,
        who: Subscriber,
        request: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        until_ms: int,
    ) -> Took:
        pause_ms = 0
        while self._catalog.routes.broker(peer) is not None:
            left_ms = until_ms - self._runtime.now_ms()
            if left_ms > 0 and not await self._ready(peer, who, left_ms, context):
                return None
            taken = await fetch(self._kernel, peer, request, context, cluster=self._cluster)
            if taken is not None or self._runtime.now_ms() >= until_ms:
                return taken
            pause_ms = min(max(2 * pause_ms, 10), 1_000)  # another send was faster
            await self._runtime.clock.sleep_ms(pause_ms)
        return None

    async def _ready(self, peer: str, who: Subscriber, wait_ms: int, context: RpcContext) -> bool:
        view = self._catalog.routes.broker(peer)
        if view is None:
            return False
        request = peers_pb2.LiteReadyRequest(
            client_id=who.client_id, group=who.group, topic=who.parent, wait_ms=wait_ms
        ).SerializeToString()
        limit_ms = wait_ms + self._runtime.settings.peer_timeout_ms
        try:
            response = peers_pb2.LiteReadyResponse.FromString(
                await self._runtime.net.unary(
                    self._cluster.peers.address_of(view),
                    READY_METHOD,
                    request,
                    timeout_ms=limit_ms,
                    metadata=mark(context),
                )
            )
            check(response.status)
        except Error as error:
            log.info("broker %s sent no lite topics: %s", peer, error.message, extra={"peer": peer})
            return False
        return response.ready

    def _let_go(self, taken: Took, task: asyncio.Task[Took]) -> None:
        took = None if task.cancelled() or task.exception() is not None else task.result()
        if took is taken:
            return
        if isinstance(took, Batch):
            self._taker.give_back(took)
        elif took is not None:
            took.give_back()


async def _run(work: Awaitable[Took]) -> Took:
    return await work
