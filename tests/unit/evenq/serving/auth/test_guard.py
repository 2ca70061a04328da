"""The guard: who is let in, what they may do, and that no verdict outlives its reason."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import BadRequest, Error, Forbidden, SettingsError, TooManyRequests, Unauthorized
from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import CALLS
from evenq.serving.auth.guard import WHOLE, Guard
from evenq.serving.auth.users import Users
from evenq.serving.rpc import ACTS_FOR, Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.signature import Secret, authorization, date_time, read_claim
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2, groups_pb2

ACCESS = {method: call.access for method, call in CALLS.items()}
NAMES = {method: call.names for method, call in CALLS.items() if call.names is not None}

FILE = """
[users.evenq-internal]
secret = "internal-secret"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
[users.nobody]
secret = "secret-of-nobody"
[users.orders]
secret = ["secret-of-orders", "newer-of-orders"]
allow = [
  { resource = "topic:orders", actions = ["*"] },
  { resource = "group:billing", actions = ["*"] },
  { resource = "cluster", actions = ["*"] },
]
[users.elsewhere]
secret = "secret-of-elsewhere"
allow = [
  { resource = "topic:other*", actions = ["*"] },
  { resource = "group:other*", actions = ["*"] },
]
[users.reader]
secret = "secret-of-reader"
allow = [
  { resource = "topic:orders", actions = ["consume"] },
  { resource = "group:billing", actions = ["consume"] },
]
[users.everything]
secret = "secret-of-everything"
allow = [{ resource = "topic:*", actions = ["*"] }, { resource = "group:*", actions = ["*"] }]
"""
TWIN = """
[users.twin]
secret = "secret-of-twin"
allow = [
  { resource = "topic:orders", actions = ["*"] },
  { resource = "group:billing", actions = ["*"] },
]
"""
V2 = "/apache.rocketmq.v2.MessagingService/"
SEND, RECEIVE, TELEMETRY, HEARTBEAT = V2 + "SendMessage", V2 + "ReceiveMessage", V2 + "Telemetry", V2 + "Heartbeat"


def users(text: str = FILE) -> Users:
    return Users.parse(text.encode())


def signed(user: str, secret: str = "", *, now_ms: int = 1_700_000_000_000, date: str = "") -> dict[str, str]:
    date = date or date_time(now_ms)
    known = "internal-secret" if user == "evenq-internal" else f"secret-of-{user}"
    return {"authorization": authorization(user, Secret(secret or known), date), "x-mq-date-time": date}


def context(headers: Mapping[str, str], method: str = SEND) -> RpcContext:
    return RpcContext(method, list(headers.items()), "127.0.0.1:1", None)


async def _done(request: bytes, context: RpcContext) -> bytes:
    return b"done"


def rpc(method: str, access: Access | None = None) -> Rpc:
    return fake_rpc(method, _done, service_pb2.SendMessageResponse, access=access or ACCESS[method])


def call(guard: Guard, method: str, headers: Mapping[str, str], request: bytes = b"", access: Any = None) -> None:
    """One call; raises what the caller would get."""

    async def run() -> None:
        handler: Any = guard.guarded(rpc(method, access)).handler
        assert await handler(request, context(headers, method)) == b"done"

    asyncio.run(run())


def test_all_calls_are_checked_in_one_order() -> None:
    """Signature, bytes that are not a request, right to the names (no name: to all), and then the handler's rules."""
    guard, checked = Guard(users(), clock=FakeClock()), 0
    for method, row in CALLS.items():
        if row.kind is not CallKind.UNARY or row.names is None or row.access.resource in WHOLE:
            continue
        checked += 1
        for request, kind in ((b"\xff", BadRequest), (b"", Forbidden)):
            with pytest.raises(Unauthorized):
                call(guard, method, {}, request)
            with pytest.raises(kind):
                call(guard, method, signed("orders"), request)
    assert checked > 50


def request_of(method: str, topic: str = "orders", group: str = "billing") -> bytes:
    """A request that names this topic and this group wherever it can name one."""
    names = NAMES.get(method)
    if names is None:
        return b""
    message = names.request()
    for path in names.paths:
        value: Any = message
        *steps, last_step = path.place.split(".")
        name = topic if path.kind == "topic" else group
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
    return bytes(message.SerializeToString())


def verdict(guard: Guard, method: str, headers: Mapping[str, str], request: bytes) -> int:
    try:
        call(guard, method, headers, request)
    except Error as error:
        return error.code
    return 20000


class Quick(FakeClock):
    """Does not wait."""

    async def sleep_ms(self, duration_ms: float) -> None:
        """At once: a refused stream is held for a moment otherwise."""


METHODS = sorted(ACCESS)
GUARD = Guard(users(), clock=FakeClock())


@pytest.mark.parametrize("method", METHODS)
def test_no_call_at_all_is_let_in_without_a_right_signature(method: str) -> None:
    request = request_of(method)
    right = signed("root")
    for headers in (
        {},
        {"x-mq-date-time": right["x-mq-date-time"]},
        {"authorization": right["authorization"]},
        signed("unknown"),
        signed("root", "not the secret"),
        signed("evenq-internal", "not the secret"),
        {**right, "x-mq-date-time": "20200101T000000Z"},
        {**right, "authorization": right["authorization"].replace("root", "orders")},
        {**right, "authorization": right["authorization"][:-2] + "00"},
        {**right, "x-mq-authorization-ak": "root", "authorization": ""},
    ):
        if method == HEARTBEAT:
            headers = {"x-mq-client-id": "c", **headers}
        assert verdict(GUARD, method, headers, request) == 40100, headers


