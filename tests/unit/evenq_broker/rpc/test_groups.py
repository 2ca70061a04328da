"""Locks on the wire: what is refused, beyond the promises in tests/spec/test_cluster.py."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.core.members import Member, Protocol

from evenq.errors import Error
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, groups_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def lock(stage: Any, *queues: common_pb2.Queue, client_id: str = "x") -> Any:
    request = groups_pb2.LockQueuesRequest(group="g", client_id=client_id, queues=queues)
    return await stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)


async def begin(stage: Any) -> Any:
    broker = await stage.broker()
    await stage.during(broker.create_topic("t", queues=2))
    broker.cluster.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    return broker


def queue(queue_id: int, broker: str = "a", topic: str = "t") -> common_pb2.Queue:
    return common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_several_queues_are_locked_in_one_call_and_answered_in_order(run: Run) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        answer = await lock(stage, queue(1), queue(0))
        told = [(at.queue.queue_id, at.granted, at.holder, at.committed) for at in answer.queues]
        assert told == [(1, True, "x", -1), (0, True, "x", -1)]

    run(story)


@pytest.mark.parametrize(
    ("wanted", "client_id", "code"),
    [
        (queue(0), "stranger", definition_pb2.PRECONDITION_FAILED),
        (queue(0, broker="b"), "x", definition_pb2.PRECONDITION_FAILED),
        (queue(0, topic="none"), "x", definition_pb2.TOPIC_NOT_FOUND),
        (queue(2), "x", definition_pb2.BAD_REQUEST),
    ],
)
def test_a_lock_that_cannot_be_has_its_own_code(run: Run, wanted: Any, client_id: str, code: int) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        with pytest.raises(Error) as caught:
            await lock(stage, wanted, client_id=client_id)
        assert caught.value.code == code

    run(story)


def test_unlocking_what_one_does_not_hold_is_no_error(run: Run) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        request = groups_pb2.UnlockQueuesRequest(group="g", client_id="x", queues=[queue(0)])
        await stage.call("/evenq.v1.Groups/UnlockQueues", request, groups_pb2.UnlockQueuesResponse)

    run(story)


def test_a_deleted_groups_locks_are_free(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await begin(stage)
        await lock(stage, queue(0))
        await stage.during(broker.delete_group("g"))
        assert broker.locks.holder("g", broker.routes.readable("t")[0]) == ""

    run(story)
