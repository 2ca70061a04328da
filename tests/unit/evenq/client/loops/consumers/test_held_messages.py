"""Messages that a worker holds: renewed while their tasks run, acknowledged in an outage, given back at the end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.consumers.held_messages import HeldMessage, HeldMessages, MessageSource
from evenq.errors import ConnectionFailed, Error, Forbidden, InvalidReceiptHandle, TopicNotFound, Unauthorized
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import FakeClock

INVISIBLE_MS = 30_000
HELD_MS = 120_000


def message(number: int = 1, broker: str = "a") -> ReceivedMessage:
    return ReceivedMessage(
        topic="t", body=b"x", message_id=f"id-{number}", tag=None, keys=(), properties={}, message_group=None,
        queue=MessageQueue("t", broker, 0), queue_offset=QueueOffset(number), born_ms=0, store_ms=0, receipt_handle=f"{number}.0",
    )  # fmt: skip


class Server:
    """Settles by the newest handle of each message only; `fails` are the errors of the next calls."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.calls: list[int] = []
        """Messages of each call that acknowledges."""
        self.changed: list[tuple[str, int]] = []
        self.uncounted: list[str] = []
        """Messages whose delivery counts as no attempt."""
        self.fails: list[Error] = []
        self.newest: dict[str, str] = {}
        self.open = asyncio.Event()
        self.open.set()

    async def ack(self, *messages: ReceivedMessage) -> None:
        self.calls.append(len(messages))
        await self._answer(*messages)
        self.acked += [message.message_id for message in messages]

    async def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        await self._answer(message)
        self.uncounted += [message.message_id] * suspend
        self.changed.append((message.message_id, invisible_ms))
        number, _, count = message.receipt_handle.partition(".")
        self.newest[message.message_id] = f"{number}.{int(count) + 1}"
        return replace(message, receipt_handle=self.newest[message.message_id])

    async def _answer(self, *messages: ReceivedMessage) -> None:
        await self.open.wait()
        if self.fails:
            raise self.fails.pop(0)
        for message in messages:
            if self.newest.get(message.message_id, message.receipt_handle) != message.receipt_handle:
                raise InvalidReceiptHandle(f"{message.receipt_handle} is old")


class World:
    def __init__(self) -> None:
        self.clock, self.server = FakeClock(), Server()
        self.held = HeldMessages(
            clock=self.clock,
            rng=random.Random(1),
            invisible_ms=INVISIBLE_MS,
            patience_ms=INVISIBLE_MS,
            held_ms_max=HELD_MS,
            who="group g",
        )
        self.source = MessageSource(self.server, "group g", Troubles(self.clock, who="group g"))

    def hold(self, message: ReceivedMessage) -> HeldMessage:
        return self.held.hold(message, self.source)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.held.close(1_000)