FETCH_ALL = "/evenq.v1.Backup/Fetch"
"""Names no topic and no group: it is for those who may operate all of them."""
DESCRIBE_CALLER = "/evenq.v1.Admin/DescribeCaller"
"""Returns nothing but the caller's own grants."""


@pytest.mark.parametrize("method", METHODS)
def test_each_call_is_allowed_to_those_whose_grants_name_what_it_names(method: str) -> None:
    access, request = ACCESS[method], request_of(method)
    internal = access.action is Action.INTERNAL
    cluster = access.resource in {Resource.CLUSTER, Resource.BROKER} or (
        access.resource is Resource.CLIENT and access.action is Action.OPERATE
    )
    named = not internal and not cluster
    paths = NAMES[method].paths if method in NAMES else []
    reads = {access.action, *(path.action or access.action for path in paths)} <= {Action.CONSUME, Action.DESCRIBE}
    wanted = {
        "evenq-internal": True,
        "root": not internal,
        "orders": not internal and method != FETCH_ALL,
        "everything": named,
        "nobody": False,
        "elsewhere": False,
        "reader": named and reads,
    }
    if method == TELEMETRY:
        return  # a stream; its frames are judged one by one
    if method == DESCRIBE_CALLER:
        wanted = dict.fromkeys(wanted, True)
    for user, allowed in wanted.items():
        assert verdict(GUARD, method, signed(user), request) == (20000 if allowed else 40300), user


def test_one_forbidden_element_among_allowed_ones_forbids_the_call() -> None:
    request = service_pb2.SendMessageRequest()
    request.messages.add().topic.name = "orders"
    call(GUARD, SEND, signed("orders"), request.SerializeToString())
    request.messages.add().topic.name = "other"
    wanted = r'user orders may not publish topic other; .* \{ resource = "topic:other", actions = \["publish"\] \}'
    with pytest.raises(Forbidden, match=wanted):
        call(GUARD, SEND, signed("orders"), request.SerializeToString())


def test_a_route_that_is_refused_names_the_actions_that_programs_need_and_the_grants_that_give_them() -> None:
    """A send begins with this query, and "may not describe" does not say that the send needs `publish`."""
    request = service_pb2.QueryRouteRequest()
    request.topic.name = "other"
    with pytest.raises(Forbidden) as refused:
        call(GUARD, "/apache.rocketmq.v2.MessagingService/QueryRoute", signed("orders"), request.SerializeToString())
    assert refused.value.message == (
        "user orders may not publish, consume or describe topic other; it may if the users file has "
        '{ resource = "topic:other", actions = ["publish"] } to send, or '
        '{ resource = "topic:other", actions = ["consume"] } to receive'
    )


@pytest.mark.parametrize("method", [SEND, "/evenq.v1.Data/Publish"])
def test_a_request_that_was_read_without_protobuf_is_judged_by_its_topic(method: str) -> None:
    class Read:
        topic = "orders"

    async def ask(user: str) -> None:
        asked = context(signed(user))
        asked.plain = Read()
        handler: Any = GUARD.guarded(rpc(method)).handler
        assert await handler(b"never decoded: \xff", asked) == b"done"

    asyncio.run(ask("orders"))
    Read.topic = "other"
    with pytest.raises(Forbidden, match="user orders may not publish topic other"):
        asyncio.run(ask("orders"))


def test_a_call_that_names_nothing_is_about_everything() -> None:
    for method in ("/evenq.v1.Admin/FindMessages", "/evenq.v1.Admin/ResetOffsets", SEND):
        with pytest.raises(Forbidden, match="names none"):
            call(GUARD, method, signed("orders"), b"")
        call(GUARD, method, signed("everything"), b"")


def test_a_queue_does_not_stand_for_the_topic_that_the_call_leaves_out() -> None:
    """FindMessages without a topic looks into all of them, whichever queue it names beside."""
    find = admin_pb2.FindMessagesRequest(message_id="id")
    for place in ("queue", "positions"):
        request = admin_pb2.FindMessagesRequest()
        request.CopyFrom(find)
        (request.queue if place == "queue" else request.positions.add().queue).topic = "orders"
        with pytest.raises(Forbidden, match="consume every topic, and the call names none"):
            call(GUARD, "/evenq.v1.Admin/FindMessages", signed("orders"), request.SerializeToString())
    reset = admin_pb2.ResetOffsetsRequest(group="billing", local=True)
    reset.queues.add(topic="orders")
    with pytest.raises(Forbidden, match="operate every topic"):
        call(GUARD, "/evenq.v1.Admin/ResetOffsets", signed("orders"), reset.SerializeToString())


def test_where_a_call_reads_one_name_is_enough_and_where_it_changes_both_are_needed() -> None:
    call(GUARD, "/evenq.v1.Data/QueryOffsets", signed("orders"), request_of("/evenq.v1.Data/QueryOffsets", group=""))
    reset = "/evenq.v1.Admin/ResetOffsets"
    with pytest.raises(Forbidden, match="every topic"):
        call(GUARD, reset, signed("orders"), request_of(reset, topic=""))


