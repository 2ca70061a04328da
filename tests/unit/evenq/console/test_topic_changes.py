"""Safe changes of a topic by a plan: the fixes of the doctor."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from evenq.client.core.admin.views import QueueView
from evenq.console.topic_changes import TopicChange, _permit_rows
from evenq.errors import BadRequest
from evenq.model import MessageQueue, Permission
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_groups import hidden, rows, words


async def plan(browser: Browser, *, status: int = 200, **fields: object) -> str:
    response = await browser.get(f"/topic-plan?{urlencode(fields)}")
    assert response.status_code == status, response.text
    return response.text


async def confirm(browser: Browser, page: str, *, status: int = 303) -> str:
    response = await browser.send("POST", "/topic-plan", data=hidden(page), headers={"sec-fetch-site": "same-origin"})
    assert response.status_code == status, response.text
    location: str = response.headers.get("location", response.text)
    return location


async def test_a_topic_is_created_widened_and_made_readable_again(unguarded: ConsoleStage) -> None:
    browser, admin, during = unguarded.browser(await unguarded.app()), unguarded.admin(), unguarded.clock.during
    page = await plan(browser, change="create", topic="orders", queues=2)
    assert rows(page)[1:] == ["each broker not there 2 queues, type NORMAL"]
    assert await during(admin.list_topics()) == []
    assert (await confirm(browser, page)).startswith("/topics/orders?done=Created+topic+orders.")
    page = await plan(browser, change="scale", topic="orders", queues=4, broker="a")
    assert rows(page)[1:] == ["a 2 queues for sending, 2 for reading 4 queues for both"]
    await confirm(browser, page)
    assert len((await during(admin.describe_topic("orders"))).queues) == 4
    await during(admin.permit_topic("orders", "write"))
    page = await plan(browser, change="permit", topic="orders", permission="read-write")
    assert rows(page)[1:] == ["a WRITE READ_WRITE"]
    await confirm(browser, page)
    assert {one.permission for one in (await during(admin.describe_topic("orders"))).queues} == {"READ_WRITE"}


async def test_a_plan_that_changed_is_shown_again(unguarded: ConsoleStage) -> None:
    browser, admin, during = unguarded.browser(await unguarded.app()), unguarded.admin(), unguarded.clock.during
    await during(admin.create_topic("orders", queues=2))
    page = await plan(browser, change="scale", topic="orders", queues=8)
    await during(admin.scale_topic("orders", queues=3))
    assert "Nothing was done" in await confirm(browser, page, status=409)
    assert len((await during(admin.describe_topic("orders"))).queues) == 3


async def test_what_would_close_queues_or_forbid_something_is_refused(unguarded: ConsoleStage) -> None:
    browser, admin = unguarded.browser(await unguarded.app()), unguarded.admin()
    await unguarded.clock.during(admin.create_topic("orders", queues=4))
    fewer = await plan(browser, status=400, change="scale", topic="orders", queues=3)
    assert "would close some of them" in words(fewer)
    less = await plan(browser, status=400, change="permit", topic="orders", permission="read")
    assert "would take something from READ_WRITE" in words(less)
    assert "exists already" in words(await plan(browser, status=400, change="create", topic="orders"))


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"change": "delete", "topic": "orders"}, {"change": "create", "topic": "a b"},
        {"change": "create", "topic": "%DLQ%x"}, {"change": "scale", "topic": "orders"},
        {"change": "scale", "topic": "orders", "queues": "4097"}, {"change": "create", "topic": "t", "type": "BLUE"},
        {"change": "permit", "topic": "orders", "permission": "none"},
        {"change": "permit", "topic": "orders", "broker": "a/b"},
    ],
)  # fmt: skip
def test_a_change_that_makes_no_sense_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        TopicChange.parsed(lambda name: fields.get(name, ""))


def test_a_permission_is_never_taken_from_any_broker() -> None:
    def queue(broker: str, permission: str) -> QueueView:
        at = MessageQueue("orders", broker, 0)
        return QueueView(queue=at, min_offset=0, max_offset=0, last_store_ms=0, permission=permission)

    fields = {"change": "permit", "topic": "orders", "permission": "read"}
    change = TopicChange.parsed(lambda name: fields.get(name, ""))
    assert [one.broker for one in _permit_rows(change, [queue("b", "NONE"), queue("a", "READ")])] == ["a", "b"]
    with pytest.raises(BadRequest, match="from WRITE at broker b"):
        _permit_rows(change, [queue("a", "NONE"), queue("b", "WRITE")])
    assert Permission.READ.readable


async def test_a_topic_that_is_not_there_is_not_widened(unguarded: ConsoleStage) -> None:
    browser = unguarded.browser(await unguarded.app())
    await plan(browser, status=404, change="scale", topic="none", queues=2)
    read_only = unguarded.browser(await unguarded.app(allow_changes=False))
    page = await plan(read_only, change="create", topic="none")
    assert "This console is read-only." in page
