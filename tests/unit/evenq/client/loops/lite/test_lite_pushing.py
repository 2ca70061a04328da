"""Listener calls of lite topics over a receiver that gives what the test sets; with whole brokers: tests/spec/test_lite.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from evenq_proofs.received import received_message

from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.user_code import NotCalled
from evenq.client.loops.lite.lite_pushing import LitePushLoop
from evenq.client.options import LiteOptions
from evenq.errors import ConnectionFailed, Error, Forbidden, InvalidReceiptHandle
from evenq.model import MessageQueue, ReceivedMessage
from evenq.runtime.clock import FakeClock


def message(number: int) -> ReceivedMessage:
    return received_message(
        number,
        topic="p",
        body=b"%d" % number,
        message_id=f"id{number}",
        queue=MessageQueue("p", "a", 0),
        lite_topic=f"x{number}",
        receipt_handle=f"h{number}",
    )


class Receiver:
    """Gives what is put in, and notes how it was settled."""

    def __init__(self) -> None:
        self.ready: list[ReceivedMessage] = []
        self.asked: list[int] = []
        self.failures: list[Error] = []
        self.settled: list[str] = []
        self.more = asyncio.Event()

    async def receive(self, max_messages: int, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        self.asked.append(max_messages)
        self._fail()
        while not self.ready:
            self.more.clear()
            await self.more.wait()
        given, self.ready = self.ready[:max_messages], self.ready[max_messages:]
        return given

    async def ack(self, got: ReceivedMessage) -> None:
        self._fail()
        self.settled.append(f"ack {got.receipt_handle}")

    async def change_invisible(self, got: ReceivedMessage, ms: int, *, suspend: bool = False) -> ReceivedMessage:
        self._fail()
        self.settled.append(f"hide {got.receipt_handle} {ms}")
        return replace(got, receipt_handle=got.receipt_handle + "+")

    def give(self, *numbers: int) -> None:
        self.ready += map(message, numbers)
        self.more.set()

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


Listen = Callable[[FakeClock, ReceivedMessage], Awaitable[object]]


@asynccontextmanager
async def pushing(listen: Listen, slots: int = 4) -> AsyncIterator[tuple[FakeClock, Receiver, LitePushLoop]]:
    clock, receiver = FakeClock(), Receiver()

    async def run(messages: Sequence[ReceivedMessage]) -> object:
        [one] = messages
        return await listen(clock, one)

    made = LitePushLoop(
        receiver,  # type: ignore[arg-type]  # nothing is buried here
        receiver,  # type: ignore[arg-type]  # the part of Receiving that it uses
        receive=receiver.receive, group="g", slots=slots, clock=clock, rng=random.Random(1),
        options=LiteOptions(invisible_ms=3_000, drain_ms=1_000), run_listener=run, topic="p",
        troubles=Troubles(clock, who="group g"),
    )  # fmt: skip
    made.start()
    yield clock, receiver, made
    closing = asyncio.ensure_future(made.close())
    while not closing.done():
        await clock.advance(100)
    await closing


async def test_no_more_is_received_than_listeners_are_free() -> None:
    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        await clock.sleep_ms(100)

    async with pushing(listen, slots=2) as (clock, receiver, _):
        receiver.give(*range(5))
        await clock.advance(10)
        assert (receiver.asked, len(receiver.ready)) == ([2], 3)
        for _turn in range(4):
            await clock.advance(100)
        assert receiver.settled == [f"ack h{number}" for number in range(5)]
        assert max(receiver.asked) == 2


async def test_an_acknowledgement_is_tried_again_unless_the_message_is_somebody_elses() -> None:
    tried: list[bytes] = []

    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        tried.append(one.body)
        await clock.sleep_ms(100)

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1)
        await clock.advance(50)
        receiver.failures = [ConnectionFailed("away"), Forbidden("the grant is missing for a moment")]
        await clock.advance(60)
        assert (receiver.settled, len(receiver.failures)) == ([], 1)
        await clock.advance(500)
        assert receiver.settled == ["ack h1"]
        receiver.give(2)
        await clock.advance(50)
        receiver.failures = [InvalidReceiptHandle("somebody else has it")]
        await clock.advance(1_000)
        assert (receiver.settled, receiver.failures, tried) == (["ack h1"], [], [b"1", b"2"])


async def test_a_listener_that_takes_long_keeps_its_message_and_settles_by_the_newest_handle() -> None:
    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        await clock.sleep_ms(2_500)

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1)
        for _turn in range(30):
            await clock.advance(100)
        assert receiver.settled == ["hide h1 3000", "hide h1+ 3000", "ack h1++"]


async def test_a_message_is_prolonged_again_when_a_grant_returns() -> None:
    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        await clock.sleep_ms(3_500)

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1)
        await clock.advance(50)
        receiver.failures = [Forbidden("the grant is missing for a moment")]
        for _step in range(40):
            await clock.advance(100)
        assert receiver.settled[-1].startswith("ack h1+")


async def test_what_was_given_away_is_not_prolonged_for_ever() -> None:
    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        await clock.sleep_ms(10_000)

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1)
        await clock.advance(500)
        receiver.failures = [InvalidReceiptHandle("somebody else has it")]
        for _turn in range(60):
            await clock.advance(100)
        assert receiver.settled == []


async def test_closing_waits_for_listeners_but_not_for_ever() -> None:
    ended: list[bytes] = []

    async def listen(clock: FakeClock, one: ReceivedMessage) -> None:
        await clock.sleep_ms(500 if one.body == b"1" else 60_000)
        ended.append(one.body)

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1, 2)
        await clock.advance(10)
    assert ended == [b"1"]


async def test_a_listener_that_raises_a_cancellation_has_failed_and_its_message_is_delivered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def listen(_clock: FakeClock, got: ReceivedMessage) -> object:
        if got.queue_offset == 1:
            raise asyncio.CancelledError  # as of a task that it cancelled and awaited
        return True

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1, 2)
        await clock.until(lambda: "ack h2" in receiver.settled)
        await clock.advance(100)
        assert sorted(receiver.settled) == ["ack h2", "hide h1 1000"]
        assert "the listener failed for message id1" in caplog.text


async def test_a_message_whose_listener_could_not_be_called_is_not_settled() -> None:
    """The process ends: the message is delivered again when it is no longer hidden."""
    calls: list[int] = []

    async def listen(_clock: FakeClock, got: ReceivedMessage) -> object:
        calls.append(got.queue_offset)
        if got.queue_offset == 1:
            raise NotCalled("cannot schedule new futures after interpreter shutdown")
        return True

    async with pushing(listen) as (clock, receiver, _):
        receiver.give(1, 2)
        await clock.until(lambda: receiver.settled)
        await clock.advance(120_000)
        assert (calls, receiver.settled) == ([1, 2], ["ack h2"])
