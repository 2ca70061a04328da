"""Pages of clients, against a broker in this process."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from evenq import aio
from evenq.client.core.admin.query_views import ClientsView, ClientView, SubscriptionView
from evenq.errors import NotImplementedYet, RequestTimeout
from evenq.model import FilterExpression, MessageQueue
from tests.unit.evenq.console.console_site import Site, token


def view(client_id: str, **fields: Any) -> ClientView:
    given: dict[str, Any] = {
        "kind": "PUSH_CONSUMER",
        "group": "g",
        "language": "JAVA",
        "version": "5.0.7",
        "protocol": "v2",
        "subscriptions": (),
        "joined_ms": 0,
        "last_seen_ms": 0,
        "brokers": (),
        "command_brokers": (),
        "owned": (),
        "inflight": 0,
        **fields,
    }
    return ClientView(client_id=client_id, **given)


def listed(monkeypatch: pytest.MonkeyPatch, *clients: ClientView, silent: tuple[str, ...] = ()) -> None:
    """Replaces the answer of the cluster."""

    async def answer(*_: Any, **__: Any) -> ClientsView:
        return ClientsView(clients=clients, silent=silent)

    async def one(_admin: Any, client_id: str) -> list[ClientView]:
        return [client for client in clients if client.client_id == client_id]

    monkeypatch.setattr(aio.Admin, "list_clients", answer)
    monkeypatch.setattr(aio.Admin, "describe_client", one)


async def test_a_connected_consumer_is_listed_and_shown(site: Site) -> None:
    assert "No client is connected" in await site.get("/clients")
    async with aio.SimpleConsumer(
        group="g",
        subscriptions={"t": "*"},
        endpoint="a:8081",
        context=site.context,
        client_id="host/a@1",
    ) as consumer:
        await consumer.receive(1, invisible_ms=30_000, wait_ms=100)
        for path in ("/clients", "/clients?q=HOST", "/clients?kind=SIMPLE_CONSUMER"):
            page = await site.get(path)
            assert 'href="/clients/host%2Fa%401"' in page
            part = await site.browser.get(path, headers={"hx-request": "true"})
            assert part.text.startswith('<div id="live"')
            assert 'href="/clients/host%2Fa%401"' in part.text
        assert "No client matches" in await site.get("/clients?kind=PRODUCER")
        page = await site.get("/clients/host%2Fa%401")
        for text in ("Client host/a@1", "simple consumer", "Group g", ">a</dd>"):
            assert text in page
        stack = await site.post("/clients/host%2Fa%401/stack", {}, status=200)
        assert 'role="alert"' in stack.text


async def test_a_client_that_is_not_connected_is_a_page_with_404(site: Site) -> None:
    assert "Topics" in await site.get("/clients/nobody", 404)
    await site.post("/clients/nobody/stack", {}, status=404)


async def test_a_list_has_pages_and_names_silent_brokers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, *(view(f"c{number:03}") for number in range(120)), silent=("b-away",))
    shown: list[str] = []
    for begin in (0, 50, 100):
        page = await site.get(f"/clients?begin={begin}&q=java")
        assert "No answer from b-away" in page
        shown += re.findall(r">(c\d+)</a>", page)
    assert shown == [f"c{number:03}" for number in range(120)]
    assert "51 to 100 of 120" in await site.get("/clients?begin=50&kind=PUSH_CONSUMER")


async def test_one_client_shows_its_groups_subscriptions_and_queues(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = view(
        "c",
        subscriptions=(SubscriptionView(topic="t", filter=FilterExpression.sql("a > 1")),),
        owned=tuple(MessageQueue("t", "a", number) for number in range(300)),
        inflight=7,
        brokers=("a",),
    )
    listed(monkeypatch, first, view("c", group="h", brokers=("b",)))
    page = await site.get("/clients/c")
    for text in ("Group g", "Group h", "SQL a &gt; 1", "7 deliveries", ">a, b</dd>", "100 more queues", "unknown"):
        assert text in page
    assert page.count("No subscription is known") == 1


async def test_stacks_are_shown_as_text_and_their_failure_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, view("c", command_brokers=("a",)))
    results: list[Any] = [
        "<script>x</script>\x1b[31m\n" + "y" * 100_000,
        RequestTimeout("no answer within 10 s"),
        NotImplementedYet("<b>not yet</b>"),
    ]

    async def stack(*_: Any) -> str:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return str(result)

    monkeypatch.setattr(aio.Admin, "client_stack", stack)
    page = (await site.post("/clients/c/stack", {}, status=200)).text
    assert "&lt;script&gt;x&lt;/script&gt;\\x1b[31m\ny" in page
    assert "more characters are not shown" in page
    assert len(page) < 80_000
    assert "no answer within 10 s" in (await site.post("/clients/c/stack", {}, status=200)).text
    assert "&lt;b&gt;not yet" in (await site.post("/clients/c/stack", {}, status=200)).text


async def test_nothing_of_a_client_becomes_markup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = '<script>x</script>"\u202egnp\x1b[31m'
    filters = (SubscriptionView(topic=bad, filter=FilterExpression(bad)),)
    queues = (MessageQueue(bad, bad, 1),)
    listed(
        monkeypatch,
        view(bad, kind=bad, group=bad, language=bad, version=bad, subscriptions=filters, owned=queues, brokers=(bad,)),
        silent=(bad,),
    )
    for path in ("/clients", f"/clients/{quote(bad, safe='')}"):
        page = re.sub('value="[^"]*"', "", await site.get(path))
        assert "<script>x" not in page
        assert not re.search("[\u202e\x1b]", page)


async def test_the_stack_needs_the_token_and_works_in_a_read_only_console(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(monkeypatch, view("c"))
    assert (await site.browser.post("/clients/c/stack", data={"token": "wrong"})).status_code == 403
    reader = await site.visitor(allow_changes=False)
    form = {"token": await token(reader)}
    assert (await reader.post("/clients/c/stack", data=form)).status_code == 200
