"""Topics: the list, one topic, and the forms that send, create and delete."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from starlette.datastructures import FormData

from evenq.console.figures import IDLE_MS, INTERVAL_MS
from evenq.console.pages import ROWS
from evenq.console.topics import message_of
from evenq.errors import BadRequest
from tests.unit.evenq.console.conftest import Browser, ConsoleStage


async def signed_in(stage: ConsoleStage, user: str = "root") -> Browser:
    browser = stage.browser(await stage.app())
    await browser.sign_in(user)
    return browser


async def create(browser: Browser, name: str = "orders", **fields: object) -> Any:
    return await browser.post("/topics", {"topic": name, "queues": 2, "type": "NORMAL", **fields}, page="/topics")


async def send(browser: Browser, **fields: object) -> Any:
    return await browser.post("/topics/orders/send", {"body": "hello", **fields}, page="/topics/orders")


class FormVisit:
    """A visit with a form, and nothing else."""

    def __init__(self, **fields: str) -> None:
        self.form = FormData(fields)

    def text(self, name: str, default: str = "") -> str:
        return str(self.form.get(name, default))

    def number(self, name: str, *, most: int) -> int:
        return int(str(self.form.get(name) or 0))


async def test_a_topic_is_created_listed_and_deleted(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    made = await create(browser)
    assert made.headers["location"].startswith("/topics/orders?done=")
    await guarded.clock.advance(INTERVAL_MS)
    assert '<a href="/topics/orders">orders</a>' in (await browser.get("/topics")).text
    wrong = await browser.post("/topics/orders/delete", {"confirm": "order"}, page="/topics/orders")
    assert wrong.status_code == 400
    assert "type the name orders" in wrong.text
    gone = await browser.post("/topics/orders/delete", {"confirm": "orders"}, page="/topics/orders")
    assert gone.headers["location"].startswith("/topics?done=Deleted")
    assert (await browser.get("/topics/orders")).status_code == 404


async def test_a_sent_message_is_on_the_page_of_its_topic(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    await create(browser)
    fields = {"body": "Grüße", "tag": "paid", "keys": "k1 k2", "properties": '{"region": "eu"}'}
    sent = await send(browser, **fields)
    assert sent.status_code == 303, sent.text
    text = (await browser.refresh("/topics/orders")).text
    for value in ("Grüße", "paid", "k1 k2"):
        assert f">{value}<" in text


async def test_a_line_break_of_a_form_is_one_byte_of_the_message(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    await create(browser)
    await send(browser, body="a\r\nb\nc\r")
    found = await guarded.clock.during(guarded.admin().peek_messages("orders"))
    assert [one.body for one in found.messages] == [b"a\nb\nc\r"]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../x", "a\r\nb", "a\x00b", "<script>", "%RETRY%x", "ü", "x" * 200, "x" * 100_000, "a?b#c"],
)
async def test_a_name_that_is_not_allowed_is_refused_with_a_reason(guarded: ConsoleStage, name: str) -> None:
    browser = await signed_in(guarded)
    answer = await create(browser, name)
    assert answer.status_code == 400
    assert "<script>" not in answer.text.partition("<main")[2]
    assert (await browser.get("/topics/" + quote(name[:2_000], safe=""))).status_code in (400, 404)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"properties": "x"}, "properties are not JSON"),
        ({"properties": "[" * 200_000}, "properties are not JSON"),
        ({"properties": '{"a": ' + "9" * 10_000 + "}"}, "properties are not JSON"),
        ({"properties": "[]"}, "JSON object with texts"),
        ({"properties": '{"a": 1}'}, "JSON object with texts"),
        ({"properties": '{"a": "\\ud800"}'}, "JSON object with texts"),
        ({"properties": '{"\\udfff": "a"}'}, "JSON object with texts"),
        ({"body": ""}, "body"),
        ({"tag": "a|b"}, "tag"),
        ({"delay_s": "-1"}, "delay_s"),
        ({"delay_s": "x"}, "delay_s"),
        ({"delay_s": str(366 * 86_400)}, "delay_s"),
    ],
)
async def test_a_message_that_is_not_valid_is_refused_with_a_reason(
    guarded: ConsoleStage, fields: dict[str, str], text: str
) -> None:
    browser = await signed_in(guarded)
    await create(browser)
    answer = await send(browser, **fields)
    assert answer.status_code == 400, answer.text
    assert text in answer.text.partition("<main")[2]


@pytest.mark.parametrize(
    "fields",
    [
        {"tag": "a\x00b"}, {"keys": "\x00"}, {"message_group": "\x00" * 10}, {"message_group": "x" * 100_000},
        {"tag": "x" * 100_000}, {"keys": "k " * 50_000}, {"properties": '{"KEYS": "x", "UNIQ_KEY": "y"}'},
        {"properties": '{"": ""}'}, {"properties": '{"a\\u0001b": "c\\u0002d"}'}, {"body": "\x00\x1b[31m"},
    ],
)  # fmt: skip
async def test_odd_fields_of_a_message_are_sent_or_refused(guarded: ConsoleStage, fields: dict[str, str]) -> None:
    browser = await signed_in(guarded)
    await create(browser)
    answer = await send(browser, **fields)
    assert answer.status_code in (303, 400), answer.text
    assert (await browser.get("/topics/orders")).status_code == 200


def test_the_fields_of_a_form_are_those_of_the_message() -> None:
    form: Any = FormVisit(body="b", tag=" t ", keys="k1  k2", properties='{"p": "v"}', message_group=" g ", delay_s="2")
    message = message_of(form, "orders")
    assert (message.topic, message.body, message.tag, message.keys) == ("orders", b"b", "t", ("k1", "k2"))
    assert (message.properties, message.message_group, message.delay) == ({"p": "v"}, "g", 2_000)
    empty: Any = FormVisit(body="b", tag=" ")
    message = message_of(empty, "orders")
    assert (message.tag, message.keys, message.message_group, message.delay) == (None, (), None, None)
    nested: Any = FormVisit(body="b", properties="{" * 3)
    with pytest.raises(BadRequest):
        message_of(nested, "orders")


async def test_names_are_searched_and_sorted_and_listed_by_pages(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    admin = guarded.admin()
    for number in range(ROWS + 5):
        await guarded.clock.during(admin.create_topic(f"t{number:03}", queues=1))
    await guarded.clock.advance(INTERVAL_MS)
    first = (await browser.get("/topics")).text
    assert (">t000<" in first, f">t{ROWS:03}<" in first) == (True, False)
    assert f'href="/topics?begin={ROWS}&amp;q=&amp;sort=topic"'.replace("&amp;q=", "") in first
    second = (await browser.get(f"/topics?begin={ROWS}")).text
    assert (">t000<" in second, f">t{ROWS:03}<" in second) == (False, True)
    found = (await browser.get("/topics", params={"q": "T01"})).text
    assert (">t010<" in found, ">t020<" in found) == (True, False)
    for sort in ("topic", "messages", "rate", "<script>", "\x00"):
        assert (await browser.get("/topics", params={"sort": sort})).status_code == 200
    beyond = (await browser.get("/topics?begin=5000")).text
    assert "No topic" not in beyond
    assert "No topic with this text." in (await browser.get("/topics?q=zzz")).text


async def test_the_rate_of_a_topic_is_never_from_before_a_pause(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    await create(browser)
    await guarded.clock.advance(INTERVAL_MS)
    await browser.get("/topics/orders")
    await send(browser)
    await guarded.clock.advance(INTERVAL_MS)
    assert "<dt>In</dt><dd>0.2/s</dd>" in (await browser.get("/topics/orders")).text
    guarded.clock.spend(2 * IDLE_MS)
    await guarded.clock.advance(INTERVAL_MS)
    await browser.get("/topics/orders")
    assert "<dt>In</dt><dd>unknown</dd>" in (await browser.get("/topics/orders")).text


async def test_a_user_sees_and_changes_what_the_grants_allow(guarded: ConsoleStage) -> None:
    root, reader = await signed_in(guarded), await signed_in(guarded, "reader")
    await create(root)
    await create(root, "salaries")
    assert (await reader.get("/topics/orders")).status_code == 200
    assert (await reader.get("/topics/salaries")).status_code == 403
    for path, fields in (
        ("/topics/orders/send", {"body": "x"}),
        ("/topics/orders/delete", {"confirm": "orders"}),
        ("/topics/salaries/delete", {"confirm": "salaries"}),
        ("/topics", {"topic": "new", "queues": 1, "type": "NORMAL"}),
    ):
        answer = await reader.post(path, fields, page="/topics/orders")
        assert answer.status_code == 403, (path, answer.text)
        assert "user reader may not" in answer.text
    assert (await root.get("/topics/salaries")).status_code == 200


async def test_a_topic_whose_messages_may_not_be_read_is_shown_without_them(guarded: ConsoleStage) -> None:
    root, viewer = await signed_in(guarded), await signed_in(guarded, "viewer")
    await create(root)
    await send(root, body="confidential")
    page = await viewer.get("/topics/orders")
    assert page.status_code == 200
    assert "user viewer may not" in page.text
    assert "<dd>1 messages</dd>" in page.text
    assert "confidential" not in page.text
    assert "No message yet." not in page.text
