"""A broker on a net without sockets, with a clock that the test moves."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.shares import UsersNow, no_users
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

from evenq.model import BrokerAddress
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.users import User, Users
from evenq.serving.rpc import CallKind, RpcContext
from evenq.wire.status import check


class Stage:
    """Clock, net and the brokers on it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.during, self.until = self.clock.during, self.clock.until
        self.net = LoopNet(self.clock)
        self.brokers: list[Broker] = []
        self.users: UsersNow = no_users
        """Of brokers that are made from now on."""

    async def broker(self, name: str = "a", **settings: Any) -> Broker:
        broker = self.made(name, **settings)
        await broker.open()
        await self.begin(broker)
        return broker

    def made(self, name: str, **settings: Any) -> Broker:
        """A broker that is not open yet."""
        settings.setdefault("duplicates_window_ms", 0)  # stories send one id often; those about retries say so
        result = BrokerSettings(broker_name=name, **settings)
        return Broker(result, clock=self.clock, rng=random.Random(name), net=self.net, users=self.users)

    async def begin(self, broker: Broker) -> None:
        """Let a broker that is open answer and live."""
        name = broker.runtime.settings.broker_name
        self.net.serve(f"{name}:8081", broker.rpcs())
        await self.during(broker.start([BrokerAddress("default", name, 8081)]))
        self.brokers.append(broker)

    async def end(self, broker: Broker) -> None:
        """Closes a broker before the end of the story; another one may begin on its files."""
        await self.during(broker.close())
        self.brokers.remove(broker)

    async def call(self, method: str, request: Any, response: Any, broker: str = "a") -> Any:
        """One unary call while time passes; raises the error that the answer's status says."""
        result = request.SerializeToString()
        answer = response.FromString(
            await self.during(self.net.unary(f"{broker}:8081", method, result, timeout_ms=60_000))
        )
        check(answer.status)
        return answer

    async def ask(
        self, method: str, request: Any, response: Any, *, broker: str = "a", language: str = "JAVA", client: str = "c"
    ) -> Any:
        """One unary call of a v2 client while time passes; the answer as it is."""
        result = request if isinstance(request, bytes) else request.SerializeToString()
        headers = {"x-mq-client-id": client, "x-mq-language": language}
        name = method if method.startswith("/") else f"/apache.rocketmq.v2.MessagingService/{method}"
        call = self.net.unary(f"{broker}:8081", name, result, timeout_ms=60_000, metadata=headers)
        return response.FromString(await self.during(call))

    async def as_user(self, grants: str, method: str, request: Any, response: Any, *, broker: int = 0) -> Any:
        """One call of `evenq.v1` or `Admin` by a user with these grants, behind the guard; raises what it answers.

        `grants`: `topic:X%* consume,describe; group:X%* operate`.
        """
        result = RpcContext(method, [], "127.0.0.1:1", None)
        result.caller = user_of(grants)
        [rpc] = [one for one in self.brokers[broker].rpcs() if one.method == method]
        answer = rpc.handler(request.SerializeToString(), result)
        if rpc.kind is CallKind.UNARY:
            found = response.FromString(await self.during(answer))
            check(found.status)
            return found

        async def collect() -> list[Any]:
            return [response.FromString(frame) async for frame in answer]

        return await self.during(collect())

    async def frames(
        self, method: str, request: Any, response: Any, *, language: str = "JAVA", client: str = "c", **options: Any
    ) -> list[Any]:
        """All frames that a streaming call of a v2 client answers, while time passes."""
        role = {"x-evenq-role": options["role"]} if options.get("role") else {}
        headers = {"x-mq-client-id": client, "x-mq-language": language, **role}
        name = f"/apache.rocketmq.v2.MessagingService/{method}"

        async def collect() -> list[Any]:
            timeout_ms = options.get("timeout_ms", 60_000)
            result = request.SerializeToString()
            stream = self.net.stream("a:8081", name, result, timeout_ms=timeout_ms, metadata=headers)
            return [response.FromString(frame) async for frame in stream]

        found: list[Any] = await self.during(collect())
        return found


def know(*brokers: Any) -> None:
    """Let all brokers know each other, as a nameserver would."""
    views = [
        RegisteredBroker(
            name=b.runtime.settings.broker_name, addresses=b.runtime.addresses, incarnation=b.cluster.own.incarnation
        )
        for b in brokers
    ]
    for broker in brokers:
        broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
        broker.cluster.routes_changed()


def user_of(grants: str) -> User:
    """A user of a users file."""
    found = users_of(u=grants).get("u")
    assert found is not None
    return found


def users_of(**grants: str) -> Users:
    """A users file, by user; see `Stage.as_user`."""
    text = '[users.servers]\nsecret = "12345678"\ninternal = true\n'
    for name, granted in grants.items():
        allow = []
        for grant in granted.split(";"):
            resource, actions = grant.split()
            listed = ", ".join(f'"{action}"' for action in actions.split(","))
            allow.append(f'{{ resource = "{resource}", actions = [{listed}] }}')
        text += f'[users.{name}]\nsecret = "12345678"\nallow = [{", ".join(allow)}]\n'
    return Users.parse(text.encode())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Ends the brokers that are on it."""
    stage = Stage()
    try:
        yield stage
    finally:
        for broker in stage.brokers:
            await stage.during(broker.close())
