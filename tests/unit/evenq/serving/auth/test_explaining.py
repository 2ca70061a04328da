"""`explain` decides as the guard does, for every call, and names the grant."""

from __future__ import annotations

from typing import Any

import pytest

from evenq.errors import BadRequest, Forbidden, NotFound, SettingsError
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.auth.explaining import explain, method_of, named_of, short_name
from evenq.serving.auth.guard import Guard
from evenq.serving.auth.names import Named
from evenq.serving.auth.users import UserResource, Users
from evenq.serving.rpc import Action, CallKind, Rpc, RpcContext

FILE = b"""
[users.evenq-internal]
secret = "internal-secret"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
[users.nobody]
secret = "secret-of-nobody"
[users.shop]
secret = "secret-of-shop"
allow = [
  { resource = "topic:orders", actions = ["publish"] },
  { resource = "topic:o*", actions = ["consume", "describe"] },
  { resource = "group:billing", actions = ["consume"] },
]
[users.operator]
secret = "secret-of-operator"
allow = [
  { resource = "topic:*", actions = ["operate", "describe"] },
  { resource = "group:billing", actions = ["*"] },
  { resource = "cluster", actions = ["describe"] },
]
[users.wide]
secret = "secret-of-wide"
allow = [{ resource = "topic:*", actions = ["*"] }, { resource = "group:*", actions = ["*"] }]
[users.replies]
secret = "secret-of-replies"
allow = [{ resource = "topic:orders", actions = ["reply"] }]
[users.keeper]
secret = "secret-of-keeper"
allow = [{ resource = "cluster", actions = ["operate"] }, { resource = "group:g", actions = ["consume"] }]
"""
USERS = Users.parse(FILE)
CHOICES = ({}, {"topic": "orders"}, {"group": "billing"}, {"topic": "orders", "group": "billing"}, {"topic": "%DLQ%g"})


def request_of(method: str, chosen: dict[str, str]) -> tuple[bytes, list[Named]]:
    """A request that names these wherever it can, and the names as a person gives them."""
    names = CALLS[method].names
    if names is None:
        return b"", []
    message, named = names.request(), []
    for path in names.paths:
        name = chosen.get(str(path.kind))
        if name is None:
            continue
        named.append(Named(path.kind, name, path.action))
        value: Any = message
        *steps, last_step = path.place.split(".")
        for step in steps:
            value = getattr(value, step)
            value = value.add() if hasattr(value, "add") else value
        last = getattr(value, last_step)
        if isinstance(last, str):
            setattr(value, last_step, name)
        elif hasattr(last, "add"):
            last.add().name = name
        elif hasattr(last, "append"):
            last.append(name)
        else:
            last.name = name
    return bytes(message.SerializeToString()), named


def decided(user: str, method: str, request: bytes) -> bool:
    """What the guard says."""
    row, known = CALLS[method], USERS.get(user)
    assert known is not None
    if known.internal:  # the guard lets it pass without a decision
        return True
    rpc = Rpc(method=method, kind=row.kind, handler=None, response=row.response, access=row.access)  # type: ignore[arg-type]  # never called
    guard = Guard(USERS, clock=FakeClock())
    try:
        guard._decide(known, rpc, row.names, request, RpcContext(method, [], "127.0.0.1:1", None))
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("user", ["evenq-internal", "root", "nobody", "shop", "operator", "wide", "replies", "keeper"])
def test_it_decides_as_the_guard_for_every_call(user: str) -> None:
    differing, allowed = [], 0
    for method, row in CALLS.items():
        if row.kind is CallKind.BIDI and row.names is not None:
            continue  # the guard looks at each message: below
        for chosen in CHOICES:
            request, named = request_of(method, chosen)
            answer = explain(FILE, user, method, named)
            allowed += answer.allowed
            if answer.allowed != decided(user, method, request):
                differing.append((short_name(method), chosen))
            met = all(one.grants or one.need.optional for one in answer.answers)
            assert answer.allowed == met or row.access.action is Action.INTERNAL
    assert differing == []
    assert allowed, "some calls need no grant"


