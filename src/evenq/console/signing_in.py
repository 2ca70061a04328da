"""Signing in with an access key and its secret, and signing out."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from evenq.console.pages import Console, Visit, route
from evenq.errors import Error, SettingsError, TooManyRequests, Unauthorized
from evenq.wire.credentials import Credentials

KEY_CHARACTERS_MAX = 1_024


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/login", _form, signed=False),
        route(console, "/login", _sign_in, posts=True, signed=False),
        route(console, "/logout", _sign_out, posts=True, signed=False),
    ]


async def _form(visit: Visit) -> Response:
    return visit.page("login.html", title="Sign in", problem="", access_key="", next=visit.query("next"))


async def _sign_in(visit: Visit) -> Response:
    access_key, secret_key = visit.text("access_key").strip(), visit.text("secret_key")
    try:
        if max(len(access_key), len(secret_key)) > KEY_CHARACTERS_MAX:
            raise SettingsError(f"a key is longer than {KEY_CHARACTERS_MAX} characters; enter the keys of your user")
        session = await visit.console.sessions.sign_in(Credentials(access_key=access_key, secret_key=secret_key))
    except (SettingsError, TooManyRequests, Unauthorized) as error:
        return _again(visit, error, access_key[:KEY_CHARACTERS_MAX])
    await visit.console.sessions.end(visit.session_id)
    visit.session_id = session.id
    return RedirectResponse(_inside(visit, visit.text("next")), 303)


def _again(visit: Visit, error: Error, access_key: str) -> Response:
    problem = "The cluster does not accept these keys." if isinstance(error, Unauthorized) else f"{error}"
    return visit.page(
        "login.html",
        status=429 if isinstance(error, TooManyRequests) else 403,
        title="Sign in",
        problem=problem,
        access_key=access_key,
        next=visit.text("next"),
    )


def _inside(visit: Visit, target: str) -> str:
    """Returns the page to continue at, which is never on another site."""
    prefix = visit.console.settings.prefix
    try:
        parts = urlsplit(target)
    except ValueError:
        return visit.console.href("")
    if parts.scheme or parts.netloc or not target.startswith(f"{prefix}/") or target.startswith("//"):
        return visit.console.href("")
    if not target.isascii() or not target.isprintable() or "\\" in target or ".." in parts.path:
        return visit.console.href("")
    return target


async def _sign_out(visit: Visit) -> Response:
    await visit.console.sessions.end(visit.session_id)
    visit.session_id = visit.console.sessions.new_id()
    return RedirectResponse(visit.console.href("login"), 303)
