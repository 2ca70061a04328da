"""Outcomes of deliveries: the result of a listener, or the calls of a simple consumer."""

from __future__ import annotations

from typing import Any, cast

import pytest

import evenq
from evenq.aio import SimpleConsumer
from evenq.errors import BadRequest
from evenq.faststream.deliveries import EvenqDelivery, ReceivedDelivery
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


def message(offset: int = 0) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"x",
        message_id=f"m-{offset}",
        tag=None,
        keys=(),
        properties={},
        message_group=None,
        queue=MessageQueue("orders", "a", 0),
        queue_offset=QueueOffset(offset),
        born_ms=0,
        store_ms=0,
    )


async def test_the_first_outcome_is_the_result() -> None:
    acked = EvenqDelivery([message()], group="g")
    await acked.ack()
    await acked.nack(3)
    await acked.reject()
    assert acked.result() is None
    nacked = EvenqDelivery([message()], group="g")
    await nacked.nack(3)
    await nacked.nack(5)
    assert nacked.result() == evenq.Retry(delay_level=3)
    rejected = EvenqDelivery([message()], group="g")
    await rejected.reject()
    assert rejected.result() == evenq.Retry(delay_level=-1)


def test_messages_without_an_outcome_are_redelivered() -> None:
    assert EvenqDelivery([message()], group="g").result() == evenq.Retry()


@pytest.mark.parametrize("level", [-1, 19, "3", None])
async def test_a_delay_level_outside_of_the_range_is_refused(level: Any) -> None:
    delivery = EvenqDelivery([message()], group="g")
    with pytest.raises(BadRequest, match=r"give 0 \(by the attempts\) to 18"):
        await delivery.nack(level)
    assert delivery.settled is None


async def test_an_ordered_delivery_has_no_delay_level() -> None:
    delivery = EvenqDelivery([message()], group="g", ordered=True)
    with pytest.raises(BadRequest, match=r"PushOptions\.suspend_ms"):
        await delivery.nack(1)
    await delivery.nack()
    assert delivery.result() == evenq.Retry()


class Consumer:
    """Records the calls of a simple consumer."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    async def ack(self, *messages: ReceivedMessage) -> None:
        self.calls.extend(("ack", message.message_id, 0) for message in messages)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        self.calls.append(("hide", message.message_id, invisible_ms))
        return message


async def test_a_received_delivery_calls_the_broker_once() -> None:
    consumer = Consumer()
    receiver = cast("SimpleConsumer", consumer)
    acked = ReceivedDelivery([message(1), message(2)], group="g", consumer=receiver)
    await acked.ack()
    await acked.ack()
    await acked.nack()
    assert consumer.calls == [("ack", "m-1", 0), ("ack", "m-2", 0)]
    consumer.calls.clear()
    for level in (0, 1):
        await ReceivedDelivery([message(3)], group="g", consumer=receiver).nack(level)
    assert consumer.calls == [("hide", "m-3", 10_000), ("hide", "m-3", 1_000)]
    consumer.calls.clear()
    await ReceivedDelivery([message(4)], group="g", consumer=receiver).reject()
    assert consumer.calls == [("ack", "m-4", 0)]
