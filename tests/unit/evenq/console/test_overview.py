"""The first page, with samples of a cluster in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from evenq.client.core.admin.views import MissingBrokerView
from evenq.console import overview
from evenq.console.figures import INTERVAL_MS, Figures
from evenq.console.pages import Console
from evenq.console.sessions import Principal, UserSessions
from evenq.console.settings import ConsoleSettings
from evenq.errors import ConnectionFailed, Forbidden, Unauthorized
from evenq.runtime.clock import FakeClock
from tests.unit.evenq.console.conftest import ConsoleStage
from tests.unit.evenq.console.fake_admin import FakeAdmin, broker, cluster, group


class Overview:
    """The pages of `overview` for a fake cluster."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.admin = FakeAdmin(self.clock)
        settings = ConsoleSettings(endpoint="a:8081")
        self.sessions = UserSessions(settings, self.clock)
        self.principal: Principal = self.sessions.without_keys()
        self.principal.figures = Figures(self.admin.client, self.clock)
        app = Starlette(routes=overview.routes(Console.of(settings, self.sessions, self.clock)))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")

    async def get(self, path: str = "/", **options: Any) -> httpx.Response:
        return await self.clock.during(self.client.get(path, **options))


@pytest.fixture
async def page() -> AsyncIterator[Overview]:
    page = Overview()
    yield page
    await page.client.aclose()
    await page.sessions.close()


async def test_a_broker_is_shown_with_its_rates(page: Overview) -> None:
    page.admin.clusters = cluster([broker(messages_in=100)], topics=3)
    first = await page.get()
    assert "All brokers answer." in first.text
    assert first.text.count('<td class="n">unknown</td><td class="n">unknown</td>') == 1, "rates, with one sample"
    page.admin.clusters = cluster([broker(messages_in=200)], topics=3)
    await page.clock.advance(INTERVAL_MS)
    assert '<td class="n">20/s</td><td class="n">0/s</td>' in (await page.get()).text


async def test_a_broker_that_does_not_answer_is_unknown_and_not_zero(page: Overview) -> None:
    page.admin.clusters = cluster([broker(answered=False)])
    text = (await page.get()).text
    row = text[text.index('<th scope="row">a</th>') :].partition("</tr>")[0]
    assert "does not answer" in row
    assert row.count("unknown") == 6
    assert ">0" not in row
    assert "This broker does not answer." in text
    assert "All brokers answer." not in text


async def test_a_missing_broker_and_a_silent_rebalancer_are_findings(page: Overview) -> None:
    gone = MissingBrokerView(name="b", gone_ms=1_700_000_000_000, unread=0, dead_letters=0)
    page.admin.clusters = cluster([broker()], missing=(gone,), rebalancer="r:1")
    text = (await page.get()).text
    assert "evenq broker forget b --yes" in text
    assert "missing since" in text
    assert "The rebalancer does not answer" in text


async def test_a_failing_call_leaves_the_rest_of_the_page(page: Overview) -> None:
    page.admin.clusters = cluster([broker()])
    page.admin.groups = Forbidden("user u may not describe groups")
    text = (await page.get()).text
    assert '<th scope="row">a</th>' in text
    assert "user u may not describe groups" in text
    assert "No consumer group yet" not in text, "unknown is not none"
    page.admin.clusters = ConnectionFailed("no nameserver answers")
    page.admin.groups = [group("billing", 7)]
    await page.clock.advance(INTERVAL_MS)
    text = (await page.get()).text
    assert "no nameserver answers" in text
    assert "billing" in text
    assert "All brokers answer." not in text


async def test_a_cluster_that_cannot_be_read_at_all_is_an_error(page: Overview) -> None:
    page.admin.fail()
    answer = await page.get()
    assert answer.status_code == 503
    assert "no broker answers" in answer.text


async def test_a_cluster_with_users_leads_to_the_sign_in(page: Overview) -> None:
    page.admin.clusters = page.admin.topics = page.admin.groups = Unauthorized("no keys")
    answer = await page.get()
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2F"


async def test_groups_with_the_most_lag_come_first_and_a_lower_bound_is_marked(page: Overview) -> None:
    page.admin.groups = [group(f"g{number}", number) for number in range(20)] + [group("half", 5, silent=("b",))]
    text = (await page.get()).text
    shown = [f"g{number}" for number in range(20) if f">g{number}</a>" in text]
    assert shown == [f"g{number}" for number in range(12, 20)]
    page.admin.groups = [group("half", 5, silent=("b",))]
    await page.clock.advance(INTERVAL_MS)
    assert "at least 5" in (await page.get()).text


async def test_a_history_is_numbers_in_order_of_time(page: Overview) -> None:
    page.admin.clusters = cluster([broker(messages_in=5)])
    await page.get()
    page.admin.clusters = cluster([broker(messages_in=7)])
    await page.clock.advance(INTERVAL_MS)
    answer = await page.get("/history/in/a")
    assert answer.headers["content-type"] == "application/json"
    times, values = answer.json()
    assert times == sorted(times)
    assert values == [5.0, 7.0]


@pytest.mark.parametrize("name", ["", "<b>", "a/b", "%41", "../x", "\x00", "a" * 5_000])
async def test_the_history_of_an_unknown_name_is_empty(page: Overview, name: str) -> None:
    answer = await page.get("/history/in/" + quote(name, safe=""))
    assert (answer.status_code, answer.json()) == (200, [[], []])


async def test_the_part_that_is_refreshed_shows_a_new_sample(page: Overview) -> None:
    page.admin.clusters = cluster([broker()], topics=1)
    await page.get()
    page.admin.clusters = cluster([broker()], topics=41)
    await page.clock.advance(INTERVAL_MS)
    part = await page.get(headers={"hx-request": "true"})
    assert "41 topics" in part.text


async def test_many_pages_at_a_time_read_the_cluster_once(page: Overview) -> None:
    page.admin.takes_ms = 100
    answers = await page.clock.during(asyncio.gather(*(page.client.get("/") for _ in range(50))))
    assert {answer.status_code for answer in answers} == {200}
    assert page.admin.calls == 3


async def test_a_user_without_grants_sees_an_error_and_no_name(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    await browser.sign_in("nobody")
    answer = await browser.get("/")
    assert answer.status_code == 403
    assert "user nobody may not" in answer.text
    assert '<th scope="row">' not in answer.text
