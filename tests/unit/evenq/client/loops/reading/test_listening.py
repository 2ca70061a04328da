"""The consume service by itself; how it works inside a consumer is tried in `test_pushing`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.reading.process_queue import PastDeliveries, ProcessQueue
from evenq.client.loops.clients.user_code import NotCalled
from evenq.client.loops.reading.listening import ListenerCalls
from evenq.client.options import PushOptions
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import FakeClock

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return received_message(offset, message_id=str(offset), queue=QUEUE)


@pytest.mark.parametrize(("fenced", "heard"), [(True, []), (False, ["0"])])
async def test_a_queue_that_another_member_got_while_its_delivery_was_counted_is_not_delivered(
    fenced: bool, heard: list[str]
) -> None:
    clock, seen = FakeClock(), []
    past = PastDeliveries(given_until=1, counts={}, attempts_max=17)  # so that the delivery is counted first
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0, ordered=True, past=past)

    async def count(queue: MessageQueue, deliveries: Any) -> None:
        process.drop(fenced=fenced)

    async def send_back(message: ReceivedMessage, attempts: int, level: int) -> None: ...

    async def listener(messages: Any) -> None:
        seen.extend(one.message_id for one in messages)

    ended = asyncio.Event()
    listening = ListenerCalls(
        group="g",
        run=listener,
        clock=clock,
        slots=1,
        options=PushOptions(),
        max_attempts=lambda: 17,
        send_back=send_back,
        count=count,
        settled=lambda _: ended.set(),
        trusted=lambda _: True,
    )
    process.put([message(0)], 1, now_ms=0)
    listening.offer(process)
    await clock.until(ended.is_set)
    assert seen == heard
    assert not process.busy
    assert process.committable == len(heard)


async def test_a_listener_that_could_not_be_called_has_failed_for_nothing() -> None:
    clock, calls, backs = FakeClock(), [], []
    process = ProcessQueue(QUEUE, QueueOffset(0), now_ms=0)

    async def listener(messages: Any) -> None:
        calls.append([(one.queue_offset, one.delivery_attempt) for one in messages])
        if len(calls) == 1:
            raise NotCalled("cannot schedule new futures after interpreter shutdown")

    async def send_back(message: ReceivedMessage, attempts: int, level: int) -> None:
        backs.append(message)

    async def count(queue: MessageQueue, deliveries: Any) -> None: ...

    listening = ListenerCalls(
        group="g",
        run=listener,
        clock=clock,
        slots=1,
        options=PushOptions(),
        max_attempts=lambda: 17,
        send_back=send_back,
        count=count,
        settled=lambda _: None,
        trusted=lambda _: True,
    )
    process.put([message(0)], 1, now_ms=0)
    listening.offer(process)
    await clock.until(lambda: len(calls) == 2)
    assert calls == [[(0, 1)], [(0, 1)]]
    assert backs == []
    assert process.committable == 1
