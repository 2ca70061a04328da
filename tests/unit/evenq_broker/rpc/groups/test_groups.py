"""Locks on the wire: what is refused, beyond the promises in tests/spec/test_cluster.py."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Locked
from evenq_broker.loops.resizing.resizing import permit, scale

from evenq.errors import Error
from evenq.model import NO_GENERATION, MessageQueue, Permission
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, diagnosis_pb2, groups_pb2


async def lock(stage: Any, *queues: common_pb2.Queue, client_id: str = "x") -> Any:
    request = groups_pb2.LockQueuesRequest(group="g", client_id=client_id, queues=queues)
    return await stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)


async def begin(stage: Any) -> Any:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    return broker


def queue(queue_id: int, broker: str = "a", topic: str = "t") -> common_pb2.Queue:
    return common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue_id)


async def test_several_queues_are_locked_in_one_call_and_answered_in_order(stage: Any) -> None:
    await begin(stage)
    answer = await lock(stage, queue(1), queue(0))
    reported = [(at.queue.queue_id, at.granted, at.holder, at.committed) for at in answer.queues]
    assert reported == [(1, True, "x", -1), (0, True, "x", -1)]


@pytest.mark.parametrize(
    ("wanted", "client_id", "code"),
    [
        (queue(0), "stranger", definition_pb2.PRECONDITION_FAILED),
        (queue(0, broker="b"), "x", definition_pb2.PRECONDITION_FAILED),
        (queue(0, topic="none"), "x", definition_pb2.TOPIC_NOT_FOUND),
        (queue(2), "x", definition_pb2.BAD_REQUEST),
    ],
)
async def test_a_lock_that_cannot_be_has_its_own_code(stage: Any, wanted: Any, client_id: str, code: int) -> None:
    await begin(stage)
    with pytest.raises(Error) as caught:
        await lock(stage, wanted, client_id=client_id)
    assert caught.value.code == code


async def test_queues_of_a_topic_without_a_grant_are_not_granted_and_change_nothing(stage: Any) -> None:
    """A newer generation would refuse all members that may read the topic, also after a restart."""
    broker = await begin(stage)
    await stage.during(broker.catalog.create_topic("secret", queues=2))
    broker.sessions.join("g", Member(client_id="y", protocol=Protocol.EVENQ))
    await lock(stage, queue(0, topic="secret"))
    await lock(stage, queue(1, topic="secret"), client_id="y")
    [handler] = [one.handler for one in broker.rpcs() if one.method == "/evenq.v1.Groups/LockQueues"]
    request = groups_pb2.LockQueuesRequest(group="g", client_id="x", wait_ms=10_000)
    request.queues.extend([queue(0, topic="secret"), queue(0), queue(1, topic="secret"), queue(9, topic="secret")])
    request.generation.epoch = stage.clock.now_ms() + 86_400_000
    context = RpcContext("/evenq.v1.Groups/LockQueues", [("x-mq-client-id", "x")], "127.0.0.1:1", None)
    context.refused = frozenset({("topic", "secret")})
    answer = groups_pb2.LockQueuesResponse.FromString(await stage.during(handler(request.SerializeToString(), context)))
    assert [(one.granted, one.holder) for one in answer.queues] == [(False, ""), (True, "x"), (False, ""), (False, "")]
    locks = broker.membership.locks
    secret = [MessageQueue("secret", "a", queue_id) for queue_id in range(2)]
    assert [locks.holder("g", one) for one in secret] == ["", "y"], "its own lock is free for other members"
    assert [locks.generation("g", one) for one in secret] == [NO_GENERATION, NO_GENERATION]


async def test_a_generation_of_the_far_future_is_refused_and_leaves_the_queue_to_real_ones(stage: Any) -> None:
    """Rebalancers follow epochs of at most ten years ahead: a later one would be the newest for ever."""
    broker = await begin(stage)
    now_ms, year_ms = stage.clock.now_ms(), 365 * 86_400_000
    request = groups_pb2.LockQueuesRequest(group="g", client_id="x", queues=[queue(0)])
    for epoch in (now_ms + 11 * year_ms, (1 << 63) - 1):
        request.generation.epoch = epoch
        with pytest.raises(Error, match=f"epoch {epoch}") as caught:
            await stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)
        assert caught.value.code == definition_pb2.BAD_REQUEST
    assert broker.membership.locks.generation("g", MessageQueue("t", "a", 0)) == NO_GENERATION
    request.generation.epoch = now_ms + year_ms
    answer = await stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)
    assert answer.queues[0].granted


async def test_unlocking_what_one_does_not_hold_is_no_error(stage: Any) -> None:
    await begin(stage)
    request = groups_pb2.UnlockQueuesRequest(group="g", client_id="x", queues=[queue(0)])
    await stage.call("/evenq.v1.Groups/UnlockQueues", request, groups_pb2.UnlockQueuesResponse)


async def test_a_deleted_groups_locks_are_free(stage: Any) -> None:
    broker = await begin(stage)
    await lock(stage, queue(0))
    await stage.during(broker.catalog.delete_group("g"))
    assert broker.membership.locks.holder("g", broker.catalog.routes.readable("t")[0]) == ""


@pytest.mark.parametrize("passes_on", [False, True])
async def test_a_lock_is_answered_once_it_is_on_the_disk_also_if_another_let_it_go(stage: Any, passes_on: bool) -> None:
    """A client that was answered that a queue is its own must find it so after a crash of the broker."""
    broker = await begin(stage)
    sessions = broker.sessions
    sessions.join("g", Member(client_id="y", protocol=Protocol.EVENQ))
    await lock(stage, queue(0))
    disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written: list[Any] = []

    def record(*ops: Any) -> asyncio.Future[None]:
        written.extend(ops)
        return asyncio.shield(disk)

    broker.ledger.journal.record, kept = record, broker.ledger.journal.record
    request = groups_pb2.LockQueuesRequest(
        group="g", client_id="y", queues=[queue(0) if passes_on else queue(1)], wait_ms=10_000
    )
    answer = asyncio.ensure_future(
        stage.net.unary("a:8081", "/evenq.v1.Groups/LockQueues", request.SerializeToString(), timeout_ms=20_000)
    )
    await stage.clock.advance(200)
    if passes_on:
        sessions.locking.unlock("g", "x", [MessageQueue("t", "a", 0)])
    await stage.clock.advance(1_000)
    assert [op.client_id for op in written if isinstance(op, Locked)] == ["y"]
    assert not answer.done(), "the disk is slow"
    disk.set_result(None)
    response = groups_pb2.LockQueuesResponse.FromString(await stage.during(answer))
    assert response.queues[0].granted
    broker.ledger.journal.record = kept


@pytest.mark.parametrize("closed_by", ["fewer queues", "its permission"])
async def test_a_queue_that_is_closed_while_a_member_waits_for_its_lock_is_not_granted(
    stage: Any, closed_by: str
) -> None:
    """The member would report the queue as gained to its listener, and lose it at its first pull."""
    broker = await begin(stage)
    broker.sessions.join("g", Member(client_id="y", protocol=Protocol.EVENQ))
    await lock(stage, queue(1))
    request = groups_pb2.LockQueuesRequest(group="g", client_id="y", queues=[queue(1)], wait_ms=10_000)
    answer = asyncio.ensure_future(
        stage.net.unary("a:8081", "/evenq.v1.Groups/LockQueues", request.SerializeToString(), timeout_ms=20_000)
    )
    wanted = MessageQueue("t", "a", 1)
    await stage.until(lambda: broker.membership.locks.waiters("g", wanted) == ["y"])
    if closed_by == "fewer queues":
        await stage.during(scale(broker.kernel, "t", 1, membership=broker.membership))
    else:
        await stage.during(permit(broker.kernel, "t", Permission.WRITE))
    broker.sessions.locking.unlock("g", "x", [wanted])
    response = groups_pb2.LockQueuesResponse.FromString(await stage.during(answer))
    assert [(one.granted, one.committed, one.uid) for one in response.queues] == [(False, -1, "")]


@pytest.mark.parametrize("refused", [("secret",), ("secret", "t")])
async def test_a_member_is_none_for_topics_that_it_may_not_consume(stage: Any, refused: tuple[str, ...]) -> None:
    """Their queues are divided among the others; a member that may consume none of its topics is refused."""
    broker = await stage.broker()
    [session] = [one.handler for one in broker.rpcs() if one.method == "/evenq.v1.Groups/Session"]
    join = groups_pb2.Join(group="g", member=groups_pb2.Member(client_id="x"))
    for topic in ("t", "secret", "%RETRY%g"):
        join.member.subscriptions.add(topic=topic)
    context = RpcContext("/evenq.v1.Groups/Session", [("x-mq-client-id", "x")], "127.0.0.1:1", None)
    context.refused = frozenset(("topic", topic) for topic in refused)

    async def requests() -> AsyncIterator[bytes]:
        yield groups_pb2.SessionRequest(join=join).SerializeToString()
        await asyncio.Event().wait()

    stream = session(requests(), context)
    event = groups_pb2.SessionEvent.FromString(await stage.during(anext(stream)))
    members = broker.membership.members.members("g")
    assert broker.sessions.refused_of("g") == [("x", refused)]
    request = diagnosis_pb2.DiagnoseGroupRequest(group="g", local=True)
    answer = await stage.call("/evenq.v1.Admin/DiagnoseGroup", request, diagnosis_pb2.DiagnoseGroupResponse)
    assert [(one.client_id, tuple(one.topics)) for one in answer.part.refused] == [("x", refused)]
    if len(refused) == 1:
        assert [one.topic for one in members[0].subscriptions] == ["%RETRY%g", "t"]
    else:
        assert event.refused.status.code == definition_pb2.FORBIDDEN
        assert "may not consume topic secret, t" in event.refused.status.message
        assert members == []
    await stream.aclose()