def test_names_of_a_stream_are_left_out_without_a_grant_but_its_group_is_needed() -> None:
    session, telemetry = method_of("Groups/Session"), method_of("Telemetry")
    topic, group = Named(UserResource.TOPIC, "jobs"), Named(UserResource.GROUP, "billing")
    answer = explain(FILE, "shop", session, [topic, group])
    assert (answer.allowed, [bool(one.grants) for one in answer.answers]) == (True, [False, True])
    assert not explain(FILE, "nobody", session, [topic, group]).allowed
    assert explain(FILE, "nobody", telemetry, [topic]).allowed


def test_every_grant_that_gives_the_right_is_named() -> None:
    [answer] = explain(FILE, "shop", method_of("SendMessage"), [Named(UserResource.TOPIC, "orders")]).answers
    assert answer.grants == ['topic:orders ["publish"]']
    [answer] = explain(FILE, "shop", method_of("QueryRoute"), [Named(UserResource.TOPIC, "orders")]).answers
    assert answer.grants == ['topic:orders ["publish"]', 'topic:o* ["consume", "describe"]']
    [answer] = explain(FILE, "root", method_of("Admin/ListTopics"), []).answers
    assert answer.grants == ["admin = true"]


def test_a_call_without_a_name_is_about_all() -> None:
    [answer] = explain(FILE, "shop", method_of("SendMessage"), []).answers
    assert (answer.need.resource, answer.grants) == ("topic:*", [])


def test_a_pull_of_own_replies_is_noted() -> None:
    named = [Named(UserResource.TOPIC, "orders")]
    assert "its own replies" in explain(FILE, "replies", method_of("Data/Pull"), named).note
    assert explain(FILE, "nobody", method_of("Data/Pull"), named).note == ""


def test_an_unknown_user_and_a_file_that_is_not_valid_are_errors() -> None:
    with pytest.raises(NotFound, match=r"no user ghost; add a table \[users\.ghost\]"):
        explain(FILE, "ghost", method_of("SendMessage"), [])
    with pytest.raises(SettingsError) as raised:
        explain(FILE + b"\n[[", "shop", method_of("SendMessage"), [])
    assert "secret-of" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("SendMessage", "/apache.rocketmq.v2.MessagingService/SendMessage"),
        ("sendmessage", "/apache.rocketmq.v2.MessagingService/SendMessage"),
        ("/evenq.v1.Admin/CreateTopic", "/evenq.v1.Admin/CreateTopic"),
        ("evenq.v1.Admin/CreateTopic", "/evenq.v1.Admin/CreateTopic"),
        ("DeadLetters/List", "/evenq.v1.DeadLetters/List"),
        ("Register", "/evenq.v1.Registry/Register"),
        ("Heartbeat", "/apache.rocketmq.v2.MessagingService/Heartbeat"),
    ],
)
def test_a_call_is_found_by_its_full_or_short_name(text: str, method: str) -> None:
    assert method_of(text) == method


def test_a_call_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(BadRequest, match="did you mean SendMessage"):
        method_of("SendMesage")
    with pytest.raises(BadRequest, match="`evenq auth calls` lists all"):
        method_of("x")
    for method in CALLS:
        assert method_of(short_name(method)) == method or "Admin/" in method


@pytest.mark.parametrize(
    ("call", "texts", "named"),
    [
        ("SendMessage", ["orders"], [("topic", "orders", None)]),
        ("ReceiveMessage", ["group:g", "topic:t"], [("group", "g", None), ("topic", "t", None)]),
        ("Replay", ["g", "to_topic=t"], [("group", "g", None), ("topic", "t", "publish")]),
    ],
)
def test_names_have_a_kind_or_a_field(call: str, texts: list[str], named: list[Any]) -> None:
    assert [tuple(one) for one in named_of(method_of(call), texts)] == named


@pytest.mark.parametrize(
    ("call", "text", "error"),
    [
        ("ReceiveMessage", "orders", "write group:NAME or topic:NAME"),
        ("SendMessage", "group:g", "write topic:NAME"),
        ("Replay", "field=x", "write group:NAME or to_topic=NAME"),
        ("Admin/ListTopics", "orders", "names no topic or group; leave out orders"),
    ],
)
def test_a_name_that_the_call_does_not_have_is_refused(call: str, text: str, error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        named_of(method_of(call), [text])
