"""SyncLiteSubscription, and what a LITE topic needs of all its brokers (wire contract 2.7, 3.14, 5.6).

A subscription told to any broker is passed on to all that carry the parent. A message goes to the broker that owns its
lite topic. A simple consumer asks one broker for ever, so a receive looks at all of them: at one of them first, another
one each time, then it waits for all at once. Waiting takes nothing at the others; what two gave at the same moment is
given back by one of them, uncounted. When brokers of the topic come or go meanwhile, it begins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, ClientIdRequired, Error, IllegalLiteTopic, IllegalTopic
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite import lite_problem
from evenq_broker.core.lite_subscriptions import Action, Subscriber
from evenq_broker.loops.popping import Batch, Popping
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.fetching import Fetched, fetch
from evenq_broker.rpc.forwarding import MARK, forward, owner_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["LiteReceiving", "LiteSyncing", "owner_elsewhere"]

log = logging.getLogger(__name__)

READY_METHOD = "/evenq.v1.Peers/LiteReady"

Took = Batch | Fetched | None


class LiteSyncing:
    """The handler of SyncLiteSubscription."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def sync(self, request: bytes, context: RpcContext) -> bytes:
        """Add to, take from or replace what a client wants of one parent topic, at every broker."""
        broker = self._broker
        asked = parsed(service_pb2.SyncLiteSubscriptionRequest, request, context)
        if not context.client_id:
            raise ClientIdRequired("a lite subscription belongs to a client; send the header x-mq-client-id")
        if int(asked.action) not in list(map(int, Action)):
            raise BadRequest(
                f"action {asked.action} is unknown; the actions are 0 (PARTIAL_ADD) to 3 (COMPLETE_REMOVE)"
            )
        names = _names(asked, context.language)
        self._must_be_legal(asked, names)
        name = asked.topic.name
        topic = broker.topics.get(name)
        if topic is None and MARK not in context.headers and broker.routes.route(name):
            return await self._elsewhere(name, request, context)
        topic = topic or broker.read_topic(name)
        if topic.message_type is not MessageType.LITE:
            raise IllegalTopic(
                f"topic {name} takes {topic.message_type} messages and has no lite topics; make one with "
                "`evenq topic create NAME --type lite`"
            )
        group = await broker.ensure_group(asked.group.name)
        who = Subscriber(context.client_id, group.name, topic.name)
        broker.clients.seen(context.client_id, broker.now_ms(), group=group.name)
        start = asked.offset_option if asked.HasField("offset_option") else None
        await broker.lite.sync(who, Action(asked.action), names, start)
        if MARK not in context.headers:
            await self._to_all(topic.name, request, context)
        return OK_STATUS

    async def _elsewhere(self, topic: str, request: bytes, context: RpcContext) -> bytes:
        # This broker came after the topic was made, so it does not carry it.
        answers = await self._to_all(topic, request, context)
        errors = [answer for answer in answers if answer is not None]
        if errors and len(errors) == len(answers):
            raise errors[0]
        return OK_STATUS

    async def _to_all(self, topic: str, request: bytes, context: RpcContext) -> list[Error | None]:
        peers = [at.broker.name for at in self._broker.routes.route(topic)]
        return await asyncio.gather(*(self._pass_on(peer, request, context) for peer in peers))

    def _must_be_legal(self, asked: service_pb2.SyncLiteSubscriptionRequest, names: list[str]) -> None:
        if Action(asked.action) in {Action.PARTIAL_REMOVE, Action.COMPLETE_REMOVE}:
            return
        for name in names:
            problem = lite_problem(name, self._broker.settings.lite_topic_size_max)
            if problem:
                raise IllegalLiteTopic(problem)

    async def _pass_on(self, peer: str, request: bytes, context: RpcContext) -> Error | None:
        # A broker that is away hears it within 30 s: clients repeat their whole set.
        address = owner_of(self._broker, peer, context)
        if address is None:
            return None
        try:
            answer = await forward(self._broker, address, request, context)
            check(service_pb2.SyncLiteSubscriptionResponse.FromString(answer).status)
        except Error as error:
            log.warning("lite subscription not passed on", extra={"peer": peer, "error": str(error)})
            return error
        return None


def _names(asked: service_pb2.SyncLiteSubscriptionRequest, language: str) -> list[str]:
    names = list(asked.lite_topic_set)
    if (
        language == "PYTHON"
        and int(asked.action) == Action.PARTIAL_ADD
        and len(names) > 1
        and set(map(len, names)) == {1}
    ):
        return ["".join(names)]  # 5.1.2 subscribes to one name at a time and sends its letters
    return names


def owner_elsewhere(broker: Broker, topic: TopicConfig, name: str, context: RpcContext) -> str:
    """The other broker that a message for this lite topic belongs to; "" = it is stored here."""
    if MARK in context.headers or lite_problem(name, broker.settings.lite_topic_size_max):
        return ""
    owner = broker.lite.owner(topic.name, name)
    return "" if owner_of(broker, owner, context) is None else owner


