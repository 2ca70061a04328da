"""The attacks of docs/internals/console_attacks.md on every page, also on those that are added later: pages and forms
are read from the routes of the application.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from evenq.console.groups import TABS
from tests.unit.evenq.console.conftest import TOKEN, Browser, ConsoleStage

ROOT = Path(__file__).resolve().parents[4]
PROTECTION = ("content-security-policy", "x-frame-options", "x-content-type-options", "referrer-policy")
WITHOUT_USER = {"/login", "/healthz", "/logout"}
READING_FORMS = ("/protobuf", "/stack")
"""Ends of the addresses of forms that change nothing in the cluster."""
WITHOUT_CALL = ("/plan", "/messages", "/replay", "/new-group", "/topic-plan", "/recall")
"""Ends of the addresses of pages that call the cluster only with a query, or show a replay of the session."""
TEXTS = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)><a title=\"",
    "'><svg/onload=alert(1)>",
    "' onmouseover='alert(1)' x='",
    "\" autofocus onfocus=alert(1) x=\"",
    "</textarea></title></script><script>alert(1)</script>",
    "<div hx-get=/logout hx-trigger=load></div>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<base href=//evil.example>",
    "<!--",
    "]]><x>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;script&gt;&#60;b&#62;",
    "javascript:alert(1)",
    "\u2028\u2029\ufeff\u202e",
    "\ufffd\U0001f4a5",
    "\x1b[31m\u202eevil",
]  # fmt: skip
FIELD = re.compile(r'value="[^"]*"|<textarea.*?</textarea>', re.DOTALL)
"""A field of a form: it keeps control characters and direction marks, as they are sent back."""


class Shape(HTMLParser):
    """Elements and names of attributes of a page: text must not add any."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, ...]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", data))


def paths(app: Starlette, method: str) -> list[str]:
    """Returns an address of each route with this method."""
    values = {"topic": "orders", "kind": "in", "group": "billing"}
    routes = [one for one in app.routes if isinstance(one, Route) and method in (one.methods or ())]
    return [re.sub(r"\{(\w+)(:\w+)?\}", lambda part: values.get(part[1], "0"), one.path) for one in routes]


async def signed_in(stage: ConsoleStage, app: Starlette, user: str = "root") -> Browser:
    browser = stage.browser(app)
    assert (await browser.sign_in(user)).status_code == 303
    return browser


async def with_orders(stage: ConsoleStage, app: Starlette) -> Browser:
    browser = await signed_in(stage, app)
    made = await browser.post("/topics", {"topic": "orders", "queues": 1, "type": "NORMAL"}, page="/topics")
    assert made.status_code == 303
    return browser


def sent(field: str) -> Callable[[Browser, str], Awaitable[httpx.Response]]:
    """Returns how to show a text in a field of a message: the page of its topic."""

    async def show(browser: Browser, text: str) -> httpx.Response:
        fields = {"body": "x", field: json.dumps({"p": text}) if field == "properties" else text}
        answer = await browser.post("/topics/orders/send", fields, page="/topics/orders")
        return answer if answer.status_code != 303 else await browser.get("/topics/orders")

    return show


def read(address: str) -> Callable[[Browser, str], Awaitable[httpx.Response]]:
    """Returns how to show a text in an address."""

    async def show(browser: Browser, text: str) -> httpx.Response:
        return await browser.get(address.format(quote(text, safe="")))

    return show


def delayed(field: str) -> Callable[[Browser, str], Awaitable[httpx.Response]]:
    """Returns how to show a text in a field of a delayed message: the list of those that wait."""

    async def show(browser: Browser, text: str) -> httpx.Response:
        fields = {"topic": "later", "queues": 1, "type": "DELAY"}
        assert (await browser.post("/topics", fields, page="/topics")).status_code == 303
        fields = {"body": "x", "delay_s": 3_600, field: text}
        answer = await browser.post("/topics/later/send", fields, page="/topics/later")
        return answer if answer.status_code != 303 else await browser.get("/scheduled?topic=later")

    return show


async def wrong_key(browser: Browser, text: str) -> httpx.Response:
    return await browser.post("/login", {"access_key": text, "secret_key": "x", "next": text})


async def wrong_topic(browser: Browser, text: str) -> httpx.Response:
    return await browser.post("/topics", {"topic": text, "queues": 1, "type": text}, page="/topics")


