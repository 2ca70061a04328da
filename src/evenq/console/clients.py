"""Clients: producers and consumers of both protocols, one client with its groups, and the stacks of its threads."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import ClientView
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import Error

STACK_CHARACTERS_SHOWN = 64 << 10
OWNED_SHOWN = 200


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/clients", _clients),
        route(console, "/clients/{client:path}/stack", _stack, posts=True),
        route(console, "/clients/{client:path}", _client),
    ]


async def _clients(visit: Visit) -> Response:
    view = await visit.admin.list_clients()
    words, kind = visit.query("q").strip().lower(), visit.query("kind")
    kept = [one for one in view.clients if kind in {"", one.kind} and _matches(one, words)]
    kept.sort(key=lambda one: (one.client_id, one.group))
    begin = visit.number("begin")
    return visit.page(
        "clients.html",
        title="Clients",
        clients=kept[begin : begin + ROWS],
        total=len(kept),
        begin=begin,
        rows=ROWS,
        q=visit.query("q").strip(),
        kind=kind,
        kinds=sorted({one.kind for one in view.clients}),
        silent=view.silent,
    )


def _matches(client: ClientView, words: str) -> bool:
    texts = (client.client_id, client.group, client.language, client.version, client.protocol)
    return any(words in text.lower() for text in texts)


async def _client(visit: Visit) -> Response:
    return _page(visit, await visit.admin.describe_client(visit.path("client")))


async def _stack(visit: Visit) -> Response:
    name = visit.path("client")
    entries = await visit.admin.describe_client(name)
    try:
        stack = await visit.admin.client_stack(name)
    except Error as error:
        return _page(visit, entries, problem=f"{error}")
    return _page(visit, entries, stack=stack)


def _page(visit: Visit, entries: Sequence[ClientView], *, stack: str = "", problem: str = "") -> Response:
    name = visit.path("client")
    brokers = sorted({broker for one in entries for broker in one.brokers})
    return visit.page(
        "client.html",
        title=f"Client {name}",
        client=name,
        entries=entries,
        first=entries[0],
        joined_ms=min((one.joined_ms for one in entries if one.joined_ms), default=0),
        last_seen_ms=max(one.last_seen_ms for one in entries),
        brokers=brokers,
        owned_shown=OWNED_SHOWN,
        stack=stack[:STACK_CHARACTERS_SHOWN],
        stack_hidden=max(0, len(stack) - STACK_CHARACTERS_SHOWN),
        problem=problem,
        takes_commands=any(one.command_brokers for one in entries),
    )
