"""A world for promises about consumers: whole brokers and our own SDK in one process, over a net without sockets and on
a clock that the test moves. The listener runs in the same loop, so nothing here depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.loop_net import LoopNet

import evenq
import evenq.aio
from evenq.client.wiring import ClientContext
from evenq.model import BrokerAddress
from evenq.runtime.clock import FakeClock
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

DATA = "/evenq.v1.Data/"
ADMIN = "/evenq.v1.Admin/"


class World:
    """Brokers, consumers of them, and what listeners saw."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.during, self.until = self.clock.during, self.clock.until
        self.net = LoopNet(self.clock)
        self.registry = FakeRegistry()
        self.net.serve("ns:1", self.registry.rpcs())
        self.brokers: dict[str, Broker] = {}
        self.clients: list[Any] = []
        self.seen: list[evenq.ReceivedMessage] = []
        self.ids: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------------ servers

    async def start(self, name: str = "a", **settings: Any) -> Broker:
        """A broker at `<name>:8081`."""
        result = BrokerSettings(broker_name=name, **{"nameservers": "ns:1", **settings})
        broker = Broker(result, clock=self.clock, rng=random.Random(name), net=self.net)
        await broker.open()
        self.net.serve(f"{name}:8081", broker.rpcs())
        await broker.start([BrokerAddress("default", name, 8081)])
        self.brokers[name] = broker
        await self.until(
            lambda: all(len(b.catalog.routes.brokers()) == len(self.brokers) for b in self.brokers.values())
        )
        return broker

    async def create(self, topic: str, queues: int = 1, **settings: Any) -> None:
        """On every broker."""
        await self.call(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(topic=topic, queues=queues, **settings))

    async def scale(self, queues: int, topic: str = "t", broker: str = "", *, force: bool = False) -> Any:
        """More or fewer queues, everywhere or at one broker; what it answers of each."""
        request = admin_pb2.ScaleTopicRequest(topic=topic, queues=queues, broker_name=broker, force=force)
        return (await self.call(ADMIN + "ScaleTopic", request)).brokers

    async def group(self, name: str, **settings: Any) -> None:
        """A consumer group with settings of its own."""
        await self.call(ADMIN + "CreateGroup", admin_pb2.CreateGroupRequest(group=name, **settings))

    async def publish(
        self, *bodies: Any, topic: str = "t", queue: int = 0, broker: str = "a", tag: str = "", message_group: str = ""
    ) -> int:
        """Store messages in one queue; returns the offset of the first."""
        request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue))
        for body in bodies:
            message = request.messages.add(body=str(body).encode())
            name = str(body)[:100]
            self.ids[name] += 1
            again = self.ids[name]
            message.system_properties.message_id = f"id-{name}" if again == 1 else f"id-{name}-{again}"
            if tag:
                message.system_properties.tag = tag
            if message_group:
                message.system_properties.message_group = message_group
        return int((await self.call(DATA + "Publish", request, broker)).first_offset)

    async def committed(self, group: str, topic: str = "t", queue: int = 0, broker: str = "a") -> int:
        """What the broker keeps for a group."""
        request = data_pb2.QueryOffsetsRequest(
            group=group, queues=[common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue)]
        )
        return int((await self.call(DATA + "QueryOffsets", request, broker)).offsets[0].committed)

    def has(self, topic: str, broker: str = "a") -> bool:
        """True if the broker knows the topic."""
        return self.brokers[broker].catalog.topics.get(topic) is not None

    async def bodies(self, topic: str, broker: str = "a") -> list[str]:
        """All messages of a topic's first queue."""
        request = data_pb2.PullRequest(
            queue=common_pb2.Queue(topic=topic, broker_name=broker), committed=-1, batch_max=1_000
        )
        raw = await self.net.unary(f"{broker}:8081", DATA + "Pull", request.SerializeToString(), timeout_ms=60_000)
        return [message.body.decode() for message in data_pb2.PullResponse.FromString(raw).messages]

    async def call(self, method: str, request: Any, broker: str = "a") -> Any:
        """One call, while time passes; raises what the answer's status says."""
        responses: dict[str, Any] = {
            ADMIN + "CreateTopic": admin_pb2.CreateTopicResponse,
            ADMIN + "CreateGroup": admin_pb2.CreateGroupResponse,
            ADMIN + "DeleteGroup": admin_pb2.DeleteGroupResponse,
            ADMIN + "ScaleTopic": admin_pb2.ScaleTopicResponse,
            ADMIN + "PermitTopic": admin_pb2.PermitTopicResponse,
            ADMIN + "DrainBroker": admin_pb2.DrainBrokerResponse,
            ADMIN + "DescribeTopic": admin_pb2.DescribeTopicResponse,
            DATA + "Publish": data_pb2.PublishResponse,
            DATA + "QueryOffsets": data_pb2.QueryOffsetsResponse,
        }
        raw = self.net.unary(f"{broker}:8081", method, request.SerializeToString(), timeout_ms=60_000)
        answer = responses[method].FromString(await self.during(raw))
        check(answer.status)
        return answer

    # ------------------------------------------------------------------------------------------------ clients

    def context(self) -> ClientContext:
        """What clients stand on here."""
        return ClientContext(clock=self.clock, rng=random.Random(len(self.clients)), net=self.net)

    async def push(self, name: str = "me", *, listener: Any = None, **rest: Any) -> evenq.aio.PushConsumer:
        """A started push consumer of group `g` and topic `t`; without a listener it only notes what it saw."""

        async def note(messages: Sequence[evenq.ReceivedMessage]) -> object:
            self.seen.extend(messages)
            return None if listener is None else await listener(messages)

        fields = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "endpoint": "a:8081", **rest}
        consumer = evenq.aio.PushConsumer(listener=note, client_id=name, context=self.context(), **fields)
        self.clients.append(consumer)
        return await consumer.start()

    async def pull(self, name: str = "me", **rest: Any) -> evenq.aio.PullConsumer:
        """A started pull consumer of group `g` and topic `t`."""
        fields = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "endpoint": "a:8081", **rest}
        consumer = evenq.aio.PullConsumer(client_id=name, context=self.context(), **fields)
        self.clients.append(consumer)
        return await consumer.start()

    async def kill(self, consumer: evenq.aio.PushConsumer) -> None:
        """The process of a push consumer dies: no goodbye, its tasks end where they are, its lines break."""
        pushing = consumer._pushing
        assert pushing is not None
        member, listening = pushing._member, pushing._listening
        tasks = [*member._tasks, *member.ownership._tasks, *member.held.tasks.values(), *listening._tasks]
        tasks += [line.task for line in member.sessions._connections.values() if line.task is not None]
        tasks += [pushing._scan] if pushing._scan is not None else []
        listening._free = 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.clients.remove(consumer)
        await self.clock.advance(0)

    def cut(self, broker: str = "a") -> Callable[[], None]:
        """Break all lines to a broker; the result lets it be reached again."""
        rpcs = list(self.net._hosts[f"{broker}:8081"].rpcs.values())
        self.net.stop(f"{broker}:8081")
        return lambda: self.net.serve(f"{broker}:8081", rpcs)

    async def ready(self, *consumers: Any, queues: int = 1) -> None:
        """Until the consumers own this number of queues together."""
        await self.until(lambda: sum(len(consumer.queues) for consumer in consumers) == queues)

    def saw(self) -> list[str]:
        """Bodies that listeners got, in that order."""
        return [message.body.decode() for message in self.seen]

    def calls(self, method: str) -> int:
        """How often the method was called so far, anywhere."""
        return sum(called.endswith(method) for _, called in self.net.calls)

    async def slow_until(self, state: Callable[[], bool], *, step_ms: int = 5) -> None:
        """`until` for what threads do, like reading and writing files: they need real moments."""
        async with asyncio.timeout(60):
            while not state():
                await self.clock.advance(step_ms)
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        """Clients first, then brokers."""
        for client in self.clients:
            await self.during(client.close(), step_ms=50)
        for broker in self.brokers.values():
            await self.during(broker.close(), step_ms=50)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A world of its own."""
    world = World()
    try:
        yield world
    finally:
        await world.close()
