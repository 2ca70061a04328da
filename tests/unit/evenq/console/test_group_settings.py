"""A group is created or changed, with its topics, after a plan."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette

from evenq.client.async_admin import Admin
from evenq.console.group_settings import FIELDS, GroupRequest
from evenq.console.plans import PLAN_MS
from evenq.errors import BadRequest, ConnectionFailed
from evenq.model import BalancePolicy, MessageType, Weight
from evenq.model.retry import RetryKind, RetryPolicy
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_groups import hidden, rows, words

ALL = {
    "group": "audit", "topics": "logs, orders", "queues": "3", "type": "FIFO", "ordered": "yes", "max_attempts": "5",
    "strategy": "STICKY", "start_from": "FIRST", "retry": "CUSTOMIZED", "delays": "1s 10s", "weight": "LAG",
    "moves_max": "50", "hold": "30s", "hold_lag_max": "1000",
}  # fmt: skip


async def begun(stage: ConsoleStage, **settings: bool) -> tuple[Starlette, Browser]:
    app = await stage.app(**settings)
    browser = stage.browser(app)
    await stage.clock.during(stage.admin().create_topic("orders", queues=2))
    return app, browser


async def plan(browser: Browser, fields: dict[str, str], *, status: int = 200) -> str:
    response = await browser.get(f"/new-group/plan?{urlencode(fields)}")
    assert response.status_code == status, response.text
    return response.text


async def confirm(browser: Browser, page: str, **changed: str) -> tuple[int, str, str]:
    response = await browser.send(
        "POST", "/new-group", data=hidden(page) | changed, headers={"sec-fetch-site": "same-origin"}
    )
    return response.status_code, response.headers.get("location", ""), response.text


async def test_a_group_is_created_with_all_options_and_the_topics_that_are_missing(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded)
    page = await plan(browser, ALL)
    assert "does not exist and is created" in page
    assert rows(page)[1:7] == [
        "Order none ordered by message group",
        "Most deliveries of a message none 5",
        "Strategy none STICKY",
        "Start in a queue without progress none at the first message (FIRST)",
        "Pauses after failures none 1s 10s",
        "Balance none weight LAG, at most 50 moves, hold 30s or 1000 messages",
    ]
    assert rows(page)[8:] == [
        "logs is created 3 queues on each broker, type FIFO",
        "orders exists, unchanged 2 queues, type NORMAL",
    ]
    admin = unguarded.admin()
    assert await unguarded.clock.during(admin.list_groups()) == [], "a plan changes nothing"
    status, target, _ = await confirm(browser, page)
    assert (status, target.partition("?")[0]) == (303, "/groups/audit")
    assert "Created topic logs. Created group audit." in words((await browser.get(target)).text)
    group = (await unguarded.clock.during(admin.describe_group("audit"))).summary
    assert (group.ordered, group.max_attempts, group.strategy) == (True, 5, "STICKY")
    assert group.retry == RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1_000, 10_000))
    assert group.balance == BalancePolicy(weight=Weight.LAG, moves_max=50, hold_ms=30_000, hold_lag_max=1_000)
    topic = await unguarded.clock.during(admin.describe_topic("logs"))
    assert (len(topic.queues), topic.message_type) == (3, MessageType.FIFO)


async def test_a_change_keeps_what_is_not_given(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded)
    await confirm(browser, await plan(browser, ALL))
    page = await plan(browser, {"group": "audit", "max_attempts": "9", "hold": "0s"})
    assert "exists and is changed" in words(page)
    assert rows(page)[1:7] == [
        "Order ordered by message group unchanged",
        "Most deliveries of a message 5 9",
        "Strategy STICKY unchanged",
        "Start in a queue without progress unknown unchanged",
        "Pauses after failures 1s 10s unchanged",
        "Balance weight LAG, at most 50 moves, hold 30s or 1000 messages weight LAG, at most 50 moves",
    ]
    assert (await confirm(browser, page))[0] == 303
    group = (await unguarded.clock.during(unguarded.admin().describe_group("audit"))).summary
    assert (group.ordered, group.max_attempts, group.strategy) == (True, 9, "STICKY")
    assert group.balance == BalancePolicy(weight=Weight.LAG, moves_max=50)
    settings = words((await browser.get("/groups/audit?tab=settings")).text)
    assert "Most deliveries of a message 9" in settings
    assert "Start in a queue without progress unknown" in settings


async def test_a_plan_without_a_change_cannot_be_confirmed(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded)
    await confirm(browser, await plan(browser, {"group": "audit"}))
    page = await plan(browser, {"group": "audit", "topics": "orders"})
    assert "There is nothing to change." in page
    assert "<button>Apply" not in page


async def test_a_setting_that_is_given_again_is_set_at_all_brokers(unguarded: ConsoleStage) -> None:
    """The fix of the doctor for brokers that differ."""
    _, browser = await begun(unguarded)
    await confirm(browser, await plan(browser, {"group": "audit", "max_attempts": "9"}))
    page = await plan(browser, {"group": "audit", "max_attempts": "9"})
    assert "Most deliveries of a message 9 9, set at all brokers" in words(page)
    assert (await confirm(browser, page))[0] == 303


async def test_a_plan_that_changed_or_is_old_is_shown_again_and_nothing_is_done(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded)
    page = await plan(browser, ALL)
    admin = unguarded.admin()
    await unguarded.clock.during(admin.create_topic("logs", queues=1))
    status, _, text = await confirm(browser, page)
    assert status == 409
    assert "The cluster has changed since the plan was shown" in text
    await unguarded.clock.advance(PLAN_MS + 1_000)
    status, _, again = await confirm(browser, text)
    assert status == 409
    assert "older than ten minutes" in again
    assert await unguarded.clock.during(admin.list_groups()) == []
    assert (await confirm(browser, again))[0] == 303


async def test_a_failure_says_what_was_done_before(unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, browser = await begun(unguarded)

    async def fails(*_: object, **__: object) -> None:
        raise ConnectionFailed("broker b does not answer")

    monkeypatch.setattr(Admin, "create_group", fails)
    status, _, text = await confirm(browser, await plan(browser, ALL))
    assert status == 409
    assert "Created topic logs. Then this failed: broker b does not answer" in words(text)
    assert "logs exists, unchanged" in words(text)


async def test_a_read_only_console_shows_the_plan_and_does_nothing(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded, allow_changes=False)
    page = await plan(browser, ALL)
    assert "This console is read-only." in page
    assert 'method="post"' not in page
    response = await browser.send("POST", "/new-group", data=ALL, headers={"sec-fetch-site": "same-origin"})
    assert response.status_code == 403
    assert await unguarded.clock.during(unguarded.admin().list_groups()) == []


WRONG = [
    ({"group": ""}, "consumer group name is empty"),
    ({"group": "a b"}, "a b"),
    ({"group": "x" * 300}, "300 characters"),
    ({"topics": "a/b"}, "a/b"),
    ({"topics": "%DLQ%x"}, "belongs to the brokers"),
    ({"topics": " ".join(f"t{number}" for number in range(21))}, "at most 20"),
    ({"queues": "0"}, "from 1 to 4096"),
    ({"type": "BLUE"}, "it is one of"),
    ({"ordered": "perhaps"}, "it is one of"),
    ({"max_attempts": "1001"}, "from 1 to 1000"),
    ({"start_from": "MIDDLE"}, "it is one of"),
    ({"retry": "", "delays": "1s"}, "choose the kind"),
    ({"retry": "CUSTOMIZED", "delays": ""}, "give 1 to 64"),
    ({"retry": "CUSTOMIZED", "delays": "1s soon"}, "write a duration"),
    ({"retry": "EXPONENTIAL", "delays": "", "initial": "8d"}, "7 days"),
    ({"retry": "EXPONENTIAL", "delays": "", "initial": "1s", "multiplier": "nan"}, "from 1 to 100"),
    ({"retry": "EXPONENTIAL", "delays": "", "initial": "1s", "multiplier": "0.5"}, "1 to 100"),
    ({"weight": "HEAVY"}, "it is one of"),
    ({"hold": "2h"}, "1 hour"),
    ({"hold": "", "hold_lag_max": "5"}, "give hold_ms too"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "problem"), WRONG, ids=[f"{fields}"[:40] for fields, _ in WRONG])
async def test_a_wrong_value_is_named_and_the_form_keeps_the_others(
    unguarded: ConsoleStage, fields: dict[str, str], problem: str
) -> None:
    browser = unguarded.browser(await unguarded.app())
    page = await plan(browser, ALL | fields, status=400)
    assert problem in words(page)
    assert 'role="alert"' in page
    if "max_attempts" not in fields:
        assert 'name="max_attempts" type="number" min="1" max="1000" value="5"' in page


async def test_a_strategy_that_the_cluster_refuses_is_its_error(unguarded: ConsoleStage) -> None:
    _, browser = await begun(unguarded)
    page = await plan(browser, {"group": "audit", "strategy": "NO-SUCH-STRATEGY"})
    status, _, text = await confirm(browser, page)
    assert status == 409
    assert "Nothing was done. Then this failed:" in words(text)


def test_an_exponential_retry_has_defaults() -> None:
    fields = {"group": "g", "retry": "EXPONENTIAL", "initial": "500ms"}
    request = GroupRequest.parsed(lambda name: fields.get(name, ""))
    assert request.retry == RetryPolicy(kind=RetryKind.EXPONENTIAL, initial_ms=500, max_ms=7_200_000)
    assert request.message_type is MessageType.NORMAL
    assert set(ALL) <= set(FIELDS)


def test_a_hold_that_has_a_limit_needs_a_hold() -> None:
    request = GroupRequest.parsed(lambda name: {"group": "g", "hold_lag_max": "3"}.get(name, ""))
    with pytest.raises(BadRequest):
        request.balance_after(BalancePolicy())
    assert request.balance_after(BalancePolicy(hold_ms=5)) == BalancePolicy(hold_ms=5, hold_lag_max=3)