class _Places:
    """The brokers of a topic, as receives look at them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.moved = asyncio.Event()
        """They are others now."""


class LiteReceiving:
    """Receives of simple consumers on LITE topics, over all brokers."""

    def __init__(self, broker: Broker, popping: Popping) -> None:
        self._broker = broker
        self._popping = popping
        self._turn = 0
        self._places: dict[str, _Places] = {}
        self._watching = False

    async def receive(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        asked: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        *,
        here: Callable[[int], Awaitable[Batch | Fetched | None]],
        until_ms: int,
    ) -> Took:
        """What any broker has. `here` takes from this one, waiting until the time given."""
        broker = self._broker
        if MARK in context.headers:
            return await here(until_ms)
        who = Subscriber(context.client_id, group.name, topic.name)
        while True:
            places = self._places_of(topic.name)
            found = await self._round(places, who, asked, context, here, until_ms)
            if found is not None or not places.moved.is_set() or broker.now_ms() >= until_ms:
                return found

    async def _round(
        self,
        places: _Places,
        who: Subscriber,
        asked: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        here: Callable[[int], Awaitable[Took]],
        until_ms: int,
    ) -> Took:
        broker = self._broker
        own = broker.settings.broker_name
        names = [own, *(name for name in places.names if name != own)]
        self._turn += 1
        first = names[self._turn % len(names)]
        now_ms = broker.now_ms()
        found = await (here(now_ms) if first == own else fetch(broker, first, asked, context))
        if found is not None or until_ms <= now_ms:
            rest = [] if found is not None else [name for name in names if name != first]
            return found or await self._first(rest, who, asked, context, here, now_ms)
        return await self._first(names, who, asked, context, here, until_ms, moved=places.moved)

    def _places_of(self, topic: str) -> _Places:
        names = tuple(at.broker.name for at in self._broker.routes.route(topic))
        known = self._places.get(topic)
        if known is None or known.names != names:
            if known is not None:
                known.moved.set()
            known = self._places[topic] = _Places(names)
        if not self._watching:
            self._watching = True
            self._broker.spawn(self._watch(), name="places of lite topics")
        return known

    async def _watch(self) -> None:
        changes = self._broker.cluster.route_changes
        while True:
            seen = changes.count
            for topic, known in list(self._places.items()):
                if known.names != tuple(at.broker.name for at in self._broker.routes.route(topic)):
                    del self._places[topic]
                    known.moved.set()
            await changes.wait(seen, clock=self._broker.clock)

    async def _first(
        self,
        places: list[str],
        who: Subscriber,
        asked: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        here: Callable[[int], Awaitable[Took]],
        until_ms: int,
        *,
        moved: asyncio.Event | None = None,
    ) -> Took:
        own = self._broker.settings.broker_name
        over = spawn(moved.wait(), name="lite receive moves") if moved is not None else None
        tasks = [
            spawn(
                _run(here(until_ms) if name == own else self._from(name, who, asked, context, until_ms)),
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
                found = [task.result() for task in tasks if task in done]
                taken = next((one for one in found if one is not None), None)
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
        asked: service_pb2.ReceiveMessageRequest,
        context: RpcContext,
        until_ms: int,
    ) -> Took:
        broker = self._broker
        pause_ms = 0
        while broker.routes.broker(peer) is not None:
            if until_ms > broker.now_ms() and not await self._ready(peer, who, until_ms - broker.now_ms()):
                return None
            found = await fetch(broker, peer, asked, context)
            if found is not None or broker.now_ms() >= until_ms:
                return found
            pause_ms = min(max(2 * pause_ms, 10), 1_000)  # somebody was faster
            await broker.clock.sleep_ms(pause_ms)
        return None

    async def _ready(self, peer: str, who: Subscriber, wait_ms: int) -> bool:
        broker = self._broker
        view = broker.routes.broker(peer)
        if view is None:
            return False
        request = peers_pb2.LiteReadyRequest(
            client_id=who.client_id, group=who.group, topic=who.parent, wait_ms=wait_ms
        ).SerializeToString()
        limit_ms = wait_ms + broker.settings.peer_timeout_ms
        try:
            answer = peers_pb2.LiteReadyResponse.FromString(
                await broker.net.unary(broker.cluster.address_of(view), READY_METHOD, request, timeout_ms=limit_ms)
            )
            check(answer.status)
        except Error as error:
            log.info("a peer tells nothing of lite topics", extra={"peer": peer, "error": str(error)})
            return False
        return answer.ready

    def _let_go(self, taken: Took, task: asyncio.Task[Took]) -> None:
        took = None if task.cancelled() or task.exception() is not None else task.result()
        if took is taken:
            return
        if isinstance(took, Batch):
            self._popping.give_back(took)
        elif took is not None:
            took.give_back()


async def _run(work: Awaitable[Took]) -> Took:
    return await work