PLACES: dict[str, Callable[[Browser, str], Awaitable[httpx.Response]]] = {
    "body of a message": sent("body"),
    "tag": sent("tag"),
    "key": sent("keys"),
    "property": sent("properties"),
    "message group": sent("message_group"),
    "search": read("/topics?q={}"),
    "order of a list": read("/topics?sort={}"),
    "number in a query": read("/topics?begin={}"),
    "sentence of a change": read("/topics?done={}&proof=x"),
    "page after the sign-in": read("/login?next={}"),
    "name of a topic in an address": read("/topics/{}"),
    "name of a group in a form": read("/new-group?group={}"),
    "name of a group in a plan": read("/new-group/plan?group={}"),
    "strategy in a plan": read("/new-group/plan?group=billing&strategy={}"),
    "pauses in a plan": read("/new-group/plan?group=billing&retry=CUSTOMIZED&delays={}"),
    "topics in a plan": read("/new-group/plan?group=billing&topics={}"),
    "topic in a plan": read("/topic-plan?change=create&topic={}"),
    "broker in a plan": read("/topic-plan?change=scale&topic=orders&queues=8&broker={}"),
    "topic of delayed messages": read("/scheduled?topic={}"),
    "tag of a delayed message": delayed("tag"),
    "keys of a delayed message": delayed("keys"),
    "handle of a recall": read("/recall?topic=orders&handle={}"),
    "topic of a recall": read("/recall?topic={}&handle=x"),
    "search for transactions": read("/transactions?q={}"),
    "place of a transaction": read("/transactions/{}/0/0"),
    "name with rights": read("/rights?name={}"),
    "kind of rights": read("/rights?kind={}"),
    "topic of schedules": read("/schedules?topic={}"),
    "name of a schedule": read("/schedules/orders/{}"),
    "schedule in a plan": read("/schedules/plan?change=run&topic=orders&name={}"),
    "change in a plan of a schedule": read("/schedules/plan?change={}"),
    "address without a page": read("/none/{}"),
    "tab of a group": read("/groups/billing?tab={}"),
    "unknown parameter": read("/?{}=1"),
    "name of a new topic": wrong_topic,
    "access key": wrong_key,
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_text_from_outside_is_text_on_every_page(guarded: ConsoleStage, place: str) -> None:
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    for text in TEXTS:
        hostile = await PLACES[place](browser, text)
        assert hostile.status_code < 500, (text, hostile.text)
        shape = Shape(hostile.text).elements
        assert not [one for one in shape if any(name.startswith("on") for name in one[1:])], text
        assert [one for one in shape if one[0] == "script"] == [("script", "src", "defer")] * 3
        assert not [one for one in shape if one[0] in ("img", "base", "comment", "x", "iframe", "object", "embed")]
        assert [one for one in shape if one[0] == "meta"] == [("meta", "charset")] + [("meta", "name", "content")] * 2
        assert sum("hx-get" in one for one in shape) <= 1
        assert not re.search("[\u202e\x1b]", FIELD.sub("", hostile.text)), text


@pytest.mark.parametrize("allow_changes", [True, False])
async def test_a_page_has_one_heading_and_skips_no_level(guarded: ConsoleStage, allow_changes: bool) -> None:
    """A screen reader lists headings; also on errors and addresses without a page."""
    await with_orders(guarded, await guarded.app())
    app = await guarded.app(allow_changes=allow_changes)
    browser = await signed_in(guarded, app)
    tabs = [f"/groups/billing?tab={tab}" for tab in TABS]
    await guarded.clock.during(guarded.admin().create_group("billing"))
    for path in [*paths(app, "GET"), *tabs, "/topics/orders", "/topics/none", "/none", "/new-group/plan?group=g"]:
        answer = await browser.get(path)
        if not answer.headers["content-type"].startswith("text/html") or answer.status_code == 303:
            continue
        levels = [int(name[1]) for name, *_ in Shape(answer.text).elements if re.fullmatch("h[1-6]", name)]
        assert levels[:1] == [1], path
        assert levels.count(1) == 1, path
        assert all(after <= before + 1 for before, after in pairwise(levels)), (path, levels)
        assert len(re.findall("<main ", answer.text)) == 1, path
        bare = [one for one in Shape(answer.text).elements if one[0] == "th" and "scope" not in one]
        assert bare == [], path


async def test_every_response_to_every_address_is_protected(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    user, stranger = await with_orders(guarded, app), guarded.browser(app)
    own = {"sec-fetch-site": "same-origin"}
    for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW"):
        for path in {*paths(app, "GET"), *paths(app, "POST"), "/static/console.js", "/static/none", "/none"}:
            for browser in (user, stranger):
                answer = await browser.send(method, path, headers=own)
                assert answer.status_code < 500, (method, path)
                assert not [name for name in PROTECTION if name not in answer.headers], (method, path)
                kept = path == "/static/console.js" and answer.status_code == 200
                assert answer.headers["cache-control"] == ("no-cache" if kept else "no-store")
                assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_a_stranger_gets_the_sign_in_from_every_page(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    await with_orders(guarded, app)
    stranger = guarded.browser(app)
    for path in paths(app, "GET"):
        answer = await stranger.get(path)
        if path in WITHOUT_USER:
            assert answer.status_code == 200
        elif path.endswith(WITHOUT_CALL):
            assert answer.status_code in (200, 400, 404)
            assert "<tbody>" not in answer.text
            assert "orders" not in answer.text
        elif path.startswith("/history/"):
            assert answer.text == "[[],[]]"
        else:
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next="), path
            assert answer.text == ""


async def test_a_form_of_a_stranger_is_not_read(guarded: ConsoleStage) -> None:
    """Parsing one takes seconds, and unfinished bodies use the bytes that all forms share."""
    app = await guarded.app()
    stranger = guarded.browser(app)
    read: list[str] = []
    headers = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}

    async def body(path: str) -> AsyncIterator[bytes]:
        read.append(path)
        yield b"&" * 1_000

    for path in set(paths(app, "POST")) - WITHOUT_USER:
        answer = await stranger.send("POST", path, content=body(path), headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
    assert read == []


async def test_a_user_without_grants_gets_no_name_and_no_figure_from_any_page(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    await with_orders(guarded, app)
    nobody = await signed_in(guarded, app, "nobody")
    for path in paths(app, "GET"):
        for answer in (await nobody.get(path), await nobody.refresh(path)):
            assert answer.status_code < 500, path
            assert "<tbody>" not in answer.text, path
            if "orders" not in path:  # the error repeats the name of the address
                assert "orders" not in answer.text, path


async def test_every_form_needs_a_token_of_its_session_and_the_origin_of_the_console(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    user, attacker = await with_orders(guarded, app), guarded.browser(app)
    foreign = await attacker.token()
    for path in paths(app, "POST"):
        for token in ("", foreign, "0" * 64):
            headers = {"sec-fetch-site": "same-origin"}
            answer = await user.send("POST", path, data={"token": token, "confirm": "orders"}, headers=headers)
            assert answer.status_code == 403, path
        right = await user.token("/topics")
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "none"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
        ):
            answer = await user.send("POST", path, data={"token": right, "confirm": "orders"}, headers=headers)
            assert answer.status_code == 403, (path, headers)
    assert (await user.get("/topics/orders")).status_code == 200


async def test_a_read_only_console_refuses_every_form_that_changes_something(guarded: ConsoleStage) -> None:
    await with_orders(guarded, await guarded.app())
    app = await guarded.app(allow_changes=False)
    user = await signed_in(guarded, app)
    token = await user.token("/topics")
    for path in paths(app, "POST"):
        if path not in WITHOUT_USER and not path.endswith(READING_FORMS):
            headers = {"sec-fetch-site": "same-origin"}
            answer = await user.send("POST", path, data={"token": token, "confirm": "orders"}, headers=headers)
            assert answer.status_code == 403, path
            assert "--allow-changes" in answer.text, path
    for path in paths(app, "GET"):
        page = (await user.get(path)).text
        actions = re.findall(r'<form method="post" action="([^"]*)"', page)
        assert set(actions) <= {"/logout", "/login"}, path
    assert (await user.get("/topics/orders")).status_code == 200


async def test_a_form_is_not_sent_by_a_link(guarded: ConsoleStage) -> None:
    """An address that only takes forms is not found, or is the page of the same address."""
    app = await guarded.app()
    user = await with_orders(guarded, app)
    token = await user.token("/topics")
    for path in set(paths(app, "POST")) - set(paths(app, "GET")):
        answer = await user.get(f"{path}?token={token}&confirm=orders&body=x")
        assert answer.status_code in (404, 405, 400), path
    assert (await user.get("/topics/orders")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../pages.py", "/static/%2e%2e/pages.py", "/static/%2e%2e%2fpages.py", "/static/..%2f..%2fpages.py",
        "/static/..%5cpages.py", "/static/%252e%252e/pages.py", "/static//etc/passwd", "/static/%2fetc/passwd",
        "/static/....//pages.py", "/static/\u2025/pages.py", "/static/%c0%ae%c0%ae/pages.py", "/static/%00",
        "/static/console.js%00.html", "/static/" + "a/" * 3_000, "/static/" + "a" * 5_000, "/static/.",
        "/static/../templates/base.html", "/templates/base.html",
    ],
)  # fmt: skip
async def test_only_static_files_are_read(guarded: ConsoleStage, path: str) -> None:
    browser = guarded.browser(await guarded.app())
    raw = path.encode()
    answer = await browser.get(httpx.URL(browser.origin).copy_with(raw_path=raw) if raw.isascii() else path)  # type: ignore[arg-type]
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize(
    "name",
    ["..%2f..%2fetc%2fpasswd", "%2e%2e", "%00", "%0d%0aset-cookie:%20a=b", "%ff", "a%2Fsend", "%2F%2Fevil.example"],
)
async def test_the_name_of_a_topic_is_only_a_name(guarded: ConsoleStage, name: str) -> None:
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    answer = await browser.get(f"/topics/{name}")
    assert answer.status_code in (400, 404)
    assert "a" not in browser.client.cookies
    stranger = guarded.browser(app)
    led = await stranger.get(f"/topics/{name}")
    assert led.status_code == 404 or re.fullmatch(r"/login\?next=[\w%.+-]+", led.headers["location"])
    deleted = await browser.post(f"/topics/{name}/delete", {"confirm": name}, page="/topics/orders")
    assert deleted.status_code in (400, 404)


@pytest.mark.parametrize("text", ["a\r\nset-cookie: a=b", "a\nb", "a\x00b", "\u010d\u010a", "x" * 20_000])
async def test_no_text_splits_a_response(guarded: ConsoleStage, text: str) -> None:
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    answers = [
        await browser.sign_in(target="/topics?q=" + text),
        await browser.post("/topics", {"topic": text, "queues": 1, "type": "NORMAL"}, page="/topics"),
        await browser.post("/topics/orders/send", {"body": text, "keys": text}, page="/topics/orders"),
        await browser.get("/topics", params={"q": text, "done": text}),
    ]
    for answer in answers:
        assert answer.status_code < 500
        assert not [value for value in answer.headers.values() if re.search("[\r\n\x00]", value)]
        assert "a" not in browser.client.cookies


async def test_a_page_in_a_frame_of_another_site_is_refused_by_its_headers(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    for path in [*paths(app, "GET"), "/static/console.js", "/none", "/topics/none"]:
        answer = await browser.get(path)
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_page_has_no_script_and_no_style_of_its_own(guarded: ConsoleStage) -> None:
    """The content security policy would refuse them; so a mistake in a template is found here."""
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    await browser.post("/topics/orders/send", {"body": "x"}, page="/topics/orders")
    for path in [*paths(app, "GET"), "/topics/none"]:
        text = (await browser.get(path)).text
        assert not re.search(r"<style|\sstyle=|<script(?! src=)|\son\w+=|javascript:", text), path
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text), path


async def test_a_socket_is_refused(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    messages: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "websocket", "path": "/topics", "headers": [], "query_string": b"", "subprotocols": []}
    await app(scope, receive, send)
    assert [one["type"] for one in messages] == ["websocket.close"]


async def test_secrets_are_on_no_page(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    browser = await with_orders(guarded, app)
    for path in paths(app, "GET"):
        text = (await browser.get(path)).text
        assert "secret-of" not in text
        assert browser.session_id not in text
        assert len(TOKEN.findall(text)) == len(re.findall('method="post"', text)), "each form has its token"


def test_the_page_about_attacks_names_tests_that_exist() -> None:
    page = (ROOT / "docs/internals/console_attacks.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) >= 15
    for path, test in named:
        source = (ROOT / path).read_text()
        assert not test or f"def {test}(" in source, f"{path}::{test}"
