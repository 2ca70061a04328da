"""Delayed messages and their recall; transactions that were given up, and their checks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from evenq_broker.broker import Broker

from evenq.client.async_producer import Producer
from evenq.client.core.admin.query_views import FoundMessagesView, ScheduledMessageView, ScheduledView
from evenq.client.wiring import ClientContext
from evenq.errors import PreconditionFailed
from evenq.model import Message
from evenq.model.names import GIVEN_UP_TOPIC
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_groups import hidden, returns, rows, words

MINUTE_MS = 60_000


class Waiting:
    """A broker with a topic of delayed messages and one of transactions, and a console before it."""

    def __init__(self, stage: ConsoleStage, broker: Broker) -> None:
        self.stage, self.broker = stage, broker
        self.admin = stage.admin()

    async def begin(self) -> None:
        for topic, kind in (("calls", "DELAY"), ("payments", "TRANSACTION")):
            await self.stage.clock.during(self.admin.create_topic(topic, queues=1, message_type=kind))

    async def browser(self, **settings: Any) -> Browser:
        return self.stage.browser(await self.stage.app(**settings))

    async def send(self, browser: Browser, *, delay_s: int, **fields: str) -> None:
        sent = await browser.post(
            "/topics/calls/send", {"body": "ring", "delay_s": delay_s, **fields}, page="/topics/calls"
        )
        assert sent.status_code == 303, sent.text

    async def give_up(self) -> None:
        """Has a transaction given up: the producer goes away, and its time passes."""
        context = ClientContext(clock=self.stage.clock, rng=random.Random(4), net=self.stage.net)
        producer = Producer(endpoint="a:8081", context=context, checker=lambda _: None)
        message = Message(topic="payments", body=b"pay", tag="paid", keys=("k1",), properties={"p": "v"})
        await self.stage.clock.during(producer.begin_transaction(message))
        await self.stage.clock.during(producer.close())
        before = self.broker.transactions.stats.given_up
        for _ in range(200):
            await self.stage.clock.advance(MINUTE_MS)
            if self.broker.transactions.stats.given_up > before:
                return
        raise AssertionError("it was not given up")


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    async with AsyncExitStack() as stack:
        stage = ConsoleStage(stack)
        broker = await stage.broker(transaction_age_max_ms=600_000)
        waiting = Waiting(stage, broker)
        await waiting.begin()
        yield waiting


async def test_a_delayed_message_is_listed_and_recalled_after_a_plan(waiting: Waiting) -> None:
    browser = await waiting.browser()
    await waiting.send(browser, delay_s=3_600, tag="late", keys="k1 k2")
    await waiting.send(browser, delay_s=600, tag="soon")
    page = (await browser.get("/scheduled")).text
    assert [("soon" in row, "late" in row) for row in rows(page)[1:]] == [(True, False), (False, True)]
    assert "its time" in rows(page)[1]
    assert "k1 k2" in rows(page)[2]
    assert "No message waits" in (await browser.get("/scheduled?kind=TRANSACTION")).text
    assert "No message waits" in (await browser.get("/scheduled?topic=payments")).text
    [link] = [
        part.partition('"')[0] for part in rows_html(page, "late").split('href="')[1:] if part.startswith("/recall")
    ]
    plan = (await browser.get(unescape(link))).text
    assert "The message would never be delivered." in words(plan)
    assert "Tag late" in words(plan)
    assert (await waiting.stage.clock.during(waiting.admin.list_scheduled("calls"))).messages[1].tag == "late"
    done = await browser.send("POST", "/recall", data=hidden(plan), headers={"sec-fetch-site": "same-origin"})
    assert done.status_code == 303
    assert "Recalled message" in (await browser.get(done.headers["location"])).text
    assert [one.tag for one in (await waiting.stage.clock.during(waiting.admin.list_scheduled("calls"))).messages] == [
        "soon"
    ]


def rows_html(page: str, text: str) -> str:
    [row] = [one for one in page.split("<tr>")[1:] if f"<td>{text}</td>" in one]
    return row


async def test_a_handle_that_is_not_in_the_list_is_said_to_be_unknown_and_can_be_recalled(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await waiting.browser()
    await waiting.send(browser, delay_s=3_600)
    [message] = (await waiting.stage.clock.during(waiting.admin.list_scheduled("calls"))).messages
    returns(monkeypatch, "list_scheduled", ScheduledView(messages=(), more=True, silent=("b",)))
    plan = (await browser.get(f"/recall?{urlencode({'topic': 'calls', 'handle': message.recall_handle})}")).text
    assert "It may be an older one that waits" in words(plan)
    assert "No answer from b" in words(plan)
    done = await browser.send("POST", "/recall", data=hidden(plan), headers={"sec-fetch-site": "same-origin"})
    assert done.status_code == 303
    for handle in ("", "x" * 5_000, "a\nb", "\u00fc"):
        assert (await browser.get(f"/recall?topic=calls&handle={quote(handle)}")).status_code == 400
    assert (await browser.get("/recall?topic=calls&handle=d1.a.00")).status_code == 200
    fields = hidden(plan) | {"handle": "d1.a.00"}
    wrong = await browser.send("POST", "/recall", data=fields, headers={"sec-fetch-site": "same-origin"})
    assert wrong.status_code == 400
    assert "was not made by this broker" in wrong.text


async def test_a_list_that_is_not_whole_says_what_it_lacks(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ScheduledMessageView(
        broker_name="a", topic="calls", kind="DELAY", due_ms=0, stored_ms=0, message_id="", tag="", keys=(),
        body_bytes=0, recall_handle="",
    )  # fmt: skip
    browser = await waiting.browser()
    returns(monkeypatch, "list_scheduled", ScheduledView(messages=(one,), more=True, silent=("b",)))
    page = (await browser.get("/scheduled")).text
    assert "No answer from b: the result lacks the messages that wait there." in words(page)
    assert "later ones wait, too" in page
    assert rows(page)[1].startswith("unknown now calls its time without id")
    assert "/recall?" not in page, "without a handle"
    returns(monkeypatch, "list_scheduled", ScheduledView(messages=(), more=False, silent=("b",)))
    assert "No message waits at the brokers that answer." in (await browser.get("/scheduled")).text
    assert (await browser.get("/scheduled?kind=odd")).status_code == 400


async def test_a_given_up_transaction_is_listed_and_checked_again_after_a_plan(waiting: Waiting) -> None:
    browser = await waiting.browser()
    assert "No transaction was given up." in (await browser.get("/transactions")).text
    await waiting.give_up()
    page = (await browser.get("/transactions")).text
    [row] = rows(page)[1:]
    assert " payments " in row
    assert " paid k1 3 bytes Check again" in row
    assert "No transaction matches." in (await browser.get("/transactions?q=orders")).text
    assert "Check again" in (await browser.get("/transactions?q=payments")).text
    plan = (await browser.get("/transactions/a/0/0")).text
    assert "Nothing has changed yet." in plan
    assert "Topic payments" in words(plan)
    done = await browser.send(
        "POST", "/transactions/a/0/0", data=hidden(plan), headers={"sec-fetch-site": "same-origin"}
    )
    assert done.status_code == 303, done.text
    assert "is open again and will be checked" in (await browser.get(done.headers["location"])).text
    waits = (await browser.get("/scheduled?kind=TRANSACTION")).text
    assert "payments the check of its transaction" in rows(waits)[1]


async def test_a_check_that_is_refused_says_why(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await waiting.browser()
    await waiting.give_up()
    token = hidden((await browser.get("/transactions/a/0/0")).text)
    returns(monkeypatch, "check_again", PreconditionFailed("the broker takes it for a repeated send"))
    refused = await browser.send("POST", "/transactions/a/0/0", data=token, headers={"sec-fetch-site": "same-origin"})
    assert refused.status_code == 409
    assert "takes it for a repeated send" in refused.text


async def test_a_place_without_a_transaction_is_not_found(waiting: Waiting) -> None:
    browser = await waiting.browser()
    for place in ("a/0/0", "a/x/0", "a/0/-1", "a/4294967296/0", f"a/0/{'9' * 30}", "a/0/\u0663"):
        assert (await browser.get(f"/transactions/{quote(place, safe='/')}")).status_code == 404, place


async def test_a_message_of_another_origin_cannot_be_checked(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await waiting.browser()
    await waiting.give_up()
    found = await waiting.stage.clock.during(waiting.admin.peek_messages(GIVEN_UP_TOPIC))
    [message] = found.messages
    odd = replace(message, origin_topic="", properties={})
    returns(monkeypatch, "get_message", odd)
    page = (await browser.get("/transactions/a/0/0")).text
    assert "Its topic is unknown, so it cannot be checked again." in page
    assert 'action="/transactions' not in page
    view = FoundMessagesView(messages=(odd,), more=True, positions={}, silent=("b",))
    returns(monkeypatch, "peek_messages", view)
    listed = (await browser.get("/transactions")).text
    assert " unknown unknown " in rows(listed)[1]
    assert "No answer from b: the result lacks the transactions there." in words(listed)
    assert "Search older ones" in listed


async def test_a_read_only_console_shows_all_of_it_and_changes_nothing(waiting: Waiting) -> None:
    await waiting.send(await waiting.browser(), delay_s=3_600)
    await waiting.give_up()
    browser = await waiting.browser(allow_changes=False)
    assert "Recall" not in words((await browser.get("/scheduled")).text)
    plan = (await browser.get("/transactions/a/0/0")).text
    assert "This console is read-only." in plan
    assert 'method="post"' not in plan
    for path in ("/recall", "/transactions/a/0/0"):
        answer = await browser.send("POST", path, data={"token": "x"}, headers={"sec-fetch-site": "same-origin"})
        assert answer.status_code == 403
    assert len((await waiting.stage.clock.during(waiting.admin.list_scheduled("calls"))).messages) == 1


async def test_a_user_sees_only_what_its_grants_allow(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    root = guarded.browser(app)
    await root.sign_in()
    await root.post("/topics", {"topic": "orders", "queues": 1, "type": "DELAY"}, page="/topics")
    await root.post("/topics/orders/send", {"body": "x", "delay_s": 3_600}, page="/topics/orders")
    assert "Recall" in words((await root.get("/scheduled")).text)
    reader = guarded.browser(app)
    await reader.sign_in("reader")
    assert (await reader.get("/scheduled")).status_code == 403, "all topics need all rights"
    page = (await reader.get("/scheduled?topic=orders")).text
    assert len(rows(page)) == 2
    assert "/recall?topic=orders&amp;handle" not in page, "a reader may not publish, so it gets no handle"
    assert (await reader.get("/transactions")).status_code == 403