def test_a_heartbeat_without_a_group_is_anybodys_and_with_one_its_readers() -> None:
    call(GUARD, HEARTBEAT, signed("nobody"))
    with pytest.raises(Forbidden, match="consume group billing"):
        call(GUARD, HEARTBEAT, signed("nobody"), request_of(HEARTBEAT))


def test_a_heartbeat_of_nobody_is_ok_without_a_signature() -> None:
    """Statement 50: Go sends one without any header; it changes nothing."""
    call(GUARD, HEARTBEAT, {})
    with pytest.raises(Unauthorized):
        call(GUARD, HEARTBEAT, signed("root", "wrong-secret"))


def test_nobody_passes_for_the_client_of_another_user() -> None:
    """A client's stream is notified about its half messages, and its farewell ends its deliveries."""
    guard = Guard(users(), clock=FakeClock())
    mine, theirs = ({"x-mq-client-id": "c1", **signed(user)} for user in ("orders", "nobody"))
    farewell = V2 + "NotifyClientTermination"
    call(guard, HEARTBEAT, mine)
    for method in (HEARTBEAT, farewell):
        with pytest.raises(Forbidden, match="'c1' is another user's"):
            call(guard, method, theirs)

    async def listen() -> None:
        frames, ended, _ = telemetry(guard, "nobody", "", b"", client_id="c1")
        with pytest.raises(Forbidden, match="is another user's"):
            await anext(frames)
        assert not ended.is_set()

    asyncio.run(listen())
    call(guard, farewell, mine)
    call(guard, HEARTBEAT, theirs)


ACTING = sorted(
    method
    for method, access in ACCESS.items()
    if access.action in {Action.PUBLISH, Action.CONSUME} and method != V2 + "NotifyClientTermination"
)


@pytest.mark.parametrize("method", ACTING)
def test_no_call_of_a_client_acts_under_the_id_of_another_users_client(method: str) -> None:
    """Both may use the group and the topic; a member's id holds queues, and its deliveries end with it."""
    guard = Guard(users(FILE + TWIN), clock=FakeClock())
    call(guard, HEARTBEAT, {"x-mq-client-id": "c1", **signed("orders")}, request_of(HEARTBEAT))
    request = request_of(method)
    assert verdict(guard, method, {"x-mq-client-id": "c1", **signed("twin")}, request) == Forbidden.code
    assert verdict(guard, method, {"x-mq-client-id": "c1", **signed("orders")}, request) == 20000
    assert verdict(guard, method, {"x-mq-client-id": "c2", **signed("twin")}, request) == 20000
    names = NAMES.get(method)
    if names is not None and names.client:
        message = names.request.FromString(request)
        value: Any = message
        for step in names.client[:-1]:
            value = getattr(value, step)
        setattr(value, names.client[-1], "c1")
        forged = bytes(message.SerializeToString())
        assert verdict(guard, method, {"x-mq-client-id": "c2", **signed("twin")}, forged) == Forbidden.code
        assert verdict(guard, method, {"x-mq-client-id": "c1", **signed("orders")}, forged) == 20000


def test_a_user_has_so_many_clients_and_leaves_room_for_others() -> None:
    guard = Guard(users(FILE + TWIN), clock=FakeClock(), user_clients_max=3, clients_max=5)
    send = request_of(SEND)
    for number in range(6):
        headers = {"x-mq-client-id": f"c{number}", **signed("orders")}
        assert verdict(guard, SEND, headers, send) == (20000 if number < 3 else TooManyRequests.code)
    assert verdict(guard, SEND, {"x-mq-client-id": "d1", **signed("twin")}, send) == 20000
    assert verdict(guard, SEND, {"x-mq-client-id": "c1", **signed("twin")}, send) == Forbidden.code


# Calls that another server passed on: they are signed by the internal user and say whose they are.

PASSED_ON = sorted(method for method in ACTING if method not in {TELEMETRY, "/evenq.v1.Groups/Session"})


def passed_on(user: str | None, client_id: str = "c1") -> dict[str, str]:
    said = {} if user is None else {ACTS_FOR: user}
    return {"x-mq-client-id": client_id, **said, **signed("evenq-internal")}


