"""The console as an ASGI application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from evenq.console import (
    clients,
    dead_letters,
    groups,
    messages,
    overview,
    rights,
    schedules,
    signing_in,
    topic_changes,
    topics,
    waiting,
)
from evenq.console.pages import PROBLEMS, Console, no_page
from evenq.console.security import HttpGuard
from evenq.console.sessions import UserSessions
from evenq.console.settings import ConsoleSettings
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net

HEALTH = "/healthz"
"""Path of the health probe, whatever the prefix is."""
_PAGES = (
    signing_in,
    overview,
    topics,
    topic_changes,
    groups,
    messages,
    waiting,
    schedules,
    dead_letters,
    clients,
    rights,
)


def create_app(settings: ConsoleSettings, clock: Clock, net: Net | None = None) -> Starlette:
    """Returns the application; its clients are closed when it ends. `net`: how they reach the cluster; None: gRPC."""
    sessions = UserSessions(settings, clock, net)
    console = Console.of(settings, sessions, clock)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await sessions.close()

    async def alive(_request: Request) -> Response:
        return PlainTextResponse("ok\n", headers={"connection": "close"})  # a probe leaves no connection behind

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code in PROBLEMS and not request.url.path.startswith(static_path):
            return await no_page(console, request, error)
        return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)

    async def without_slash(_request: Request) -> Response:
        return RedirectResponse(console.href(""), 308)

    static_path = f"{settings.prefix}/static"
    keys = [console.href(page) for page in ("login", "logout")]
    static = _Unchanging(directory=Path(__file__).parent / "static")
    app = Starlette(
        routes=[
            *(one for page in _PAGES for one in page.routes(console)),
            *([Route(settings.prefix, without_slash)] if settings.prefix else []),
            Route(HEALTH, alive),
            Mount(static_path, static),
        ],
        middleware=[Middleware(HttpGuard, names=settings.names, small=keys)],
        exception_handlers={HTTPException: refused},
        lifespan=lifespan,
    )
    # Its redirects name the scheme and the host of this program, which are not those of a proxy before it.
    app.router.redirect_slashes = False
    return app


class _Unchanging(StaticFiles):
    """Files that are equal for everybody: a browser keeps them, and requests only a change."""

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = "no-cache"
        return response
