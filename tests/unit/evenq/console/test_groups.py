"""The pages of groups before real brokers in this process; reports that need a rebalancer come from the test."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from html import unescape
from itertools import pairwise
from typing import Any
from urllib.parse import unquote_plus

import httpx
import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

from evenq.client.async_admin import Admin
from evenq.client.async_producer import Producer
from evenq.client.core.admin.views import (
    DiagnosisView,
    ExplainedQueueView,
    ExplainView,
    FindingView,
    GroupDetails,
    GroupTroublesView,
    GroupView,
    OffsetMoveView,
    QueueMoveView,
    SimulationView,
)
from evenq.client.wiring import ClientContext
from evenq.console import group_changes
from evenq.console.app import create_app
from evenq.console.group_changes import OffsetChange, kind_of, time_of
from evenq.console.settings import ConsoleSettings
from evenq.errors import BadRequest, GroupNotFound
from evenq.model import BrokerAddress, Message, MessageQueue
from evenq.runtime.clock import FakeClock
from tests.unit.evenq_broker.conftest import know

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
MESSAGES = 12


class Pages:
    """Brokers `a` and `b`, and consoles before them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self.brokers: list[Broker] = []
        self._context = ClientContext(clock=self.clock, rng=random.Random(1), net=self.net)
        self.admin = Admin(endpoint="a:8081", context=self._context)
        self.producers = {name: Producer(endpoint=f"{name}:8081", context=self._context) for name in ("a", "b")}

    async def start(self, *names: str) -> None:
        for name in names:
            settings = BrokerSettings(broker_name=name, duplicates_window_ms=0, default_start_from="FIRST")
            broker = Broker(settings, clock=self.clock, rng=random.Random(name), net=self.net)
            await broker.open()
            self.net.serve(f"{name}:8081", broker.rpcs())
            await self.clock.during(broker.start([BrokerAddress("default", name, 8081)]))
            self.stack.push_async_callback(self._ended, broker)
            self.brokers.append(broker)
        know(*self.brokers)

    async def console(self, *, allow_changes: bool = True) -> Browser:
        app = create_app(ConsoleSettings(endpoint="a:8081", allow_changes=allow_changes), self.clock, self.net)
        await self.stack.enter_async_context(app.router.lifespan_context(app))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080")
        return Browser(await self.stack.enter_async_context(client), self.clock)

    async def _ended(self, broker: Broker) -> None:
        await self.clock.during(broker.close())

    async def create_topic(self, topic: str, *, queues: int = 1) -> None:
        await self.clock.during(self.admin.create_topic(topic, queues=queues))

    async def fill(self, group: str = "billing", *, read: int = 4, topic: str = "orders") -> None:
        """A topic with one queue per broker and `MESSAGES` in each, of which the group has read `read`."""
        await self.create_topic(topic)
        for producer in self.producers.values():  # each broker's route has its own queues only
            for at in range(MESSAGES):
                await producer.send(Message(topic=topic, body=f"{at}".encode()))
        await self.admin.create_group(group)
        await self.admin.reset_offsets(group, topic=topic, to=read, dry_run=False)

    async def positions(self, group: str = "billing") -> list[int]:
        return [one.committed for one in await self.clock.during(self.admin.group_offsets(group))]


class Browser:
    def __init__(self, client: httpx.AsyncClient, clock: FakeClock) -> None:
        self.client, self._clock = client, clock

    async def get(self, path: str, *, status: int = 200, fragment: bool = False) -> str:
        response = await self._clock.during(self.client.get(path, headers={"hx-request": "true"} if fragment else {}))
        assert response.status_code == status, response.text
        assert "<script>alert" not in response.text
        assert " style=" not in response.text
        return response.text

    async def post(self, path: str, fields: dict[str, str], *, status: int = 303) -> str:
        response = await self._clock.during(self.client.post(path, data=fields))
        assert response.status_code == status, response.text
        return response.headers["location"] if status == 303 else response.text

    async def confirm(self, plan: str, path: str = "/groups/billing/move", *, status: int = 303) -> str:
        return await self.post(path, hidden(plan), status=status)