def streamed_verdict(guard: Guard, method: str, headers: Mapping[str, str], request: bytes) -> int:
    """The same for a call that is answered by a stream."""

    async def frames(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        yield b"frame"

    async def run() -> None:
        row = replace(rpc(method), kind=CallKind.SERVER_STREAM, handler=frames)
        handler: Any = guard.guarded(row).handler
        assert [frame async for frame in handler(request, context(headers, method))] == [b"frame"]

    try:
        asyncio.run(run())
    except Error as error:
        return error.code
    return 20000


VERDICTS = {"one answer": verdict, "a stream": streamed_verdict}


@pytest.mark.parametrize("asked", VERDICTS.values(), ids=VERDICTS)
@pytest.mark.parametrize("method", PASSED_ON)
def test_a_call_that_a_server_passed_on_acts_under_the_ids_of_its_user(method: str, asked: Any) -> None:
    """Both users may use the group and the topic, and the id is known here by the call that was passed on alone."""
    guard, request = Guard(users(FILE + TWIN), clock=Quick()), request_of(method)
    assert asked(guard, method, passed_on("orders"), request) == 20000
    assert asked(guard, method, {"x-mq-client-id": "c1", **signed("twin")}, request) == Forbidden.code
    assert asked(guard, method, passed_on("twin"), request) == Forbidden.code, "nor by way of another server"
    assert asked(guard, method, {"x-mq-client-id": "c1", **signed("orders")}, request) == 20000
    assert asked(guard, method, passed_on("twin", "c2"), request) == 20000


@pytest.mark.parametrize("asked", VERDICTS.values(), ids=VERDICTS)
@pytest.mark.parametrize("method", PASSED_ON)
def test_a_client_that_says_it_was_passed_on_is_judged_as_itself(method: str, asked: Any) -> None:
    guard, request = Guard(users(FILE + TWIN), clock=Quick()), request_of(method)
    names_any = {"x-mq-client-id": "c9", ACTS_FOR: "orders", **signed("nobody")}
    assert asked(guard, method, names_any, request) == Forbidden.code, "it has the rights of its signature alone"
    assert asked(guard, method, passed_on("orders"), request) == 20000
    posing = {ACTS_FOR: "orders", **signed("twin")}
    assert asked(guard, method, {"x-mq-client-id": "c1", **posing}, request) == Forbidden.code, "no other's client"
    assert asked(guard, method, {"x-mq-client-id": "c2", **posing}, request) == 20000
    mine = {"x-mq-client-id": "c2", **signed("orders")}
    assert asked(guard, method, mine, request) == Forbidden.code, "and its own ids are its own, whatever it says"
    wrong = {"x-mq-client-id": "c1", ACTS_FOR: "orders", **signed("evenq-internal", "not the secret")}
    assert asked(guard, method, wrong, request) == Unauthorized.code


@pytest.mark.parametrize("asked", VERDICTS.values(), ids=VERDICTS)
def test_a_passed_on_call_of_a_user_that_is_not_known_here_yet_owns_its_id_and_one_of_nobody_none(asked: Any) -> None:
    """The users files of two servers differ while a change of them reaches one after the other."""
    guard, request = Guard(users(FILE + TWIN), clock=Quick()), request_of(RECEIVE)
    assert asked(guard, RECEIVE, passed_on("newcomer"), request) == 20000
    assert asked(guard, RECEIVE, {"x-mq-client-id": "c1", **signed("orders")}, request) == Forbidden.code
    for nobody in (None, ""):
        assert asked(guard, RECEIVE, passed_on(nobody, "c2"), request) == 20000, "a server's own call"
    assert asked(guard, RECEIVE, {"x-mq-client-id": "c2", **signed("orders")}, request) == 20000


def test_the_clients_of_passed_on_calls_count_for_their_user() -> None:
    guard, send = Guard(users(FILE + TWIN), clock=FakeClock(), user_clients_max=3, clients_max=9), request_of(SEND)
    codes = [verdict(guard, SEND, passed_on("orders", f"c{number}"), send) for number in range(5)]
    assert codes == [20000] * 3 + [TooManyRequests.code] * 2
    assert verdict(guard, SEND, passed_on("twin", "d1"), send) == 20000


def test_a_farewell_that_was_passed_on_frees_the_id() -> None:
    guard, farewell = Guard(users(FILE + TWIN), clock=FakeClock()), V2 + "NotifyClientTermination"
    assert verdict(guard, SEND, passed_on("orders"), request_of(SEND)) == 20000
    assert verdict(guard, farewell, passed_on("twin"), request_of(farewell)) == Forbidden.code
    assert verdict(guard, farewell, passed_on("orders"), request_of(farewell)) == 20000
    assert verdict(guard, SEND, passed_on("twin"), request_of(SEND)) == 20000


@pytest.mark.slow
def test_no_changed_byte_of_a_header_makes_another_signature_right() -> None:
    """T10: whatever is let in says the same as the right one."""
    right = signed("root")
    rng = random.Random(7)
    for name in right:
        for _ in range(2_000):
            text = right[name]
            at, what = rng.randrange(len(text)), chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x250)]))
            changed = rng.choice(
                [text[:at] + what + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + what + text[at:]]
            )
            if verdict(GUARD, SEND, {**right, name: changed}, b"") == 20000:
                claim = read_claim(changed) if name == "authorization" else None
                same = read_claim(right["authorization"])
                assert changed == text or (claim is not None and same is not None)
                if claim is not None and same is not None:
                    assert (claim.user, claim.signature.upper()) == (same.user, same.signature)


def test_both_secrets_are_right_while_a_user_has_two() -> None:
    call(GUARD, SEND, signed("orders", "newer-of-orders"), request_of(SEND))


def test_a_signature_counts_however_old_it_is_and_in_local_time_unless_a_skew_is_set() -> None:
    """Wire contract 2.2: four SDKs write local time without a zone."""
    clock = FakeClock(1_767_323_045_000)
    old = signed("root", date="19990101T000000Z")
    call(Guard(users(), clock=clock), SEND, old)
    strict = Guard(users(), clock=clock, clock_skew_ms=60_000)
    for date, right in (
        ("20260102T030405Z", True),
        ("20260102T030501Z", True),
        ("20260102T030307Z", True),
        ("20260102T110405Z", True),  # local time, eight hours east
        ("20260101T233405Z", True),  # three and a half hours west
        ("2026-01-02T03:04:05.5Z", True),
        ("2026-01-02T04:04:05+01:00", True),
        ("20260102T030705Z", False),
        ("20260101T030405Z", False),
        ("20260102T180405Z", False),  # further than any zone
        ("19990101T000000Z", False),
        ("today", False),
    ):
        assert verdict(strict, SEND, signed("root", date=date), b"") == (20000 if right else 40100), date


