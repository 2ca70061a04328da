"""A console in front of a broker with users, in one process, without sockets, on a clock that the test moves."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from html import unescape
from typing import Any

import httpx
import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet
from starlette.applications import Starlette

from evenq.client.async_admin import Admin
from evenq.client.wiring import ClientContext
from evenq.console.app import create_app
from evenq.console.settings import ConsoleSettings
from evenq.model import BrokerAddress
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.guard import Guard
from evenq.serving.auth.users import Users
from evenq.wire.credentials import Credentials
from tests.unit.evenq.console.console_site import Site

USERS = """
[users.servers]
secret = "secret-of-servers"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
[users.nobody]
secret = "secret-of-nobody"
[users.viewer]
secret = "secret-of-viewer"
allow = [{ resource = "topic:orders", actions = ["describe"] }]
[users.reader]
secret = "secret-of-reader"
allow = [{ resource = "topic:orders", actions = ["describe", "consume"] }, { resource = "group:*", actions = ["describe"] }]
"""
HOST = "127.0.0.1:8080"
TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


class Browser:
    """Sends requests as a browser does: with its cookies, and the headers that report where a form is from."""

    def __init__(self, app: Starlette, clock: FakeClock, *, scheme: str = "http", host: str = HOST) -> None:
        self.origin = f"{scheme}://{host}"
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=self.origin, timeout=None)
        self._clock = clock

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self._clock.during(self.client.request(method, path, **options))

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.send("GET", path, **options)

    async def refresh(self, path: str) -> httpx.Response:
        """Requests the part of a page that is refreshed."""
        return await self.get(path, headers={"hx-request": "true"})

    async def token(self, page: str = "/login") -> str:
        """Returns the token of the forms of a page."""
        found = TOKEN.search((await self.get(page)).text)
        assert found, f"{page} has no form"
        return unescape(found[1])

    async def post(
        self,
        path: str,
        fields: Mapping[str, object],
        *,
        page: str = "/login",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Sends a form that is on `page`."""
        form = {"token": await self.token(page), **fields}
        sent = {"sec-fetch-site": "same-origin", "origin": self.origin} if headers is None else headers
        return await self.send("POST", path, data=form, headers=dict(sent))

    async def sign_in(self, user: str = "root", secret: str = "", target: str = "") -> httpx.Response:
        keys = {"access_key": user, "secret_key": secret or f"secret-of-{user}", "next": target}
        return await self.post("/login", keys)

    @property
    def session_id(self) -> str:
        [value] = [one.value for one in self.client.cookies.jar if "evenq-console" in one.name]
        assert value is not None
        return value


class ConsoleStage:
    """Clock, net, broker and the consoles in front of it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self._stack = stack

    async def broker(self, *, users: str = "", **settings: Any) -> Broker:
        """Starts the broker `a`; with `users` it refuses calls without keys."""
        parsed = Users.parse(users.encode()) if users else None
        broker = Broker(
            BrokerSettings(broker_name="a", **settings),
            clock=self.clock,
            rng=random.Random(1),
            net=self.net,
            users=lambda: parsed,
        )
        await broker.open()
        rpcs = broker.rpcs()
        if parsed is not None:
            guard = Guard(parsed, clock=self.clock)
            rpcs = [guard.guarded(one) for one in rpcs]
        self.net.serve("a:8081", rpcs)
        await self.clock.during(broker.start([BrokerAddress("default", "a", 8081)]))
        self._stack.push_async_callback(self._during, broker.close)
        return broker

    async def app(self, **settings: Any) -> Starlette:
        """Starts a console that allows changes, unless `settings` differ."""
        values = {"endpoint": "a:8081", "allow_changes": True, **settings}
        app = create_app(ConsoleSettings(**values), self.clock, self.net)
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        self._stack.push_async_callback(self._during, lambda: lifespan.__aexit__(None, None, None))
        return app

    def browser(self, app: Starlette, **options: Any) -> Browser:
        browser = Browser(app, self.clock, **options)
        self._stack.push_async_callback(browser.client.aclose)
        return browser

    def admin(self, user: str = "root") -> Admin:
        """Returns an admin client, not the console's."""
        keys = Credentials(access_key=user, secret_key=f"secret-of-{user}")
        context = ClientContext(clock=self.clock, rng=random.Random(2), net=self.net, credentials=keys)
        admin = Admin(endpoint="a:8081", context=context)
        self._stack.push_async_callback(self._during, admin.close)
        return admin

    async def _during(self, close: Any) -> None:
        await self.clock.during(close())


@pytest.fixture
async def stage() -> AsyncIterator[ConsoleStage]:
    """A stage without a broker."""
    async with AsyncExitStack() as stack:
        yield ConsoleStage(stack)


@pytest.fixture
async def guarded() -> AsyncIterator[ConsoleStage]:
    """A stage with a broker that has the users `root`, `reader` and `nobody`."""
    async with AsyncExitStack() as stack:
        stage = ConsoleStage(stack)
        await stage.broker(users=USERS)
        yield stage


@pytest.fixture
async def unguarded() -> AsyncIterator[ConsoleStage]:
    """A stage with a broker without users."""
    async with AsyncExitStack() as stack:
        stage = ConsoleStage(stack)
        await stage.broker()
        yield stage


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        site = await Site.opened(stack)
        await site.admin.create_topic("t", queues=2)
        yield site
