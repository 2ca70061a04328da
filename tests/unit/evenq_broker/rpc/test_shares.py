"""Every call and every loop that makes a topic or a group by itself leaves a part of the table to other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.dead_letters.mover import bury
from evenq_broker.loops.dead_letters.retries import retry_later
from evenq_proofs.blocks import block, place
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.v2_requests import consumer_settings, receive_request, v2_message

from evenq.errors import MessageNotFound, PreconditionFailed, TooManyRequests
from evenq.model import MessageType
from evenq.serving.rpc import ACTS_FOR, CallKind, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import (
    admin_pb2,
    assignment_pb2,
    common_pb2,
    data_pb2,
    dead_letters_pb2,
    groups_pb2,
    peers_pb2,
    staging_pb2,
)
from tests.unit.evenq_broker import staged
from tests.unit.evenq_broker.conftest import users_of

Way = Callable[[Any, str], Awaitable[Any]]
TENANTS = users_of(a="topic:a-* publish,consume,create;group:a-* *", b="topic:b-* publish,consume,create;group:b-* *")
ADMIN = "/evenq.v1.Admin/"


async def asked(stage: Any, method: str, request: Any, response: Any) -> None:
    """Raises what a call of a v2 client is answered."""
    answer = await stage.ask(method, request, response)
    check(answer.status)
    for entry in getattr(answer, "entries", ()):
        check(entry.status)


# -- topics -----------------------------------------------------------------------------------------------------------


async def send(stage: Any, name: str) -> None:
    message = v2_message(name, "id")
    request = service_pb2.SendMessageRequest(messages=[message])
    await asked(stage, "SendMessage", request, service_pb2.SendMessageResponse)


async def publish(stage: Any, name: str) -> None:
    await stage.call("/evenq.v1.Data/Publish", block(place(-1, topic=name), "x"), data_pb2.PublishResponse)


async def stage_rows(stage: Any, name: str) -> None:
    await stage.call(staged.STAGE, staged.stage_rows(staged.block(["x"]), topic=name), staging_pb2.StageResponse)


async def create_topic(stage: Any, name: str) -> None:
    await stage.call(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(topic=name), admin_pb2.CreateTopicResponse)


async def create_topic_here(stage: Any, name: str) -> None:
    """As another broker asks for it."""
    request = admin_pb2.CreateTopicRequest(topic=name, local=True, chosen=True)
    await stage.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)


async def replay(stage: Any, name: str) -> None:
    await stage.during(stage.brokers[0].catalog.create_group("dead"))
    request = dead_letters_pb2.ReplayDeadLettersRequest(group="dead", to_topic=name).SerializeToString()
    frames = stage.net.stream("a:8081", "/evenq.v1.DeadLetters/Replay", request, timeout_ms=1_000)

    async def collect() -> None:
        async for frame in frames:
            check(dead_letters_pb2.ReplayProgress.FromString(frame).status)

    await stage.during(collect())


@pytest.mark.parametrize("way", [send, publish, stage_rows, create_topic, create_topic_here, replay])
async def test_a_tenant_leaves_topics_to_others_whatever_makes_them(stage: Any, way: Way) -> None:
    stage.users = lambda: TENANTS
    broker = await stage.broker(topics_max=8)
    for number in range(6):
        await way(stage, f"a-{number}")
    with pytest.raises(TooManyRequests, match=r"6 topics, 6 of them under the grants of user a.*topics_max.*evenq"):
        await way(stage, "a-6")
    await way(stage, "a-5")  # it exists
    await way(stage, "b-0")
    assert broker.catalog.topics.get("a-6") is None
    assert broker.catalog.topics.get("b-0") is not None


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
async def test_retries_and_dead_letters_of_a_tenant_leave_topics_to_others(stage: Any, prefix: str) -> None:
    """Its groups make them without a call of their user."""
    stage.users = lambda: TENANTS
    broker = await stage.broker(topics_max=8)
    source = await stage.during(broker.catalog.create_topic("a-t", queues=1))
    await publish(stage, "a-t")

    async def fail(name: str) -> None:
        group = await broker.catalog.create_group(name)
        parts = (broker.kernel, group, source, 0, 0)
        if prefix == "%DLQ%":
            await bury(*parts)
        else:
            await retry_later(*parts, level=1, attempts=1, delayed_retries=broker.delayed_retries)

    for number in range(5):
        await stage.during(fail(f"a-{number}"))
    with pytest.raises(TooManyRequests, match="6 of them under the grants of user a"):
        await stage.during(fail("a-5"))
    await stage.during(fail("a-4"))
    await stage.during(fail("b-0"))
    assert broker.catalog.topics.get(prefix + "b-0") is not None


# -- groups -----------------------------------------------------------------------------------------------------------


async def receive(stage: Any, name: str) -> None:
    request = receive_request(name, "t", queue=-1, poll_ms=0, invisible_ms=30_000, batch_size=1)
    for frame in await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse):
        if frame.HasField("status") and frame.status.code != definition_pb2.MESSAGE_NOT_FOUND:
            check(frame.status)


async def pull(stage: Any, name: str) -> None:
    with suppress(MessageNotFound):
        await stage.call("/evenq.v1.Data/Pull", data_pb2.PullRequest(queue=place(0), group=name), data_pb2.PullResponse)


async def commit(stage: Any, name: str) -> None:
    request = data_pb2.CommitOffsetsRequest(group=name, client_id="c")
    await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)


async def lite(stage: Any, name: str) -> None:
    request = service_pb2.SyncLiteSubscriptionRequest(lite_topic_set=["x"])
    request.topic.name, request.group.name = "lites", name
    await asked(stage, "SyncLiteSubscription", request, service_pb2.SyncLiteSubscriptionResponse)


async def assignment(stage: Any, name: str) -> None:
    request = service_pb2.QueryAssignmentRequest(
        endpoints=definition_pb2.Endpoints(
            scheme=definition_pb2.DOMAIN_NAME, addresses=[definition_pb2.Address(host="a", port=8081)]
        )
    )
    request.topic.name, request.group.name = "t", name
    await asked(stage, "QueryAssignment", request, service_pb2.QueryAssignmentResponse)


async def own_assignment(stage: Any, name: str) -> None:
    request = assignment_pb2.AssignmentRequest(topic="t", group=name, client_id="c")
    await stage.call("/evenq.v1.Assignment/Query", request, assignment_pb2.AssignmentResponse)


async def session(stage: Any, name: str) -> None:
    async def requests() -> AsyncIterator[bytes]:
        join = groups_pb2.Join(group=name)
        join.member.client_id = "c"
        yield groups_pb2.SessionRequest(join=join).SerializeToString()
        await asyncio.Event().wait()

    frames = stage.net.stream("a:8081", "/evenq.v1.Groups/Session", requests(), timeout_ms=None)
    event = groups_pb2.SessionEvent.FromString(await stage.during(anext(frames)))
    await stage.during(frames.aclose())
    if event.HasField("refused"):
        check(event.refused.status)


async def lock(stage: Any, name: str) -> None:
    queues = [common_pb2.Queue(topic="t", broker_name="a", queue_id=0)]
    request = groups_pb2.LockQueuesRequest(group=name, client_id="c", queues=queues)
    with suppress(PreconditionFailed):  # it is no member; its group is made all the same
        await stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)


async def create_group(stage: Any, name: str) -> None:
    await stage.call(ADMIN + "CreateGroup", admin_pb2.CreateGroupRequest(group=name), admin_pb2.CreateGroupResponse)


async def reset(stage: Any, name: str) -> None:
    """A broker that knows the group passed it on."""
    request = admin_pb2.ResetOffsetsRequest(group=name, topic="t", local=True)
    await stage.call(ADMIN + "ResetOffsets", request, admin_pb2.ResetOffsetsResponse)


async def announced(stage: Any, name: str) -> None:
    """A poll that another broker has parked."""
    polls = stage.brokers[0].cluster_polls
    await stage.during(polls.announced(polls.joined("other"), Want(name, "t", False), 1))


GROUP_WAYS = [
    receive, pull, commit, lite, assignment, own_assignment, session, lock, create_group, reset, announced,
]  # fmt: skip


@pytest.mark.parametrize("way", GROUP_WAYS)
async def test_a_tenant_leaves_groups_to_others_whatever_makes_them(stage: Any, way: Way) -> None:
    stage.users = lambda: TENANTS
    broker = await stage.broker(groups_max=8)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_topic("lites", message_type=MessageType.LITE))
    for number in range(6):
        await way(stage, f"a-{number}")
    with pytest.raises(TooManyRequests, match=r"6 groups, 6 of them under the grants of user a.*groups_max.*evenq"):
        await way(stage, "a-6")
    await way(stage, "a-5")
    await way(stage, "b-0")
    assert broker.catalog.groups.get("a-6") is None
    assert broker.catalog.groups.get("b-0") is not None


async def test_settings_of_a_consumer_make_no_group_beyond_the_share(stage: Any) -> None:
    """Telemetry is answered all the same; the receives that follow are refused."""

    async def settings(stage: Any, name: str) -> None:
        async def requests() -> AsyncIterator[bytes]:
            command = consumer_settings(definition_pb2.PUSH_CONSUMER, name, "t")
            yield command.SerializeToString()
            await asyncio.Event().wait()

        headers = {"x-mq-client-id": name, "x-mq-language": "JAVA"}
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        frames = stage.net.stream("a:8081", method, requests(), timeout_ms=None, metadata=headers)
        check(service_pb2.TelemetryCommand.FromString(await stage.during(anext(frames))).status)
        await stage.during(frames.aclose())

    stage.users = lambda: TENANTS
    broker = await stage.broker(groups_max=8)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    for name in [*(f"a-{number}" for number in range(7)), "b-0"]:
        await settings(stage, name)
    names = [group.name for group in broker.catalog.groups.all()]
    assert names == [*(f"a-{number}" for number in range(6)), "b-0"]


async def test_a_look_at_a_groups_members_makes_no_group(stage: Any) -> None:
    """A right to describe is enough for it, and is no right to make groups."""
    broker = await stage.broker()
    request = groups_pb2.ListMembersRequest(group="new")
    answer = await stage.call("/evenq.v1.Groups/ListMembers", request, groups_pb2.ListMembersResponse)
    assert not answer.members
    assert broker.catalog.groups.get("new") is None


# -- what is kept under names ---------------------------------------------------------------------------------------------


async def begin(stage: Any, topic: str) -> None:
    message = v2_message(topic, "id", message_type=definition_pb2.TRANSACTION)
    request = service_pb2.SendMessageRequest(messages=[message])
    await asked(stage, "SendMessage", request, service_pb2.SendMessageResponse)


async def new_lite_topic(stage: Any, topic: str) -> None:
    message = v2_message(
        topic, "id", message_type=definition_pb2.LITE, lite_topic=f"lite-{len(stage.brokers[0].lite.topics)}"
    )
    request = service_pb2.SendMessageRequest(messages=[message])
    await asked(stage, "SendMessage", request, service_pb2.SendMessageResponse)


async def new_subscription(stage: Any, topic: str) -> None:
    name = f"lite-{len(stage.brokers[0].lite.subscriptions)}"
    request = service_pb2.SyncLiteSubscriptionRequest(lite_topic_set=[name])
    request.topic.name, request.group.name = topic, topic
    await asked(stage, "SyncLiteSubscription", request, service_pb2.SyncLiteSubscriptionResponse)


@pytest.mark.parametrize(
    ("way", "kind", "limit"),
    [
        (begin, MessageType.TRANSACTION, "transactions_max"),
        (new_lite_topic, MessageType.LITE, "lite_topics_max"),
        (new_subscription, MessageType.LITE, "lite_subscriptions_all_max"),
    ],
)
async def test_a_tenant_leaves_what_names_hold_to_others(stage: Any, way: Way, kind: MessageType, limit: str) -> None:
    stage.users = lambda: TENANTS
    broker = await stage.broker(**{limit: 8})
    for name in ("a-1", "a-2", "b-1", "theirs"):
        await stage.during(broker.catalog.create_topic(name, queues=1, message_type=kind))
    for number in range(6):
        await way(stage, f"a-{1 + number % 2}")
    with pytest.raises(TooManyRequests, match=rf"6 of them under the grants of user a.*8 \({limit}\)"):
        await way(stage, "a-1")
    await way(stage, "b-1")
    await way(stage, "theirs")  # of no tenant: the last that is free
    with pytest.raises(TooManyRequests, match=rf"limit is 8 \({limit}\)"):
        await way(stage, "theirs")


# -- waiting polls ------------------------------------------------------------------------------------------------------


def long_receive() -> tuple[str, bytes]:
    request = receive_request("g", "t", queue=-1, batch_size=1)
    request.long_polling_timeout.seconds = request.invisible_duration.seconds = 30
    return "/apache.rocketmq.v2.MessagingService/ReceiveMessage", request.SerializeToString()


def long_pull() -> tuple[str, bytes]:
    return "/evenq.v1.Data/Pull", data_pb2.PullRequest(queue=place(0), wait_ms=30_000).SerializeToString()


def long_pull_v2() -> tuple[str, bytes]:
    request = service_pb2.PullMessageRequest(batch_size=1)
    request.group.name, request.message_queue.topic.name = "g", "t"
    request.message_queue.broker.name = "a"
    request.long_polling_timeout.seconds = 30
    return "/apache.rocketmq.v2.MessagingService/PullMessage", request.SerializeToString()


def long_query() -> tuple[str, bytes]:
    request = data_pb2.QueryOffsetsRequest(queues=[place(0)], wait_ms=30_000)
    return "/evenq.v1.Data/QueryOffsets", request.SerializeToString()


def long_lite_ready() -> tuple[str, bytes]:
    """A receive of lite topics waits at the other brokers, too."""
    request = peers_pb2.LiteReadyRequest(client_id="c", group="g", topic="t", wait_ms=30_000)
    return "/evenq.v1.Peers/LiteReady", request.SerializeToString()


@pytest.mark.parametrize("call", [long_receive, long_pull, long_pull_v2, long_query, long_lite_ready])
@pytest.mark.parametrize("passed_on", [False, True])
async def test_a_user_leaves_waiting_polls_to_others(
    stage: Any, call: Callable[[], tuple[str, bytes]], passed_on: bool
) -> None:
    """What is beyond the share is answered at once, without messages."""
    stage.users = lambda: TENANTS
    broker = await stage.broker(polls_max=8)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g"))
    method, request = call()
    [rpc] = [one for one in broker.rpcs() if one.method == method]
    waiting: list[asyncio.Task[None]] = []

    async def answered(user: str) -> None:
        headers = [("x-mq-client-id", "c"), *([(ACTS_FOR, user)] if passed_on else [])]
        context = RpcContext(method, headers, "127.0.0.1:1", None)
        context.caller = TENANTS.get("servers" if passed_on else user)
        answer = rpc.handler(request, context)
        if rpc.kind is CallKind.UNARY:
            await answer
        else:
            async for _ in answer:
                pass

    async def polled(user: str) -> bool:
        """True if the call waits."""
        before = len(broker.long_polls._polls)
        waiting.append(asyncio.ensure_future(answered(user)))
        await stage.until(lambda: waiting[-1].done() or len(broker.long_polls._polls) > before)
        return not waiting[-1].done()

    assert [await polled("a") for _ in range(7)] == [True] * 6 + [False]
    assert await polled("b")
    broker.long_polls.answer_all()
    await stage.during(asyncio.gather(*waiting))
    assert not broker.long_polls._polls._by_user


async def test_a_receive_of_lite_topics_waits_at_the_other_brokers_as_its_user(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    here, there = [await stage.broker(name, nameservers="ns:1") for name in "ab"]
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (here, there)))
    await stage.during(here.cluster_catalog.create_topic("a-1", message_type=MessageType.LITE))
    await new_subscription(stage, "a-1")
    [ready] = [one for one in there.rpcs() if one.method == "/evenq.v1.Peers/LiteReady"]

    async def signed(data: bytes, context: RpcContext) -> bytes:
        context.caller = TENANTS.get("servers")
        return bytes(await ready.handler(data, context))

    stage.net.serve(
        "b:8081", [replace(one, handler=signed) if one.method == ready.method else one for one in there.rpcs()]
    )
    request = service_pb2.ReceiveMessageRequest(batch_size=1)
    request.group.name = request.message_queue.topic.name = "a-1"
    request.message_queue.broker.name = "a"
    request.long_polling_timeout.seconds = request.invisible_duration.seconds = 30
    method = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
    [rpc] = [one for one in here.rpcs() if one.method == method]
    context = RpcContext(method, [("x-mq-client-id", "c")], "127.0.0.1:1", None)
    context.caller = TENANTS.get("a")

    async def receive() -> None:
        async for _ in rpc.handler(request.SerializeToString(), context):
            pass

    receiving = asyncio.ensure_future(receive())
    await stage.until(lambda: all(broker.long_polls._polls._by_user == {"a": 1} for broker in (here, there)))
    await stage.during(receiving)


# -- who has no share ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grants", [{}, {"only": "topic:* publish;group:* consume"}])
async def test_one_user_of_all_names_and_a_broker_without_users_have_the_whole_table(stage: Any, grants: Any) -> None:
    if grants:
        stage.users = lambda: users_of(**grants)
    broker = await stage.broker(topics_max=8, groups_max=8)
    for number in range(8):
        await send(stage, f"t{number}")
        await commit(stage, f"g{number}")
    for way in (send, commit):
        with pytest.raises(TooManyRequests, match=r"8 (topics|groups), the limit is 8"):
            await way(stage, "one-more")
    assert (len(broker.catalog.topics), len(broker.catalog.groups)) == (8, 8)


# -- several brokers ------------------------------------------------------------------------------------------------------


async def test_no_broker_is_filled_by_way_of_another_one(stage: Any) -> None:
    """Each broker looks at its own table, also when another one asks; a topic that is refused here is made nowhere."""
    stage.users = lambda: TENANTS
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    first, full = [await stage.broker(name, nameservers="ns:1", topics_max=8 if name == "b" else 100) for name in "ab"]
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (first, full)))
    for number in range(6):
        await stage.during(full.catalog.create_topic(f"a-{number}", queues=1))

    with pytest.raises(TooManyRequests, match="user a"):
        await stage.during(full.cluster_catalog.ensure_topic("a-new"))
    assert first.catalog.topics.get("a-new") is None

    (chosen,) = await stage.during(first.cluster_catalog.create_topic("a-chosen", brokers={"b": 1}))
    assert "user a" in chosen.error
    assert full.catalog.topics.get("a-chosen") is None
    await stage.during(first.cluster_catalog.create_topic("b-0"))
    assert full.catalog.topics.get("b-0") is not None