def test_a_remembered_signature_grows_old_too() -> None:
    clock = FakeClock(1_767_323_045_000)
    guard = Guard(users(), clock=clock, clock_skew_ms=60_000)
    headers = signed("root", date="20260102T030405Z")
    call(guard, SEND, headers)
    clock.jump_wall(61_000)
    with pytest.raises(Unauthorized, match=r"20260102T030405Z .* 20260102T030506Z, .*: correct the wrong clock"):
        call(guard, SEND, headers)


def test_no_verdict_outlives_a_change_of_users() -> None:
    guard = Guard(users(), clock=FakeClock())
    headers = signed("orders")
    call(guard, SEND, headers, request_of(SEND))
    guard.change(
        users(FILE.replace('resource = "topic:orders", actions = ["*"]', 'resource = "cluster", actions = ["*"]'))
    )
    with pytest.raises(Forbidden):
        call(guard, SEND, headers, request_of(SEND))
    guard.change(users(FILE.replace("secret-of-orders", "changed-secret")))
    with pytest.raises(Unauthorized):
        call(guard, SEND, headers, request_of(SEND))


def test_a_revoked_user_is_not_served_from_either_half_of_what_is_remembered() -> None:
    """The cache of right signatures has two halves; both forget."""
    gone = users(FILE.replace("[users.orders]", "[users.renamed]"))
    for later in range(4):  # how many signatures came since: in the newer half, in the older one, out of both
        guard = Guard(users(), clock=FakeClock(), cache_max=4)
        headers = signed("orders")
        call(guard, SEND, headers, request_of(SEND))
        for number in range(later):
            call(guard, SEND, signed("root", now_ms=number * 1_000), request_of(SEND))
        call(guard, SEND, headers, request_of(SEND))
        guard.change(gone)
        with pytest.raises(Unauthorized):
            call(guard, SEND, headers, request_of(SEND))
        with pytest.raises(Unauthorized):
            guard.identify_open(context(headers))
        guard.change(users())
        call(guard, SEND, headers, request_of(SEND))


def test_a_groups_grant_lets_nobody_send_to_its_retry_and_dead_letter_topics() -> None:
    text = FILE.replace(
        '{ resource = "group:billing", actions = ["consume"] },', '{ resource = "group:billing", actions = ["*"] },'
    )
    guard = Guard(users(text), clock=FakeClock())
    for topic in ("%RETRY%billing", "%DLQ%billing"):
        for method in (SEND, "/evenq.v1.Data/Publish", "/apache.rocketmq.v2.Admin/AdminSendMessage"):
            with pytest.raises(Forbidden, match=f"publish topic {topic}"):
                call(guard, method, signed("reader"), request_of(method, topic=topic))
        call(guard, RECEIVE, signed("reader"), request_of(RECEIVE, topic=topic))


def test_what_is_remembered_is_bounded_and_failures_are_not() -> None:
    guard = Guard(users(), clock=FakeClock(), cache_max=10)
    for second in range(1_000):
        call(guard, SEND, signed("root", now_ms=second * 1_000))
        with pytest.raises(Unauthorized):
            call(guard, SEND, signed("root", "wrong", now_ms=second * 1_000))
        assert len(guard._proofs) + len(guard._older) <= 10


def test_refusals_are_told_once_a_minute_and_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guard = Guard(users(), clock=FakeClock())
    for _ in range(5):
        with pytest.raises(Unauthorized):
            call(guard, SEND, signed("root", "wrong-secret"))
    lines = [record for record in caplog.records if record.message == "call refused"]
    assert len(lines) == 1
    assert (lines[0].__dict__["user"], lines[0].__dict__["code"]) == ("root", 40100)
    reset = "/evenq.v1.Admin/ResetOffsets"
    call(guard, reset, signed("root"), request_of(reset))
    assert [record.__dict__["user"] for record in caplog.records if record.message == "call allowed"] == ["root"]
    everything = " ".join(str(record.__dict__) for record in caplog.records)
    assert "wrong-secret" not in everything
    assert "secret-of" not in everything
    assert "Signature" not in everything


def test_made_up_names_make_no_lines_and_what_is_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    guard = Guard(users(), clock=clock)
    for number in range(50):
        with pytest.raises(Unauthorized):
            call(guard, SEND, signed(f"stranger-{number}", "wrong-secret"))
    asyncio.run(clock.advance(60_000))
    with pytest.raises(Unauthorized):
        call(guard, SEND, signed("stranger", "wrong-secret"))
    lines = [record.__dict__ for record in caplog.records if record.message == "call refused"]
    assert [(line["user"], line.get("more")) for line in lines] == [("stranger-0", None), ("stranger", 49)]


def test_a_call_nobody_could_decide_on_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="no row lists"):
        GUARD.guarded(rpc("/new.Service/Call", Access(Resource.TOPIC, Action.PUBLISH)))


def telemetry(
    guard: Guard, user: str, secret: str, *frames: bytes, client_id: str = ""
) -> tuple[Any, asyncio.Event, list[bytes]]:
    """A guarded stream whose handler echoes, as the door runs it: iterator, the end of its handler, its requests."""
    return watched_telemetry(guard, user, secret, *frames, client_id=client_id)[:3]


