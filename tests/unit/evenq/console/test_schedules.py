"""Recurring messages in the console: their list, one with its message, and changes after a plan."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import SchedulesView
from evenq.model import Message
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_attacks import TEXTS, Shape


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of the last form of a page."""
    last = page.rpartition("<form")[2]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', last)
    return {unescape(name): unescape(value) for name, value in found}


async def opened(stage: ConsoleStage, user: str = "root", **settings: Any) -> Browser:
    browser = stage.browser(await stage.app(**settings))
    await browser.sign_in(user)
    return browser


async def made(stage: ConsoleStage, name: str = "nightly", **fields: Any) -> None:
    """Topic `orders`, with a schedule."""
    admin = stage.admin()
    await stage.clock.during(admin.create_topic("orders", queues=1))
    values = {"topic": "orders", "body": b'{"run": 1}', "tag": "a", "keys": ("k1",), "properties": {"p": "v"}, **fields}
    await stage.clock.during(admin.create_schedule(name, Message(**values), every="10s"))


async def changed(browser: Browser, plan: str) -> Any:
    headers = {"sec-fetch-site": "same-origin"}
    return await browser.send("POST", "/schedules/plan", data=hidden(plan), headers=headers)


async def plan_of(browser: Browser, change: str) -> str:
    answer = await browser.get(f"/schedules/plan?change={change}&topic=orders&name=nightly")
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_schedules_are_listed_and_shown_with_their_message(guarded: ConsoleStage) -> None:
    browser = await opened(guarded)
    assert "No schedule. Create one:" in (await browser.get("/schedules")).text
    await made(guarded)
    await guarded.clock.advance(25_000)
    for path in ("/schedules", "/schedules?topic=orders"):
        assert " nightly orders every 10s active " in text_of((await browser.get(path)).text)
    page = (await browser.get("/schedules/orders/nightly")).text
    shown = text_of(page)
    assert "Messages 2, and 0 missed times without one" in shown
    assert "Tag a Keys k1" in shown
    assert "p v" in shown
    assert '"run": 1' in unescape(page)
    for path, status in (
        ("/schedules/orders/none", 404),
        ("/schedules/none/nightly", 404),
        ("/schedules?topic=no", 404),
    ):
        assert (await browser.get(path)).status_code == status


async def test_a_schedule_is_paused_resumed_run_and_deleted_after_a_plan(guarded: ConsoleStage) -> None:
    browser = await opened(guarded)
    await made(guarded)
    plan = await plan_of(browser, "pause")
    assert "Nothing has changed yet. It sends no message until it is resumed" in plan
    done = await changed(browser, plan)
    page = (await browser.get(done.headers["location"])).text
    assert "Schedule nightly is paused." in page
    assert "State paused" in text_of(page)
    stale = await changed(browser, plan)
    assert (stale.status_code, "The cluster has changed since" in stale.text) == (409, True)
    done = await changed(browser, await plan_of(browser, "resume"))
    assert "Schedule nightly is resumed." in (await browser.get(done.headers["location"])).text
    plan = await plan_of(browser, "run")
    sent = {(await changed(browser, plan)).headers["location"] for _ in range(2)}
    assert len(sent) == 1, "one message, with one id"
    [found] = (await guarded.clock.during(guarded.admin().find_messages("orders"))).messages
    assert found.message_id in sent.pop()
    done = await changed(browser, await plan_of(browser, "delete"))
    assert "Deleted schedule nightly of topic orders." in (await browser.get(done.headers["location"])).text
    assert (await browser.get("/schedules/plan?change=run&topic=orders&name=nightly")).status_code == 404
    for query in ("change=odd&topic=orders&name=nightly", "change=run&topic=orders", ""):
        assert (await browser.get(f"/schedules/plan?{query}")).status_code == 400


async def test_a_read_only_console_offers_no_change(guarded: ConsoleStage) -> None:
    await made(guarded)
    browser = await opened(guarded, allow_changes=False)
    assert "change=pause" not in (await browser.get("/schedules/orders/nightly")).text
    plan = await plan_of(browser, "delete")
    assert "This console is read-only." in plan
    token = hidden(plan)["token"]
    fields = {"token": token, "change": "delete", "topic": "orders", "name": "nightly"}
    answer = await browser.send("POST", "/schedules/plan", data=fields, headers={"sec-fetch-site": "same-origin"})
    assert (answer.status_code, "--allow-changes" in answer.text) == (403, True)


async def test_without_the_grant_nothing_is_shown_and_nothing_changed(guarded: ConsoleStage) -> None:
    await made(guarded)
    plan = await plan_of(await opened(guarded), "delete")
    for user in ("reader", "nobody"):
        browser = await opened(guarded, user)
        for path in (
            "/schedules",
            "/schedules?topic=orders",
            "/schedules/orders/nightly",
            "/schedules/plan?change=pause&topic=orders&name=nightly",
        ):
            answer = await browser.get(path)
            assert (answer.status_code, "every 10s" in answer.text) == (403, False), path
        fields = hidden(plan) | {"token": await browser.token("/")}
        answer = await browser.send("POST", "/schedules/plan", data=fields, headers={"sec-fetch-site": "same-origin"})
        assert answer.status_code == 403
    assert (await guarded.clock.during(guarded.admin().describe_schedule("orders", "nightly"))).name == "nightly"


async def test_brokers_that_do_not_answer_are_named(guarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_admin: Admin, _topic: str = "") -> SchedulesView:
        return SchedulesView(schedules=(), silent=("b",))

    monkeypatch.setattr(Admin, "list_schedules", silent)
    page = text_of((await (await opened(guarded)).get("/schedules")).text)
    assert "No answer from b: the result lacks the schedules there. No schedule at the brokers that answer." in page


@pytest.mark.parametrize("text", TEXTS)
async def test_hostile_content_is_text(guarded: ConsoleStage, text: str) -> None:
    kept = "".join(one for one in text if one.isprintable()) or "x"
    key = kept.replace(" ", "_")
    await made(guarded, body=text.encode(), keys=(key,), properties={"p": kept})
    browser = await opened(guarded)
    plain = ("/schedules/orders/nightly", "/schedules", "/schedules/plan?change=run&topic=orders&name=nightly")
    for path in plain:
        answer = await browser.get(path)
        assert answer.status_code == 200, answer.text
        shape = Shape(answer.text).elements
        assert not [one for one in shape if any(name.startswith("on") for name in one[1:])]
        assert [one for one in shape if one[0] == "script"] == [("script", "src", "defer")] * 3
        assert not [one for one in shape if one[0] in ("img", "base", "comment", "x", "iframe", "object", "embed")]


async def test_the_largest_body_is_shown(guarded: ConsoleStage) -> None:
    await made(guarded, body=b"\x00\xff" * 8_000, tag="", keys=(), properties={})
    page = (await (await opened(guarded)).get("/schedules/orders/nightly")).text
    assert "00 ff 00 ff" in page
    assert "16\u202f000 bytes" in page