def hidden(page: str) -> dict[str, str]:
    return {name: unescape(value) for name, value in HIDDEN.findall(page)}


def words(html: str) -> str:
    """The text of a page, with single blanks."""
    return " ".join(unescape(TAG.sub(" ", html)).split())


def rows(page: str) -> list[str]:
    return [words(row) for row in ROW.findall(page)]


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    async with AsyncExitStack() as stack:
        pages = Pages(stack)
        await pages.start("a", "b")
        for producer in pages.producers.values():
            stack.push_async_callback(producer.close)
        yield pages


def group_of(name: str, *, lag: int = 0, silent: tuple[str, ...] = ()) -> GroupView:
    return GroupView(
        group=name, ordered=False, max_attempts=17, strategy="", members=0, topics=1, lag=lag, silent=silent
    )


def returns(monkeypatch: pytest.MonkeyPatch, method: str, value: object) -> list[dict[str, Any]]:
    """Makes an admin method return a value, or raise it; returns its calls."""
    calls: list[dict[str, Any]] = []

    async def answer(_admin: Admin, *_names: str, **arguments: Any) -> object:
        calls.append(arguments)
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(Admin, method, answer)
    return calls


# ---------------------------------------------------------------------------------------------------------- the list


async def test_the_list_shows_lag_at_once_and_ages_when_it_is_refreshed(pages: Pages) -> None:
    await pages.fill()
    await pages.admin.create_group("idle")
    browser = await pages.console()
    page = await browser.get("/groups")
    assert [row.split()[0] for row in rows(page)[1:]] == ["billing", "idle"]  # most lag first
    assert "16 loading" in rows(page)[1]
    assert "0 none" in rows(page)[2]
    again = rows(await browser.get("/groups", fragment=True))
    assert re.match(r"billing 16 \d+ (ms|s) ", again[1])
    assert "0 none" in again[2]
    assert re.match(r"billing 16 \d+ (ms|s) ", rows(await browser.get("/groups?times=1"))[1])  # without JavaScript


async def test_the_list_is_filtered_and_sorted_by_name(pages: Pages) -> None:
    for name in ("b-2", "a-1", "b-1"):
        await pages.admin.create_group(name)
    browser = await pages.console()
    assert [row.split()[0] for row in rows(await browser.get("/groups?sort=group"))[1:]] == ["a-1", "b-1", "b-2"]
    assert [row.split()[0] for row in rows(await browser.get("/groups?sort=group&q=B-"))[1:]] == ["b-1", "b-2"]
    assert "No group with this text" in await browser.get("/groups?q=zzz")