def watched_telemetry(
    guard: Guard, user: str, secret: str, *frames: bytes, client_id: str = ""
) -> tuple[Any, asyncio.Event, list[bytes], list[frozenset[tuple[str, str]]]]:
    """The same, and with each request what the handler must not touch."""
    ended, seen, refused = asyncio.Event(), list[bytes](), list[frozenset[tuple[str, str]]]()

    async def requests() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame
        await asyncio.Event().wait()

    async def echo(incoming: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        try:
            async for request in incoming:
                seen.append(request)
                refused.append(context.refused)
                yield request
        finally:
            ended.set()

    row = fake_rpc(TELEMETRY, echo, service_pb2.TelemetryCommand, kind=CallKind.BIDI, access=ACCESS[TELEMETRY])
    handler: Any = guard.guarded(row).handler
    headers = {**signed(user, secret), **({"x-mq-client-id": client_id} if client_id else {})}
    return handler(requests(), context(headers, TELEMETRY)), ended, seen, refused


async def test_telemetry_without_a_grant_gets_to_its_handler_with_the_names_that_it_may_not_touch() -> None:
    """An SDK that got no settings would not start, and not say why (wire contract 4)."""
    guard = Guard(users(), clock=FakeClock())
    mine, theirs = service_pb2.TelemetryCommand(), service_pb2.TelemetryCommand()
    mine.settings.publishing.topics.add().name = "orders"
    theirs.settings.publishing.topics.add().name = "other"
    theirs.settings.publishing.topics.add().name = "orders"
    strange = service_pb2.TelemetryCommand()
    strange.settings.subscription.group.name = "others"
    requests = [command.SerializeToString() for command in (mine, theirs, strange, mine)]
    frames, ended, seen, refused = watched_telemetry(guard, "orders", "", *requests)
    assert [await anext(frames) for _ in requests] == requests == seen
    assert refused == [set(), {("topic", "other")}, {("group", "others")}, set()]
    assert not ended.is_set()
    await frames.aclose()
    unsigned, ended, _ = telemetry(guard, "orders", "wrong-secret", b"")
    with pytest.raises(Unauthorized):
        await anext(unsigned)
    assert not ended.is_set()  # the handler was never asked


async def test_each_frame_of_every_other_stream_is_judged() -> None:
    guard, seen = Guard(users(), clock=FakeClock()), list[bytes]()

    async def echo(incoming: AsyncIterator[bytes], _: RpcContext) -> AsyncIterator[bytes]:
        async for request in incoming:
            seen.append(request)
            yield request

    async def requests() -> AsyncIterator[bytes]:
        yield mine
        yield theirs

    method = "/evenq.v1.Groups/Session"
    mine = groups_pb2.SessionRequest(join=groups_pb2.Join(group="billing")).SerializeToString()
    theirs = groups_pb2.SessionRequest(join=groups_pb2.Join(group="others")).SerializeToString()
    row = replace(rpc(method), kind=CallKind.BIDI, handler=echo)
    frames: Any = cast("Any", guard.guarded(row).handler)(requests(), context(signed("orders"), method))
    assert await anext(frames) == mine
    with pytest.raises(Forbidden, match="consume group others"):
        await anext(frames)
    assert seen == [mine]


async def test_an_open_stream_ends_when_its_user_goes_and_stays_when_another_does() -> None:
    guard = Guard(users(), clock=FakeClock())
    events: list[BaseException] = []

    async def watch(user: str, secret: str) -> None:
        frames, ended, _ = telemetry(guard, user, secret, b"")
        try:
            async for _ in frames:
                opened.release()
        except Unauthorized as error:
            events.append(error)
            assert ended.is_set()

    opened = asyncio.Semaphore(0)
    tasks = [spawn(watch(*who), name="watch") for who in (("orders", ""), ("orders", "newer-of-orders"), ("root", ""))]
    for _ in tasks:
        await opened.acquire()
    guard.change(users(FILE.replace('["secret-of-orders", "newer-of-orders"]', '"newer-of-orders"')))
    await asyncio.wait({tasks[0]}, timeout=60)
    assert [str(error) for error in events] == ["user orders is no longer known, or has another secret key"]
    assert not tasks[1].done()
    assert not tasks[2].done()
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not guard._open


@pytest.mark.parametrize("kind", ["topic", "group", "neither"])
async def test_an_open_stream_ends_when_a_grant_that_it_rests_on_is_removed(kind: str) -> None:
    guard = Guard(users(), clock=FakeClock())
    command = service_pb2.TelemetryCommand()
    command.settings.subscription.group.name = "billing"
    command.settings.subscription.subscriptions.add().topic.name = "orders"
    frames, ended, _ = telemetry(guard, "reader", "", command.SerializeToString())
    assert await anext(frames)
    reading = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    removed = {"topic": "topic:orders", "group": "group:billing", "neither": "topic:unrelated"}[kind]
    before, reader = FILE.split("[users.reader]")
    guard.change(users(before + "[users.reader]" + reader.replace(removed, "topic:x", 1)))
    if kind == "neither":
        await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return
    name = removed.replace(":", " ")
    with pytest.raises(Forbidden, match=f"user reader may no longer consume {name}"):
        await reading
    assert ended.is_set()


STREAMED = {
    "/evenq.v1.Registry/WatchRoutes": {"cluster": "describe"},
    "/evenq.v1.DeadLetters/Replay": {"group:billing": "operate", "topic:orders": "publish"},
    FETCH_ALL: {"topic:*": "operate", "group:*": "operate"},
    "/evenq.v1.Data/Scan": {"topic:orders": "consume", "group:billing": "consume"},
}
"""Server streams that may last, and the grants that each of them needs."""


def test_each_server_stream_that_may_last_is_tried() -> None:
    lasting = {
        method
        for method, row in CALLS.items()
        if row.kind is CallKind.SERVER_STREAM and row.access.action is not Action.INTERNAL
    }
    assert lasting - set(STREAMED) == {RECEIVE, V2 + "PullMessage"}, "long polls end by themselves"


def with_watcher(grants: Mapping[str, str], secret: str = "secret-of-watcher") -> Users:
    allow = ", ".join(f'{{ resource = "{name}", actions = ["{action}"] }}' for name, action in grants.items())
    return users(f'{FILE}\n[users.watcher]\nsecret = "{secret}"\nallow = [{allow}]\n')


def open_stream(guard: Guard, method: str) -> tuple[asyncio.Task[Any], asyncio.Event, asyncio.Event]:
    """A stream of the user `watcher` whose handler sends one message: its reader, and the begin and end of it."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def one_message(_request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        try:
            yield b"message"
            await asyncio.Event().wait()
        finally:
            ended.set()

    row = fake_rpc(
        method, one_message, service_pb2.ReceiveMessageResponse, kind=CallKind.SERVER_STREAM, access=ACCESS[method]
    )
    handler: Any = guard.guarded(row).handler

    async def read() -> None:
        async for _ in handler(request_of(method), context(signed("watcher"), method)):
            begun.set()

    return spawn(read(), name="read"), begun, ended


@pytest.mark.parametrize(
    ("method", "lost"),
    [(method, lost) for method, grants in STREAMED.items() for lost in (*grants, "user", "secret", "nothing")],
)
async def test_an_open_server_stream_ends_with_its_user_and_with_each_grant_that_it_needs(
    method: str, lost: str
) -> None:
    grants = STREAMED[method]
    guard = Guard(with_watcher(grants), clock=FakeClock())
    reading, begun, ended = open_stream(guard, method)
    await begun.wait()
    match lost:
        case "nothing":
            guard.change(with_watcher({**grants, "topic:unrelated": "consume"}))
            await asyncio.sleep(0)
            assert not reading.done()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        case "user" | "secret":
            guard.change(users() if lost == "user" else with_watcher(grants, "another-secret"))
            with pytest.raises(Unauthorized, match="user watcher is no longer known, or has another secret key"):
                await asyncio.wait_for(reading, 10)
        case _:
            guard.change(with_watcher({name: action for name, action in grants.items() if name != lost}))
            with pytest.raises(Forbidden, match=r"user watcher may no longer .*; a grant was removed"):
                await asyncio.wait_for(reading, 10)
    assert ended.is_set()
    assert not guard._open
    assert not guard._revoked


async def test_a_session_keeps_the_topics_that_are_granted_and_needs_its_group() -> None:
    guard = Guard(users(), clock=FakeClock())
    refused = list[frozenset[tuple[str, str]]]()

    async def handler(incoming: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        async for request in incoming:
            refused.append(context.refused)
            yield request

    def join(group: str) -> bytes:
        message = groups_pb2.Join(group=group)
        for topic in ("orders", "secret", f"%RETRY%{group}"):
            message.member.subscriptions.add(topic=topic)
        return groups_pb2.SessionRequest(join=message).SerializeToString()

    async def requests() -> AsyncIterator[bytes]:
        yield join("billing")
        yield join("others")

    method = "/evenq.v1.Groups/Session"
    row = replace(rpc(method), kind=CallKind.BIDI, handler=handler)
    frames: Any = cast("Any", guard.guarded(row).handler)(requests(), context(signed("reader"), method))
    assert await anext(frames)
    assert refused == [frozenset({("topic", "secret")})]
    with pytest.raises(Forbidden, match="consume group others"):
        await anext(frames)


async def test_a_lock_of_several_topics_leaves_out_those_without_a_grant_and_needs_its_group() -> None:
    guard = Guard(users(), clock=FakeClock())
    method = "/evenq.v1.Groups/LockQueues"
    handler: Any = guard.guarded(rpc(method)).handler

    async def refused(group: str, user: str = "reader") -> frozenset[tuple[str, str]]:
        request = groups_pb2.LockQueuesRequest(group=group)
        for topic in ("orders", "secret", f"%RETRY%{group}"):
            request.queues.add(topic=topic)
        about = context(signed(user), method)
        await handler(request.SerializeToString(), about)
        return about.refused

    assert await refused("billing") == frozenset({("topic", "secret")})
    assert await refused("billing", "root") == frozenset()
    with pytest.raises(Forbidden, match="consume group others"):
        await refused("others")


@pytest.mark.parametrize(
    ("user", "left_out"),
    [("reader", {("topic", "secret")}), ("root", set()), ("not-known-here-yet", set()), (None, set())],
)
async def test_sessions_and_locks_that_a_server_passed_on_leave_out_the_topics_without_a_grant_of_their_user(
    user: str | None, left_out: set[tuple[str, str]]
) -> None:
    """The broker that they are for sees a server as the caller, which may do everything."""
    guard = Guard(users(), clock=FakeClock())
    lock = groups_pb2.LockQueuesRequest(group="billing")
    join = groups_pb2.Join(group="billing")
    for topic in ("orders", "secret"):
        lock.queues.add(topic=topic)
        join.member.subscriptions.add(topic=topic)

    async def session(incoming: AsyncIterator[bytes], _: RpcContext) -> AsyncIterator[bytes]:
        async for request in incoming:
            yield request

    async def requests() -> AsyncIterator[bytes]:
        yield groups_pb2.SessionRequest(join=join).SerializeToString()

    method = "/evenq.v1.Groups/LockQueues"
    handler: Any = guard.guarded(rpc(method)).handler
    about = context(passed_on(user), method)
    await handler(lock.SerializeToString(), about)
    assert about.refused == left_out
    method = "/evenq.v1.Groups/Session"
    row = replace(rpc(method), kind=CallKind.BIDI, handler=session)
    about = context(passed_on(user), method)
    frames: Any = cast("Any", guard.guarded(row).handler)(requests(), about)
    assert await anext(frames)
    assert about.refused == left_out
    await frames.aclose()


async def test_a_refused_receive_is_answered_once_a_second_and_strangers_cannot_pile_up() -> None:
    """Statement 34: Go's push consumers ask again 20 ms after any error."""
    clock = FakeClock()
    guard = Guard(users(), clock=clock)

    async def frames(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        yield b"frame"

    row = fake_rpc(
        RECEIVE, frames, service_pb2.ReceiveMessageResponse, kind=CallKind.SERVER_STREAM, access=ACCESS[RECEIVE]
    )
    handler: Any = guard.guarded(row).handler
    right = handler(request_of(RECEIVE), context(signed("reader"), RECEIVE))
    assert [frame async for frame in right] == [b"frame"]

    async def refused(headers: Mapping[str, str], deadline_ms: int | None = None) -> None:
        about = RpcContext(RECEIVE, list(headers.items()), "p", deadline_ms)
        async for _ in handler(request_of(RECEIVE), about):
            pytest.fail("it was let in")

    def ended(task: asyncio.Task[Any]) -> str:
        return type(task.exception()).__name__ if task.done() else "waits"

    tasks = [
        spawn(refused(signed("elsewhere")), name="forbidden"),
        spawn(refused(signed("reader", "wrong-secret")), name="unauthorized"),
        spawn(refused({}, deadline_ms=700), name="hurried"),
    ]
    await clock.advance(499)
    assert [ended(task) for task in tasks] == ["waits", "waits", "waits"]
    await clock.advance(1)
    assert [ended(task) for task in tasks] == ["waits", "waits", "Unauthorized"]
    await clock.advance(500)
    assert [ended(task) for task in tasks] == ["Forbidden", "Unauthorized", "Unauthorized"]

    crowd = [spawn(refused({}), name="stranger") for _ in range(1_100)]
    await clock.advance(0)
    assert [ended(task) for task in crowd].count("waits") == 1_000
    await clock.advance(1_000)
    assert {ended(task) for task in crowd} == {"Unauthorized"}


REPLIES = """
[users.asker]
secret = "secret-of-asker"
allow = [{ resource = "topic:evenq-replies", actions = ["publish", "reply"] }]
"""
PULL = "/evenq.v1.Data/Pull"


@pytest.mark.parametrize(
    ("expression", "group", "topic", "user", "right"),
    [
        ("reply-0123456789abcdef01234567", "", "evenq-replies", "asker", True),
        ("*", "", "evenq-replies", "asker", False),
        ("", "", "evenq-replies", "asker", False),
        ("reply-0123456789abcdef01234567 || *", "", "evenq-replies", "asker", False),
        ("reply-0123456789abcdef01234567\n", "", "evenq-replies", "asker", False),
        ("reply-01", "", "evenq-replies", "asker", False),
        ("reply-0123456789abcdef01234567", "billing", "evenq-replies", "asker", False),
        ("reply-0123456789abcdef01234567", "", "orders", "asker", False),
        ("reply-0123456789abcdef01234567", "", "evenq-replies", "nobody", False),
        ("*", "", "evenq-replies", "everything", True),
    ],
)
def test_who_waits_for_replies_reads_its_own_and_nobody_elses(
    expression: str, group: str, topic: str, user: str, right: bool
) -> None:
    guard = Guard(users(FILE + REPLIES), clock=FakeClock())
    request = data_pb2.PullRequest(group=group)
    request.queue.topic, request.filter.expression = topic, expression
    assert verdict(guard, PULL, signed(user), request.SerializeToString()) == (20000 if right else Forbidden.code)


def test_a_right_to_replies_is_none_to_search_or_scan_them() -> None:
    guard = Guard(users(FILE + REPLIES), clock=FakeClock())
    tag = "reply-0123456789abcdef01234567"
    scan = data_pb2.ScanRequest()
    scan.queue.topic, scan.filter.expression = "evenq-replies", tag
    sql = data_pb2.PullRequest()
    sql.queue.topic, sql.filter.expression, sql.filter.type = "evenq-replies", tag, common_pb2.Filter.SQL
    find = admin_pb2.FindMessagesRequest(topic="evenq-replies", key=tag)
    offsets = data_pb2.QueryOffsetsRequest()
    offsets.queues.add(topic="evenq-replies")
    for method, request, code in (
        ("/evenq.v1.Data/Scan", scan, Forbidden.code), (PULL, sql, Forbidden.code),
        ("/evenq.v1.Admin/FindMessages", find, Forbidden.code), ("/evenq.v1.Data/QueryOffsets", offsets, 20000),
    ):  # fmt: skip
        assert verdict(guard, method, signed("asker"), request.SerializeToString()) == code, method
