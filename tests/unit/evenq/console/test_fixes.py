"""Commands of the doctor as pages: safe ones are plans, those that look are links, all others stay texts."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from evenq_broker.core.diagnosis.findings import command

from evenq.client.core.admin.views import DiagnosisView, FindingView
from evenq.console.fixes import COMMAND_CHARACTERS_MAX, fix_of
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_attacks import Shape
from tests.unit.evenq.console.test_groups import hidden, returns, words

PLANS = [
    (command("group create", "billing", strategy="STICKY"), ("new-group", "plan"), {"group": "billing", "strategy": "STICKY"}),
    (command("group create", "billing", ordered=True), ("new-group", "plan"), {"group": "billing", "ordered": "yes"}),
    (
        command("group create", "billing", strategy="NONE", max_attempts="5"),
        ("new-group", "plan"),
        {"group": "billing", "strategy": "NONE", "max_attempts": "5"},
    ),
    (command("topic create", "o r'd\"ers"), ("topic-plan",), {"change": "create", "topic": "o r'd\"ers"}),
    (
        command("topic scale", "orders", queues=8, broker="a"),
        ("topic-plan",),
        {"change": "scale", "topic": "orders", "queues": "8", "broker": "a"},
    ),
    (
        command("topic permit", "orders", "read-write", broker="a"),
        ("topic-plan",),
        {"change": "permit", "topic": "orders", "permission": "read-write", "broker": "a"},
    ),
    (
        command("offset reset", "billing", topic="orders", to_offset=7, queue="a/3"),
        ("groups", "billing", "plan"),
        {"topic": "orders", "broker": "a", "queue": "3", "offset": "7", "change": "reset", "to": "offset"},
    ),
]  # fmt: skip
VIEWS = [
    (command("client show", "-odd id"), ("clients", "-odd id"), {}),
    (command("client list", group="billing"), ("clients",), {"q": "billing"}),
    (command("schedule list", "orders"), ("schedules",), {"topic": "orders"}),
    (command("group show", "billing"), ("groups", "billing"), {}),
    (command("group explain", "billing", topic="orders"), ("groups", "billing"), {"tab": "why", "topic": "orders"}),
    (command("offset show", "billing", topic="orders"), ("groups", "billing"), {"topic": "orders"}),
    (
        command("message find", "orders", queue="a/0", offset=7, limit=1),
        ("messages",),
        {"topic": "orders", "queue": "a/0", "offset": "7", "order": "oldest"},
    ),
    (command("broker list"), ("",), {}),
    (command("cluster show"), ("",), {}),
]
TEXTS = [
    "evenq broker forget b --yes",
    "evenq group delete billing --yes",
    "evenq topic delete orders --yes",
    "evenq offset skip billing --topic orders --count 1 --queue a/0",
    "evenq offset reset billing --to earliest --yes",
    "evenq topic scale orders --queues 1 --force",
    "evenq topic scale orders --queues 1 --close-unread",
    "evenq topic create orders --type fifo --yes",
    "evenq group create billing",
    "evenq group create billing --surprise 1",
    "evenq dlq replay billing",
    "rm -rf /",
    "evenq",
    "",
    "evenq group create 'billing",
    "evenq group create billing --strategy " + "x" * COMMAND_CHARACTERS_MAX,
]


@pytest.mark.parametrize(("text", "path", "query"), PLANS, ids=[text for text, *_ in PLANS])
def test_a_safe_change_is_a_plan(text: str, path: tuple[str, ...], query: dict[str, str]) -> None:
    fix = fix_of(text)
    assert fix is not None
    assert (fix.path, dict(fix.query), fix.changes) == (path, query, True)


@pytest.mark.parametrize(("text", "path", "query"), VIEWS, ids=[text for text, *_ in VIEWS])
def test_a_command_that_looks_is_a_link(text: str, path: tuple[str, ...], query: dict[str, str]) -> None:
    fix = fix_of(text)
    assert fix is not None
    assert (fix.path, dict(fix.query), fix.changes) == (path, query, False)


@pytest.mark.parametrize("text", TEXTS)
def test_everything_else_stays_a_text(text: str) -> None:
    assert fix_of(text) is None


HOSTILE = "<script>alert(1)</script>\" onload='x'"


def finding(text: str, subject: str = "billing") -> FindingView:
    return FindingView(kind="K", severity="WARNING", subject=subject, seen="It is odd.", fix="Do this.", command=text)


async def doctor(
    stage: ConsoleStage, monkeypatch: pytest.MonkeyPatch, *texts: str, **settings: bool
) -> tuple[Browser, str]:
    findings = tuple(finding(text, HOSTILE) for text in texts)
    view = DiagnosisView(findings=findings, decides="the test", members=0, queues=0, brokers=("a",), silent=())
    returns(monkeypatch, "diagnose_group", view)
    browser = stage.browser(await stage.app(**settings))
    await stage.clock.during(stage.admin().create_group("billing", max_attempts=3))
    return browser, (await browser.get("/groups/billing?tab=doctor")).text


async def test_a_button_of_the_doctor_leads_to_a_plan_that_is_confirmed(
    unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, page = await doctor(unguarded, monkeypatch, command("group create", "billing", strategy="STICKY"))
    [form] = [part.partition("</form>")[0] for part in page.split('<form method="get" action="/new-group/plan">')[1:]]
    assert "<button>Plan these settings</button>" in form
    plan = (await browser.get(f"/new-group/plan?{urlencode(hidden(form))}")).text
    assert "Strategy members divide the queues STICKY" in words(plan)
    admin = unguarded.admin()
    assert (await unguarded.clock.during(admin.describe_group("billing"))).summary.strategy == ""
    done = await browser.send("POST", "/new-group", data=hidden(plan), headers={"sec-fetch-site": "same-origin"})
    assert done.status_code == 303
    group = (await unguarded.clock.during(admin.describe_group("billing"))).summary
    assert (group.strategy, group.max_attempts) == ("STICKY", 3)


async def test_the_doctor_offers_nothing_that_deletes(unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, page = await doctor(unguarded, monkeypatch, *TEXTS, "evenq client show c1", f"evenq client show '{HOSTILE}'")
    assert "<button>" not in page
    assert '<a href="/clients/c1">Show the client</a>' in page
    assert "evenq broker forget b --yes" in page, "the command stays a text"
    assert not [name for _, *names in Shape(page).elements for name in names if name.startswith("on")]
    assert "<script>alert" not in page


async def test_a_read_only_console_shows_the_plan_of_a_fix(
    unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = command("topic create", "missing")
    browser, page = await doctor(unguarded, monkeypatch, text, allow_changes=False)
    assert 'method="post"' not in page
    plan = (await browser.get("/topic-plan?change=create&topic=missing")).text
    assert "This console is read-only." in plan