async def test_a_page_of_500_groups_calls_describe_for_its_rows_only_and_eight_at_a_time(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns(monkeypatch, "list_groups", [group_of(f"g-{at:03}", lag=at) for at in range(500)])
    running, most, named = 0, 0, []

    async def describe(_admin: Admin, group: str) -> GroupDetails:
        nonlocal running, most
        named.append(group)
        running += 1
        most = max(most, running)
        await pages.clock.sleep_ms(2)
        running -= 1
        if group == "g-498":
            raise GroupNotFound("deleted meanwhile")
        troubles = GroupTroublesView(oldest_ms=pages.clock.now_ms() - 180_000)
        return GroupDetails(summary=group_of(group, lag=1), members=(), queues=(), troubles=troubles)

    monkeypatch.setattr(Admin, "describe_group", describe)
    browser = await pages.console()
    page = await browser.get("/groups")
    assert "1 to 50 of 500" in words(page)
    assert not named
    again = rows(await browser.get("/groups", fragment=True))
    assert again[1].startswith("g-499 499 3 min")
    assert again[2].startswith("g-498 498 unknown")
    assert len(named) == 50
    assert most == 8
    await browser.get("/groups?begin=450", fragment=True)
    assert len(named) == 99  # the last one has no lag


async def test_rows_that_do_not_answer_in_time_are_unknown(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    returns(monkeypatch, "list_groups", [group_of("slow", lag=5)])

    async def describe(_admin: Admin, _group: str) -> GroupDetails:
        return await asyncio.Future()

    monkeypatch.setattr(Admin, "describe_group", describe)
    monkeypatch.setattr("evenq.console.groups.WAIT_MS_MAX", 20)
    browser = await pages.console()
    assert rows(await browser.get("/groups", fragment=True))[1].startswith("slow 5 unknown")


async def test_names_are_quoted_in_links_and_escaped_in_text(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    returns(monkeypatch, "list_groups", [group_of(name) for name in ("100%_odd", "a/b", "<script>alert(1)</script>")])
    browser = await pages.console()
    page = await browser.get("/groups")
    assert 'href="/groups/100%25_odd"' in page
    assert 'href="/groups/a%2Fb"' in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;script&gt;" in await browser.get("/groups/%3Cscript%3Ealert(1)%3C%2Fscript%3E", status=404)
    await browser.get("/groups/a%2Fb", status=404)
    await pages.admin.create_group("100%_odd")
    assert "<h1>100%_odd</h1>" in await browser.get("/groups/100%25_odd")


async def test_a_silent_broker_makes_lag_a_lower_bound_and_the_age_unknown(pages: Pages) -> None:
    await pages.fill()
    await pages.admin.create_group("idle")
    pages.net.stop("b:8081")
    browser = await pages.console()
    page = await browser.get("/groups", fragment=True)
    assert "No answer from b: the result lacks the progress of groups there." in words(page)
    assert re.match(r"billing at least 8 unknown, at least \d+ (ms|s) ", rows(page)[1])
    assert "at least 0 unknown" in rows(page)[2]


# ---------------------------------------------------------------------------------------------------------- one group


async def test_a_group_shows_its_queues_and_where_it_stands_in_them(pages: Pages) -> None:
    await pages.fill()
    await pages.fill("other", read=0, topic="jobs")
    browser = await pages.console()
    page = await browser.get("/groups/billing")
    assert 'data-history="/history/lag/billing"' in page
    queue = rows(page)[1]
    assert queue.startswith("orders a 0 no member 4 12 8 0 at 2")
    assert "loading the times" in queue
    again = rows(await browser.get("/groups/billing", fragment=True))[1]
    assert len(re.findall(r"20\d\d-\d\d-\d\dT", again)) == 3  # where it stands, the first message, the newest
    assert 'tab=move&amp;topic=orders&amp;broker=a&amp;queue=0"' in page
    assert "read nothing of this topic" in await browser.get("/groups/billing?topic=jobs")


async def test_positions_that_do_not_exist_are_named_as_such(pages: Pages) -> None:
    await pages.fill(read=MESSAGES)
    await pages.create_topic("empty", queues=2)
    begun = MessageQueue("empty", "a", 0)
    await pages.admin.reset_offsets("billing", topic="empty", queues=[begun], to=0, dry_run=False)
    browser = await pages.console()
    page = words(await browser.get("/groups/billing", fragment=True))
    assert "12 12 0 0 at the end" in page
    assert "empty a 0 no member 0 0 0 0 empty" in page
    assert "empty a 1 no member none yet 0 0 0 empty" in page
    assert " -1 " not in page


@pytest.mark.parametrize("tab", ["queues", "members", "why", "doctor", "simulate", "move"])
async def test_each_tab_of_a_group_is_a_page_with_headings_in_order(pages: Pages, tab: str) -> None:
    await pages.fill()
    browser = await pages.console()
    page = await browser.get(f"/groups/billing?tab={tab}")
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert not re.findall(r"<th(?! scope)[ >]", page)
    assert len(re.findall(r"<(?:input(?! type=.hidden)|select)", page)) == page.count("<label")


async def test_a_form_is_about_the_queue_that_was_chosen(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    page = await browser.get("/groups/billing?tab=move&topic=%25RETRY%25billing&broker=a&queue=0")
    assert page.count("<option selected>%RETRY%billing</option>") == 3
    assert page.count('name="broker" value="a"') == 3
    assert page.count('min="0" value="0"') == 3


async def test_an_unknown_group_or_tab_is_not_found(pages: Pages) -> None:
    browser = await pages.console()
    for path in ("/groups/nope", "/groups/nope?tab=why", "/groups/nope/delete", "/groups/nope/plan?change=reset"):
        assert "no consumer group" in unescape(await browser.get(path, status=404))
    await pages.admin.create_group("g")
    assert "its tabs are queues" in await browser.get("/groups/g?tab=secrets", status=404)


async def test_a_group_names_the_brokers_that_are_silent(pages: Pages) -> None:
    await pages.fill()
    pages.net.stop("b:8081")
    browser = await pages.console()
    page = words(await browser.get("/groups/billing"))
    assert "Lag at least 8 messages" in page
    assert "Members at least 0" in page
    assert "at least 0 wait for a retry" in page
    assert "No answer from b: the result lacks its queues there" in page
    assert "No answer from b" in words(await browser.get("/groups/billing?tab=doctor"))
    assert "No member is connected to the brokers that answer" in await browser.get("/groups/billing?tab=members")


async def test_why_lists_the_newest_moves_first(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.fill()

    def queue(at: int, since_ms: int, owner: str, before: str = "", state: str = "OWNED") -> ExplainedQueueView:
        return ExplainedQueueView(
            queue=MessageQueue("orders", "a", at),
            state=state,
            owner=owner,
            since_ms=since_ms,
            reason=f"reason {at}",
            previous_owner=before,
            owner_zone="",
            broker_zone="z1",
        )

    view = ExplainView(
        group="billing",
        decides="the rebalancer",
        strategy="ALL_BROKERS",
        generation="7.3",
        queues=(
            queue(0, 1_000, "c-1"),
            queue(1, 9_000, "c-2", "c-1"),
            queue(2, 0, "", state="UNOWNED"),
            queue(3, 0, "*"),
        ),
        idle={"<script>alert": "more members than queues"},
        problems=("zones differ",),
    )
    calls = returns(monkeypatch, "explain_group", view)
    browser = await pages.console()
    page = await browser.get("/groups/billing?tab=why&topic=orders")
    listed = rows(page)
    assert listed[1:3] == [
        "1970-01-01T00:00:09.000Z orders on a, queue 1 c-1 c-2 reason 1",
        "1970-01-01T00:00:01.000Z orders on a, queue 0 none known c-1 reason 0",
    ]
    assert "orders on a, queue 2 unowned no member unknown reason 2 none known unknown z1" in listed
    assert "orders on a, queue 3 owned every member unknown reason 3 none known unknown z1" in listed
    assert "zones differ" in page
    assert "every member reads every broker" in page
    assert calls == [{"topic": "orders"}]


async def test_the_doctor_shows_each_finding_with_its_fix(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.fill()
    found = FindingView(
        kind="STUCK_HEAD", severity="ERROR", subject="orders a/0", seen="It stands.", fix="Skip it.", command="evenq x"
    )
    view = DiagnosisView(findings=(found,), decides="locks", members=1, queues=2, brokers=("a",), silent=("b",))
    returns(monkeypatch, "diagnose_group", view)
    browser = await pages.console()
    page = words(await browser.get("/groups/billing?tab=doctor"))
    assert "error: orders a/0 It stands. Skip it. evenq x" in page
    assert "No answer from b" in page


async def test_a_simulation_shows_moves_shares_and_zones(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.fill()
    queues = tuple(
        ExplainedQueueView(
            queue=MessageQueue("orders", "a", at),
            state="OWNED",
            owner="c-1" if at else "c-2",
            since_ms=0,
            reason="",
            previous_owner="",
            owner_zone="",
            broker_zone="",
        )
        for at in range(3)
    )
    now = ExplainView(group="billing", decides="r", strategy="AVG", generation="", queues=queues, idle={}, problems=())
    result = SimulationView(
        topic="orders",
        queues=3,
        moves=(QueueMoveView(queue=MessageQueue("orders", "a", 0), before="c-2", after=""),),
        moved=1,
        unowned=0,
        share_min=1,
        share_max=1,
        other_zone_before=4,
        other_zone_after=5,
        strategy="STICKY",
    )
    returns(monkeypatch, "explain_group", now)
    calls = returns(monkeypatch, "simulate_group", [result])
    browser = await pages.console()
    page = rows(await browser.get("/groups/billing?tab=simulate&members=3&strategy=STICKY"))
    assert "orders 3 1 0 1 to 2 1 4 5 STICKY" in page
    assert "orders on a, queue 0 c-2 no member" in page
    assert calls == [{"topic": "", "members": 3, "queues": 0, "strategy": "STICKY", "lose_zone": ""}]
    await browser.get("/groups/billing?tab=simulate&members=x", status=400)


async def test_a_simulation_that_is_refused_keeps_the_form(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    page = await browser.get("/groups/billing?tab=simulate&members=3")
    assert 'role="alert"' in page  # there is no rebalancer
    assert 'name="members" type="number" min="1" value="3"' in page


# ---------------------------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("query", "after", "effect"),
    [
        ("to=first", [0, 0], "4 again"),
        ("to=last", [12, 12], "8 skipped"),
        ("to=offset&offset=6", [6, 6], "2 skipped"),
        ("to=time&at=1h", [0, 0], "4 again"),
        ("to=first&topic=orders", [0, 0], "4 again"),
        ("to=first&topic=orders&broker=b&queue=0", [4, 0], "4 again"),
        ("to=offset&offset=99", [12, 12], "99 is not there yet"),
    ],
)
async def test_a_reset_shows_its_plan_and_applies_it(pages: Pages, query: str, after: list[int], effect: str) -> None:
    await pages.fill()
    browser = await pages.console()
    plan = await browser.get(f"/groups/billing/plan?change=reset&{query}")
    assert effect in words(plan)
    assert "Nothing has changed yet." in plan
    assert await pages.positions() == [4, 4]
    location = await browser.confirm(plan)
    assert location.startswith("/groups/billing?done=Moved")
    assert await pages.positions() == after
    assert "Moved group billing in " in await browser.get(location)
    again = await browser.get(f"/groups/billing/plan?change=reset&{query}")
    assert "0 skipped" not in words(again)
    assert "done=Group billing stays.&" in unquote_plus(await browser.confirm(again))


async def test_a_group_that_never_read_a_topic_has_no_position_in_the_plan(pages: Pages) -> None:
    await pages.fill()
    await pages.admin.create_group("new")
    browser = await pages.console()
    plan = await browser.get("/groups/new/plan?change=reset&to=first&topic=orders")
    assert "orders on a, queue 0 no member none yet 0 first position 0" in rows(plan)


async def test_a_skip_that_is_sent_twice_skips_once(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    plan = await browser.get("/groups/billing/plan?change=skip&topic=orders&broker=a&queue=0&count=1")
    assert "1 skipped" in words(plan)
    await browser.confirm(plan)
    assert await pages.positions() == [5, 4]
    assert "The plan has changed" in await browser.confirm(plan, status=409)
    assert await pages.positions() == [5, 4]
    plan = await browser.get("/groups/billing/plan?change=skip&topic=orders&broker=b&queue=0")
    assert "8 skipped" in words(plan)
    twice = [browser.client.post("/groups/billing/move", data=hidden(plan)) for _ in range(2)]
    await pages.clock.during(asyncio.gather(*twice))
    assert await pages.positions() == [5, 12]


async def test_a_group_takes_the_position_of_another(pages: Pages) -> None:
    await pages.fill()
    await pages.admin.create_group("copy")
    browser = await pages.console()
    plan = await browser.get("/groups/copy/plan?change=clone&source=billing")
    await browser.confirm(plan, "/groups/copy/move")
    assert await pages.positions("copy") == [4, 4]
    await browser.get("/groups/copy/plan?change=clone&source=nope", status=404)


async def test_a_plan_that_has_changed_is_shown_again(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    plan = await browser.get("/groups/billing/plan?change=reset&to=last")
    await pages.admin.reset_offsets("billing", to="latest", dry_run=False)
    await pages.producers["a"].send(Message(topic="orders", body=b"more"))
    await browser.confirm(plan)  # still forward: the same kind
    plan = await browser.get("/groups/billing/plan?change=reset&to=last")
    await pages.create_topic("jobs")
    await pages.admin.reset_offsets("billing", topic="jobs", to="earliest", dry_run=False)
    before = await pages.positions()
    again = await browser.confirm(plan, status=409)
    assert "The plan has changed since it was shown. Nothing was done" in again
    assert "jobs on a, queue 0" in words(again)
    assert await pages.positions() == before
    await browser.confirm(again)


async def test_an_old_plan_is_shown_again(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    fields = hidden(await browser.get("/groups/billing/plan?change=reset&to=first"))
    old = f"{int(fields['planned_ms']) - group_changes.PLAN_MS - 1}"
    again = await browser.post("/groups/billing/move", fields | {"planned_ms": old}, status=409)
    assert "older than ten minutes" in again
    assert await pages.positions() == [4, 4]
    await browser.confirm(again)
    assert await pages.positions() == [0, 0]


async def test_the_time_of_a_plan_stays_when_it_is_confirmed(pages: Pages) -> None:
    await pages.fill()
    browser = await pages.console()
    fields = hidden(await browser.get("/groups/billing/plan?change=reset&to=time&at=2h"))
    assert abs(int(fields["at"]) + 7_200_000 - pages.clock.now_ms()) < 60_000


async def test_a_silent_broker_is_not_moved_and_is_named(pages: Pages) -> None:
    await pages.fill()
    pages.net.stop("b:8081")
    browser = await pages.console()
    plan = await browser.get("/groups/billing/plan?change=reset&to=first")
    assert "1 of 2 rows cannot be moved" in words(plan)
    assert rows(plan)[1].startswith("all topics on b, all queues unknown unknown unknown not moved unknown")
    result = words(await browser.confirm(plan, status=200))
    assert "The plan was applied, except on 1 of 2 rows" in result
    assert await pages.positions() == [0]


async def test_notes_of_an_applied_plan_are_shown(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.fill()
    browser = await pages.console()

    def move(note: str) -> list[OffsetMoveView]:
        queue = MessageQueue("orders", "a", 0)
        return [OffsetMoveView(queue=queue, before=4, after=0, inflight=3, owner="c-1", error="", note=note)]

    async def reset(_admin: Admin, *_names: str, dry_run: bool = True, **_arguments: object) -> list[OffsetMoveView]:
        return move("" if dry_run else "c-1 starts there when its call has ended")

    monkeypatch.setattr(Admin, "reset_offsets", reset)
    plan = await browser.get("/groups/billing/plan?change=reset&to=first")
    assert "3 deliveries are forgotten" in words(plan)
    assert "c-1 starts there when its call has ended" in await browser.confirm(plan, status=200)


@pytest.mark.parametrize(
    "query",
    [
        "change=burn",
        "change=reset&to=moon",
        "change=reset&to=time",
        "change=reset&to=time&at=yesterday",
        "change=reset&to=offset",
        "change=reset&to=offset&offset=-1",
        "change=reset&to=offset&offset=9223372036854775808",
        "change=reset&to=first&topic=orders&broker=a",
        "change=reset&to=first&broker=a&queue=0",
        "change=reset&to=first&topic=orders&broker=a&queue=x",
        "change=reset&to=first&topic=orders&broker=a&queue=77",
        "change=skip&topic=orders",
        "change=skip&topic=orders&broker=a&queue=0&count=0",
        "change=clone",
        "change=clone&source=billing",
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(pages: Pages, query: str) -> None:
    await pages.fill()
    browser = await pages.console()
    await browser.get(f"/groups/billing/plan?{query}", status=400)


async def test_a_group_is_deleted_after_its_name_was_typed(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.fill()
    browser = await pages.console()
    plan = await browser.get("/groups/billing/delete")
    assert "its progress in 2 queues" in plan
    fields = hidden(plan)
    await browser.post("/groups/billing/delete", fields | {"confirm": "orders"}, status=400)
    details = await pages.admin.describe_group("billing")
    joined = GroupDetails(summary=group_of("billing", silent=("b",)), members=(), queues=details.queues)
    with monkeypatch.context() as changed:
        returns(changed, "describe_group", joined)
        again = await browser.post("/groups/billing/delete", fields | {"confirm": "billing"}, status=409)
    assert "It was not deleted" in again
    assert [one.group for one in await pages.admin.list_groups()] == ["billing"]
    assert (await browser.post("/groups/billing/delete", fields | {"confirm": "billing"})).startswith("/groups?done=")
    assert await pages.admin.list_groups() == []


async def test_a_group_with_members_is_not_offered_for_deletion(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = GroupView(group="g", ordered=False, max_attempts=17, strategy="", members=2, topics=1, lag=0)
    returns(monkeypatch, "describe_group", GroupDetails(summary=summary, members=(), queues=()))
    browser = await pages.console()
    page = await browser.get("/groups/g/delete")
    assert "stop them first" in page
    assert 'name="confirm"' not in page


@pytest.mark.parametrize("path", ["/groups/billing/move", "/groups/billing/delete"])
async def test_forms_need_a_token_and_a_console_that_may_change(pages: Pages, path: str) -> None:
    await pages.fill()
    browser = await pages.console()
    fields = hidden(await browser.get("/groups/billing/plan?change=reset&to=first")) | {"confirm": "billing"}
    await browser.post(path, fields | {"token": "0" * 64}, status=403)
    await browser.post(path, {name: value for name, value in fields.items() if name != "token"}, status=403)
    reader = await pages.console(allow_changes=False)
    plan = await reader.get("/groups/billing/plan?change=reset&to=first")
    assert "This console is read-only." in plan
    assert "Apply this plan" not in plan
    assert "Type billing" not in await reader.get("/groups/billing/delete")
    login = await reader.get("/login")
    assert "read-only" in await reader.post(path, fields | hidden(login), status=403)
    assert await pages.positions() == [4, 4]


# ------------------------------------------------------------------------------------------------------ pure functions


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("30s", 70_000),
        ("1 m ago", 40_000),
        ("1d", 0),
        ("12345", 12_345),
        ("1970-01-01T00:00:05", 5_000),
        ("1970-01-01T01:00:05+01:00", 5_000),
        ("1960-01-01", 0),
    ],
)
def test_times_are_ages_dates_in_utc_or_milliseconds(text: str, at_ms: int) -> None:
    assert time_of(text, now_ms=100_000) == at_ms


@pytest.mark.parametrize("text", ["", "soon", "٣s", "9" * 30, "-5"])
def test_a_time_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="the time is"):
        time_of(text, now_ms=100_000)


def moves_of(*offsets: Sequence[int]) -> list[OffsetMoveView]:
    return [
        OffsetMoveView(
            queue=MessageQueue("t", "a", at), before=before, after=after, inflight=0, owner="", error="", note=""
        )
        for at, (before, after) in enumerate(offsets)
    ]


def change_of(**fields: str) -> OffsetChange:
    return OffsetChange.parsed(lambda name: fields.get(name, ""), now_ms=0)


def test_the_kind_of_a_plan_is_its_targets_or_its_direction() -> None:
    first, last = change_of(change="reset", to="first"), change_of(change="reset", to="last")
    assert kind_of(first, moves_of((5, 0))) == kind_of(first, moves_of((9, 0)))
    assert kind_of(first, moves_of((5, 0))) != kind_of(first, moves_of((5, 1)))
    assert kind_of(last, moves_of((5, 9))) == kind_of(last, moves_of((9, 12)))
    assert kind_of(last, moves_of((5, 9))) != kind_of(last, moves_of((12, 9)))
    assert kind_of(last, moves_of((5, 9))) != kind_of(last, moves_of((5, 9), (5, 9)))


@pytest.mark.parametrize(
    "fields",
    [
        {"change": "reset", "to": "first"},
        {"change": "reset", "to": "time", "at": "77", "topic": "t"},
        {"change": "reset", "to": "offset", "offset": "0", "topic": "t", "broker": "a", "queue": "0"},
        {"change": "skip", "to": "last", "topic": "t", "broker": "a", "queue": "3", "count": "2"},
        {"change": "skip", "to": "last", "topic": "t", "broker": "a", "queue": "3"},
        {"change": "clone", "to": "last", "source": "g"},
    ],
)
def test_the_fields_of_a_change_give_the_same_change(fields: dict[str, str]) -> None:
    assert change_of(**fields).fields() == fields