async def test_a_short_task_costs_no_renewal(world: World) -> None:
    delivery = world.hold(message())
    await world.clock.advance(INVISIBLE_MS // 3 - 1)
    await world.held.ack(delivery)
    await world.clock.advance(INVISIBLE_MS * 3)
    assert (world.server.acked, world.server.changed, len(world.held)) == (["id-1"], [], 0)


async def test_the_message_of_a_long_task_is_renewed_and_acknowledged_with_its_newest_handle(world: World) -> None:
    delivery = world.hold(message())
    await world.clock.advance(INVISIBLE_MS * 2)
    assert 5 <= len(world.server.changed) <= 6
    assert set(world.server.changed) == {("id-1", INVISIBLE_MS)}
    await world.held.ack(delivery)
    assert world.server.acked == ["id-1"]


async def test_no_gap_between_renewals_reaches_the_invisible_time(world: World) -> None:
    world.hold(message())
    at_ms = []
    for _ in range(HELD_MS // 100 - 1):
        seen = len(world.server.changed)
        await world.clock.advance(100)
        if len(world.server.changed) > seen:
            at_ms.append(world.clock.monotonic_ms())
    gaps = [after - before for before, after in zip([0, *at_ms], at_ms, strict=False)]
    assert gaps
    assert max(gaps) <= INVISIBLE_MS // 2


async def test_an_acknowledgement_waits_for_a_running_renewal(world: World) -> None:
    delivery = world.hold(message())
    world.server.open.clear()
    await world.clock.advance(INVISIBLE_MS // 2)
    acking = asyncio.ensure_future(world.held.ack(delivery))
    await world.clock.advance(0)
    assert not acking.done()
    world.server.open.set()
    await world.clock.during(acking)
    assert (len(world.server.changed), world.server.acked) == (1, ["id-1"])


async def test_a_failed_renewal_is_tried_again_before_the_time_is_over(world: World) -> None:
    delivery = world.hold(message())
    world.server.fails = [ConnectionFailed("gone"), ConnectionFailed("gone")]
    await world.clock.advance(INVISIBLE_MS * 2 // 3)
    assert world.server.changed == [("id-1", INVISIBLE_MS)]
    await world.held.ack(delivery)


async def test_an_acknowledgement_is_repeated_during_an_outage(world: World) -> None:
    delivery = world.hold(message())
    world.server.fails = [ConnectionFailed("gone")] * 5
    await world.clock.during(world.held.ack(delivery))
    assert world.server.acked == ["id-1"]
    assert len(world.held) == 0


async def test_an_acknowledgement_ends_with_the_error_of_a_long_outage(world: World) -> None:
    delivery = world.hold(message())
    world.server.fails = [ConnectionFailed("gone")] * 1_000
    with pytest.raises(ConnectionFailed):
        await world.clock.during(world.held.ack(delivery), step_ms=100)
    assert INVISIBLE_MS <= world.clock.monotonic_ms() < INVISIBLE_MS * 1.5
    assert len(world.held) == 0


@pytest.mark.parametrize("error", [TopicNotFound("deleted"), InvalidReceiptHandle("redelivered")])
async def test_an_acknowledgement_that_cannot_succeed_is_not_repeated(world: World, error: Error) -> None:
    delivery = world.hold(message())
    world.server.fails = [error]
    with pytest.raises(type(error)):
        await world.held.ack(delivery)
    assert len(world.held) == 0


@pytest.mark.parametrize("error", [Forbidden("no grant"), Unauthorized("no key")])
async def test_an_acknowledgement_waits_for_a_grant_or_key_that_returns_while_the_message_is_hidden(
    world: World, error: Error, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = world.hold(message())
    world.server.fails = [error] * 5
    await world.clock.during(world.held.ack(delivery), step_ms=100)
    assert (world.server.acked, world.server.fails) == (["id-1"], [])
    begin, end = caplog.messages
    assert begin.startswith("group g: an acknowledgement is refused, trying again until it is allowed")
    assert end.startswith("group g: an acknowledgement works after")


async def test_an_acknowledgement_without_a_grant_ends_when_the_message_is_visible(world: World) -> None:
    """Not `patience_ms` later: another worker may have the message."""
    delivery = world.hold(message())
    await world.clock.advance(INVISIBLE_MS // 3 - 1_000)
    world.server.fails = [Forbidden("no grant")] * 1_000
    with pytest.raises(Forbidden):
        await world.clock.during(world.held.ack(delivery), step_ms=100)
    assert INVISIBLE_MS <= world.clock.monotonic_ms() <= INVISIBLE_MS + 2_100


async def test_a_message_that_another_worker_got_is_not_renewed_any_more(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = world.hold(message())
    world.server.fails = [InvalidReceiptHandle("redelivered")]
    await world.clock.advance(INVISIBLE_MS)
    assert (len(world.held), world.server.changed) == (0, [])
    assert "id-1 may be delivered to another worker too" in caplog.text
    with pytest.raises(InvalidReceiptHandle, match="ended before it was acknowledged"):
        await world.held.ack(delivery)


async def test_a_task_that_hangs_is_not_renewed_for_ever(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hold(message())
    await world.clock.advance(HELD_MS + INVISIBLE_MS)
    renewals = len(world.server.changed)
    await world.clock.advance(HELD_MS)
    assert (len(world.held), len(world.server.changed)) == (0, renewals)
    assert "runs for more than 120 s" in caplog.text


async def test_the_end_gives_back_what_is_unfinished_and_nothing_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, *_ = [world.hold(message(number)) for number in range(3)]
    await world.held.ack(first)
    with caplog.at_level(logging.WARNING):
        await world.held.close(1_000)
    assert sorted(world.server.changed) == [("id-1", 0), ("id-2", 0)]
    assert "ends with 2 unfinished tasks" in caplog.text


async def test_the_end_does_not_wait_long_for_a_server(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hold(message())
    world.server.open.clear()
    await world.held.close(10)
    assert "could not be given back in 10 ms" in caplog.text


async def test_a_failed_return_is_logged_and_the_others_are_given_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    held = [world.hold(message(number)) for number in range(2)]
    world.server.fails = [ConnectionFailed("gone")]
    with caplog.at_level(logging.INFO):
        await world.held.give_back(held)
    assert len(world.server.changed) == 1
    assert "is redelivered after its invisible time: gone" in caplog.text
    await world.held.give_back(held)
    assert len(world.server.changed) == 1, "each is given back once"


async def test_the_return_of_a_message_that_no_task_has_seen_counts_as_no_attempt(world: World) -> None:
    unseen, seen = world.hold(message(1)), world.hold(message(2))
    await world.held.give_back([unseen], unseen=True)
    await world.held.give_back([seen])
    assert (world.server.changed, world.server.uncounted) == ([("id-1", 0), ("id-2", 0)], ["id-1"])


async def test_many_renewals_do_not_run_at_the_same_time(world: World) -> None:
    running, most = 0, 0
    original = world.server.change_invisible

    async def counted(message: ReceivedMessage, invisible_ms: int, **_: bool) -> ReceivedMessage:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        try:
            return await original(message, invisible_ms)
        finally:
            running -= 1

    world.server.change_invisible = counted  # type: ignore[method-assign]
    for number in range(200):
        world.hold(message(number))
    await world.clock.until(lambda: len(world.server.changed) >= 200)
    assert 1 < most <= 32


async def test_acknowledgements_wait_for_the_call_that_runs_and_go_together_in_the_next(world: World) -> None:
    held = [world.hold(message(number)) for number in range(5)]
    world.server.open.clear()
    done = [world.held.ack(held[0])]
    await world.clock.advance(0)
    done += map(world.held.ack, held[1:])
    world.server.open.set()
    await world.clock.during(asyncio.gather(*done))
    assert world.server.calls == [1, 4]
    assert world.server.acked == [f"id-{number}" for number in range(5)]


async def test_of_messages_that_are_acknowledged_together_only_the_late_one_fails(world: World) -> None:
    held = [world.hold(message(number)) for number in range(3)]
    world.server.newest["id-1"] = "of another worker"
    results = await world.clock.during(asyncio.gather(*map(world.held.ack, held), return_exceptions=True))
    assert [type(result) for result in results] == [type(None), InvalidReceiptHandle, type(None)]
    assert world.server.acked == ["id-0", "id-2"]


async def test_a_broker_that_is_away_delays_no_acknowledgement_at_another(world: World) -> None:
    away, other = world.hold(message(1, "away")), world.hold(message(2, "b"))
    world.server.open.clear()
    waits = world.held.ack(away)
    await world.clock.advance(0)
    answers = Server()
    world.source.consumer.ack = answers.ack  # type: ignore[method-assign]
    await world.clock.during(world.held.ack(other))
    assert (answers.acked, waits.done()) == (["id-2"], False)
    world.server.open.set()
    await world.clock.during(waits)


async def test_the_end_sends_acknowledgements_that_wait(world: World) -> None:
    held = [world.hold(message(number)) for number in range(3)]
    world.server.open.clear()
    done = list(map(world.held.ack, held))
    ending = asyncio.ensure_future(world.held.close(60_000))
    await world.clock.advance(0)
    world.server.open.set()
    await world.clock.during(ending)
    assert (world.server.acked, world.server.changed) == (["id-0", "id-1", "id-2"], [])
    assert all(one.done() for one in done)
