"""The rights of the one who is signed in, as the brokers decide them."""

from __future__ import annotations

import itertools

import pytest

from evenq.client.core.admin.query_views import CallerView, GrantView
from evenq.console.figures import INTERVAL_MS
from evenq.console.rights import ACTIONS, calls_of, rights_on
from evenq.serving.auth.users import UserResource, Users
from evenq.serving.rpc import Action
from tests.unit.evenq.console.conftest import ConsoleStage
from tests.unit.evenq.console.test_groups import rows, words

USERS_FILE = """
[users.servers]
secret = "secret-of-servers"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
[users.u]
secret = "secret-of-u"
allow = [
  { resource = "topic:orders-*", actions = ["publish", "consume"] },
  { resource = "topic:orders-eu", actions = ["operate"] },
  { resource = "group:billing", actions = ["consume"] },
  { resource = "group:*", actions = ["describe"] },
  { resource = "cluster", actions = ["describe"] },
]
"""
NAMES = ("orders-eu", "orders-", "orders", "billing", "%DLQ%billing", "%RETRY%billing", "%DLQ%other", "")


def caller(name: str) -> CallerView:
    user = Users.parse(USERS_FILE.encode()).get(name)
    assert user is not None
    grants = tuple(GrantView(resource=resource, actions=actions) for resource, actions in user.grants())
    return CallerView(user=name, admin=user.admin, grants=grants, broker_name="a")


@pytest.mark.parametrize("name", ["u", "root"])
def test_the_page_says_what_the_brokers_decide(name: str) -> None:
    user = Users.parse(USERS_FILE.encode()).get(name)
    assert user is not None
    view = caller(name)
    for kind, target in itertools.product(("topic", "group"), NAMES[:-1]):
        shown = {one.action for one in rights_on(view, kind, target) if one.grants}
        right = {one for one in ACTIONS[kind] if user.may(UserResource(kind), Action(one), target)}
        assert shown == right, (kind, target)
    shown = {one.action for one in rights_on(view, "cluster", "") if one.grants}
    assert shown == {one for one in ACTIONS["cluster"] if user.may_all(UserResource.CLUSTER, Action(one))}


def test_each_right_names_all_its_grants() -> None:
    rights = {one.action: one.grants for one in rights_on(caller("u"), "topic", "orders-eu")}
    assert rights["publish"] == ["topic:orders-*"]
    assert rights["describe"] == ["topic:orders-*", "topic:orders-eu"]
    assert rights["delete"] == []
    dead = {one.action: one.grants for one in rights_on(caller("u"), "topic", "%DLQ%billing")}
    assert dead["consume"] == ["group:billing"]
    assert dead["publish"] == []


def test_calls_are_those_of_the_table() -> None:
    assert "SendMessage" in calls_of("topic", "publish")
    assert "DeleteGroup" in calls_of("group", "delete")
    assert "ReceiveMessage" in calls_of("topic", "consume")
    assert "ReceiveMessage" in calls_of("group", "consume")
    assert "Heartbeat" not in calls_of("cluster", "describe")


async def test_a_user_sees_its_grants_and_what_they_allow(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    root = guarded.browser(app)
    await root.sign_in()
    await root.post("/topics", {"topic": "orders", "queues": 1, "type": "NORMAL"}, page="/topics")
    assert "is an admin" in words((await root.get("/rights")).text)
    await guarded.clock.advance(2 * INTERVAL_MS)
    assert "orders publish by admin" in words((await root.get("/rights")).text)
    reader = guarded.browser(app)
    await reader.sign_in("reader")
    page = (await reader.get("/rights?kind=topic&name=orders")).text
    assert rows(page)[1:3] == ["group:* describe", "topic:orders consume, describe"]
    assert any(row.startswith("consume yes topic:orders ") for row in rows(page))
    assert any(row.startswith("publish no ") for row in rows(page))
    assert "The list is unknown: user reader may not describe the cluster" in words(page)
    assert "root" not in page
    assert "secret-of" not in page


async def test_a_cluster_without_users_says_so(unguarded: ConsoleStage) -> None:
    browser = unguarded.browser(await unguarded.app())
    page = (await browser.get("/rights")).text
    assert "Broker a has no users: whoever reaches it may do everything." in words(page)
    assert (await browser.get("/rights?kind=cluster")).status_code == 200
    assert (await browser.get("/rights?kind=moon")).status_code == 400
    assert (await browser.get(f"/rights?name={'x' * 300}")).status_code == 400
