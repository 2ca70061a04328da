"""Blocks in, beyond the promises in tests/spec/test_cluster.py."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenq.errors import Error
from evenq.testing.blocks import block, place
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def publish(stage: Any, request: data_pb2.PublishRequest) -> data_pb2.PublishResponse:
    answer: data_pb2.PublishResponse = await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
    return answer


async def begin(stage: Any, queues: int = 2) -> Any:
    broker = await stage.broker()
    await stage.during(broker.create_topic("t", queues=queues))
    return broker


def test_a_block_without_a_queue_goes_round_the_queues_and_stays_together(run: Run) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        told = [await publish(stage, block(place(-1), "x", "y")) for _ in range(3)]
        assert [(answer.queue.queue_id, answer.first_offset) for answer in told] == [(0, 0), (1, 0), (0, 2)]

    run(story)


def test_a_block_with_one_bad_message_is_refused_whole(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await begin(stage)
        with pytest.raises(Error) as caught:
            await publish(stage, block(place(0), "x", "", "y"))
        assert caught.value.code == definition_pb2.MESSAGE_BODY_EMPTY
        assert broker.store.queue_range(broker.topics.get("t").topic_id, 0) == (0, 0)

    run(story)


@pytest.mark.parametrize(
    ("queue", "code"),
    [
        (place(7), definition_pb2.BAD_REQUEST),
        (place(-2), definition_pb2.BAD_REQUEST),
        (place(0, broker="b"), definition_pb2.PRECONDITION_FAILED),
        (place(0, topic="a b"), definition_pb2.ILLEGAL_TOPIC),
    ],
)
def test_a_block_for_a_queue_that_is_not_here_is_refused(run: Run, queue: common_pb2.Queue, code: int) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        with pytest.raises(Error) as caught:
            await publish(stage, block(queue, "x"))
        assert caught.value.code == code

    run(story)


def test_an_empty_block_and_a_foreign_topic_are_refused(run: Run) -> None:
    async def story(stage: Any) -> None:
        await begin(stage)
        foreign = block(place(0), "x")
        foreign.messages[0].topic.name = "other"
        for request in (block(place(0)), foreign):
            with pytest.raises(Error) as caught:
                await publish(stage, request)
            assert caught.value.code == definition_pb2.MESSAGE_CORRUPTED

    run(story)


def test_names_in_a_block_are_full_names(run: Run) -> None:
    """A namespace beside them would be a second name."""

    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.create_topic("X%t", queues=1))
        request = block(common_pb2.Queue(topic="X%t", queue_id=0), "x")
        request.messages[0].topic.name = "X%t"
        await publish(stage, request)
        request.messages[0].topic.resource_namespace = "Y"
        with pytest.raises(Error, match="a block's topic is a full name, X%t"):
            await publish(stage, request)
        [stored] = await stage.during(broker.store.read_at(broker.topics.get("X%t").topic_id, 0, [0]))
        assert definition_pb2.Message.FromString(stored.head).topic == definition_pb2.Resource(name="X%t")

    run(story)
