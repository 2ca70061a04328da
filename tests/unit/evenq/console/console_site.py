"""A console of a broker without users, in this process and on the clock of the machine."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

import evenq
from evenq import aio
from evenq.client.wiring import ClientContext
from evenq.console.app import create_app
from evenq.console.settings import ConsoleSettings
from evenq.model import BrokerAddress
from evenq.runtime.clock import SystemClock


class Site:
    """A console of a broker at `a:8081`, and a browser of it."""

    def __init__(self, stack: AsyncExitStack, net: LoopNet) -> None:
        self._stack, self._net = stack, net
        self.context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=net)
        self.browser: httpx.AsyncClient

    @classmethod
    async def opened(cls, stack: AsyncExitStack) -> Site:
        clock = SystemClock()
        site = cls(stack, LoopNet(clock))
        settings = BrokerSettings(broker_name="a", duplicates_window_ms=0, default_start_from="FIRST")
        broker = Broker(settings, clock=clock, rng=random.Random(1), net=site._net)
        await broker.open()
        site._net.serve("a:8081", broker.rpcs())
        await broker.start([BrokerAddress("default", "a", 8081)])
        stack.push_async_callback(broker.close)
        site.admin = await stack.enter_async_context(aio.Admin(endpoint="a:8081", context=site.context))
        site.producer = await stack.enter_async_context(aio.Producer(endpoint="a:8081", context=site.context))
        site.browser = await site.visitor()
        return site

    async def visitor(self, **settings: Any) -> httpx.AsyncClient:
        """A browser of a new console."""
        given = {"endpoint": "a:8081", "allow_changes": True, **settings}
        app = create_app(ConsoleSettings(**given), SystemClock(), self._net)
        await self._stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app)
        return await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://localhost")
        )

    async def get(self, path: str, status: int = 200) -> str:
        page = await self.browser.get(path)
        assert page.status_code == status, page.text
        return page.text

    async def post(self, path: str, form: Mapping[str, str], *, status: int = 303, **parts: Any) -> httpx.Response:
        """Sends a form with the token of this session."""
        page = await self.browser.post(path, data={"token": await token(self.browser), **form}, **parts)
        assert page.status_code == status, page.text
        return page

    async def send(self, body: bytes, **fields: Any) -> str:
        """Sends a message to the topic `t`, and returns the path of its page."""
        result = await self.producer.send(evenq.Message(topic="t", body=body, **fields))
        return f"/messages/t/a/{result.queue.queue_id}/{result.offset}"


async def token(browser: httpx.AsyncClient) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', (await browser.get("/login")).text)
    assert found is not None
    return found[1]
