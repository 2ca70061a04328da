"""Which brokers a receive asks, and where a message is settled."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.routes.route import Route
from evenq.client.loops.consumers.receiving import ReceiveLoop
from evenq.client.options import SimpleOptions
from evenq.errors import (
    ConnectionFailed,
    Error,
    Forbidden,
    HaNotAvailable,
    InvalidReceiptHandle,
    PersistenceTimeout,
    RequestTimeout,
)
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage
from evenq.runtime.clock import FakeClock, SystemClock

QUEUES = (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0))


def message(broker: str) -> ReceivedMessage:
    return received_message(body=b"b", message_id="id", queue=MessageQueue("t", broker, 0), receipt_handle="h")


class Calls:
    """Brokers a and b; those in `away` fail with what is said there."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.away: dict[str, Error] = {}
        self.asked: list[str] = []
        self.settled: list[str] = []
        self.left: list[str] = []
        self.together: list[int] = []
        self.expired: set[str] = set()
        self.has: dict[str, ReceivedMessage] = {}
        self.route_error: Error | None = None

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        if self.route_error is not None:
            raise self.route_error
        return Route(topic=topic, writable=QUEUES, readable=QUEUES, addresses={"a": "a:1", "b": "b:1"})

    async def receive(self, address: str, group: str, queue: MessageQueue, **asked: Any) -> list[ReceivedMessage]:
        self.asked.append(address)
        if queue.broker_name in self.away:
            raise self.away[queue.broker_name]
        if queue.broker_name not in self.has:
            await self.clock.sleep_ms(asked["wait_ms"])
        return [self.has[queue.broker_name]] if queue.broker_name in self.has else []

    async def terminate(self, address: str, group: str) -> None:
        self.left.append(address)
        if address[0] in self.away:
            raise self.away[address[0]]

    async def ack(self, address: str, group: str, *got: ReceivedMessage) -> None:
        if address[0] in self.away:
            raise self.away[address[0]]
        self.settled.append(address)
        self.together.append(len(got))
        if self.expired.intersection(one.receipt_handle for one in got):
            raise InvalidReceiptHandle("over")


@asynccontextmanager
async def running(*, anywhere: bool) -> AsyncIterator[tuple[FakeClock, Calls, ReceiveLoop]]:
    clock = FakeClock()
    calls = Calls(clock)
    receiving = ReceiveLoop(
        calls,  # type: ignore[arg-type]  # the part of RpcSimpleCalls that it uses
        group="g", subscriptions={"t": FilterExpression()}, clock=clock, rng=random.Random(1),
        options=SimpleOptions(), anywhere=anywhere,
    )  # fmt: skip
    yield clock, calls, receiving


async def test_where_each_broker_has_messages_of_its_own_all_are_asked_in_turn() -> None:
    async with running(anywhere=False) as (clock, calls, receiving):
        assert await clock.during(receiving.receive(1, 1_000, 4_000)) == []
        assert sorted(calls.asked[:2]) == ["a:1", "b:1"]
        assert len(calls.asked) == 6, "once without waiting, then a second at each"


async def test_every_broker_is_notified_that_a_consumer_stops_also_behind_one_that_is_away() -> None:
    """A broker that is not would keep the messages in hand until their invisible time ends."""
    async with running(anywhere=False) as (clock, calls, receiving):
        calls.away["a"] = ConnectionFailed("gone")
        await clock.during(receiving.close())
        assert calls.left == ["a:1", "b:1"]


async def test_heartbeats_without_a_route_log_one_line_until_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq.client")
    async with running(anywhere=False) as (_, calls, receiving):
        calls.route_error = Forbidden("user u may not describe topic t")
        for _beat in range(3):
            assert await receiving.addresses() == []
        assert caplog.messages == [
            "group g: the route of topic t fails, trying again until it works: user u may not describe topic t"
        ]
        calls.route_error = None
        assert await receiving.addresses() == ["a:1", "b:1"]
        assert caplog.messages[1:] == ["group g: the route of topic t works after 0.0 s, 3 calls failed"]


@pytest.mark.parametrize("error", [ConnectionFailed("gone"), RequestTimeout("hangs")])
async def test_where_any_broker_has_all_messages_one_is_asked_until_it_does_not_answer(error: Error) -> None:
    async with running(anywhere=True) as (clock, calls, receiving):
        for _ in range(3):
            assert await clock.during(receiving.receive(1, 1_000, 4_000)) == []
        assert len(calls.asked) == 3
        [first] = set(calls.asked)
        other = "b" if first == "a:1" else "a"
        calls.away[first[0]], calls.has[other] = error, message(other)
        assert await clock.during(receiving.receive(1, 1_000, 4_000)) == [message(other)]
        assert await clock.during(receiving.receive(1, 1_000, 4_000)) == [message(other)]
        assert calls.asked[3:] == [first, f"{other}:1", f"{other}:1"]


async def test_a_receive_ends_in_time_while_no_broker_answers() -> None:
    async with running(anywhere=True) as (clock, calls, receiving):
        calls.away = {"a": ConnectionFailed("gone"), "b": ConnectionFailed("gone")}
        assert await clock.during(receiving.receive(1, 1_000, 2_000)) == []
        assert 10 < len(calls.asked) < 100, "with pauses"


@pytest.mark.parametrize("anywhere", [True, False])
async def test_a_message_of_a_broker_that_is_gone_is_settled_elsewhere_if_any_would_do(anywhere: bool) -> None:
    async with running(anywhere=anywhere) as (clock, calls, receiving):
        await clock.during(receiving.ack(message("a")))
        calls.away["a"] = ConnectionFailed("gone")
        if anywhere:
            await clock.during(receiving.ack(message("a")))
            assert calls.settled == ["a:1", "b:1"]
        else:
            with pytest.raises(ConnectionFailed):
                await clock.during(receiving.ack(message("a")))


async def test_messages_of_one_broker_are_acknowledged_in_one_call() -> None:
    async with running(anywhere=False) as (clock, calls, receiving):
        await clock.during(receiving.ack(message("a"), message("b"), message("a"), message("a")))
        assert (calls.settled, calls.together) == (["a:1", "b:1"], [3, 1])
        await clock.during(receiving.ack(*[message("a")] * 1_001))
        assert calls.together[2:] == [1_000, 1]
        await clock.during(receiving.ack())
        assert len(calls.together) == 4


@pytest.mark.parametrize("trouble", ["expired", "away"])
async def test_an_error_of_one_broker_is_raised_after_the_others_are_acknowledged(trouble: str) -> None:
    async with running(anywhere=False) as (clock, calls, receiving):
        if trouble == "away":
            calls.away["a"] = ConnectionFailed("gone")
        else:
            calls.expired = {"old"}
        old = replace(message("a"), receipt_handle="old")
        with pytest.raises(InvalidReceiptHandle if trouble == "expired" else ConnectionFailed):
            await clock.during(receiving.ack(old, message("b"), message("b")))
        assert calls.settled[-1] == "b:1"
        assert calls.together[-1] == 2


class MovingCalls(Calls):
    """Broker a has copies; its leader changes after `moves_after` tries."""

    def __init__(self, clock: FakeClock, error: Error, *, moves_after: int, epoch: int = 7) -> None:
        super().__init__(clock)
        self.error, self.moves_after, self.epoch = error, moves_after, epoch
        self.tries: list[str] = []
        self.named = True

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        moved = len(self.tries) >= self.moves_after
        addresses = {"a": "next:1" if moved else "old:1"} if self.named or moved else {}
        epochs = {"a": self.epoch + moved} if self.epoch and addresses else {}
        return Route(topic=topic, writable=QUEUES[:2], readable=QUEUES[:2], addresses=addresses, epochs=epochs)

    async def ack(self, address: str, group: str, *got: ReceivedMessage) -> None:
        self.tries.append(address)
        if address == "old:1":
            self.named = False
            raise self.error

    async def change_invisible(self, address: str, *_: Any, **__: Any) -> str:
        await self.ack(address, "g")
        return "next handle"


def moving(error: Error, **moves: int) -> tuple[FakeClock, MovingCalls, ReceiveLoop]:
    clock = FakeClock()
    calls = MovingCalls(clock, error, **moves)
    receiving = ReceiveLoop(
        calls,  # type: ignore[arg-type]  # the part of RpcSimpleCalls that it uses
        group="g", subscriptions={"t": FilterExpression()}, clock=clock, rng=random.Random(1),
        options=SimpleOptions(timeout_ms=2_000),
    )  # fmt: skip
    return clock, calls, receiving


@pytest.mark.parametrize(
    "error", [HaNotAvailable("hands over"), ConnectionFailed("gone"), RequestTimeout("hangs"), PersistenceTimeout("-")]
)
async def test_a_settlement_that_meets_no_leader_is_made_again_at_the_next_one(error: Error) -> None:
    """D7: nothing of a hand-over is repeated. The route may not name the broker at all meanwhile."""
    clock, calls, receiving = moving(error, moves_after=1)
    await clock.during(receiving.ack(message("a"), message("a")))
    assert calls.tries == ["old:1", "next:1"]
    assert clock.monotonic_ms() < 1_000
    clock, calls, receiving = moving(error, moves_after=1)
    changed = await clock.during(receiving.change_invisible(message("a"), 5_000))
    assert changed.receipt_handle == "next handle"
    assert calls.tries == ["old:1", "next:1"]


@pytest.mark.parametrize("epoch", [7, 0])
@pytest.mark.parametrize("error", [HaNotAvailable("1 of 2 copies are in sync"), ConnectionFailed("gone")])
async def test_a_settlement_is_tried_for_as_long_as_one_call_may_take_and_then_says_why(
    error: Error, epoch: int
) -> None:
    """With pauses: neither a group of too few copies nor a broker without copies is called in a busy loop."""
    clock, calls, receiving = moving(error, moves_after=1_000, epoch=epoch)
    began_ms = clock.monotonic_ms()
    with pytest.raises((HaNotAvailable, ConnectionFailed)):
        await clock.during(receiving.ack(message("a")))
    assert 2_000 <= clock.monotonic_ms() - began_ms <= 2_500
    assert len(calls.tries) < 30


@pytest.mark.parametrize("error", [ConnectionFailed("restarts"), RequestTimeout("slow")])
async def test_a_settlement_is_made_again_at_a_broker_without_copies(error: Error) -> None:
    """It restarted, with another address, or one answer took too long on a busy machine."""
    clock, calls, receiving = moving(error, moves_after=1, epoch=0)
    await clock.during(receiving.ack(message("a")))
    assert calls.tries == ["old:1", "next:1"]
    async with running(anywhere=False) as (clock, calls, receiving):
        calls.away["a"] = error
        acknowledging = asyncio.ensure_future(receiving.ack(message("a")))
        await clock.advance(1_000)
        calls.away.clear()
        await clock.during(acknowledging)
        assert calls.settled == ["a:1"]


@pytest.mark.parametrize("error", [ConnectionFailed("restarts"), RequestTimeout("slow"), HaNotAvailable("hands over")])
async def test_a_settlement_that_fails_elsewhere_too_is_made_again_in_turn(error: Error) -> None:
    async with running(anywhere=True) as (clock, calls, receiving):
        calls.away = {"a": ConnectionFailed("gone"), "b": error}
        acknowledging = asyncio.ensure_future(receiving.ack(message("a")))
        await clock.advance(1_000)
        assert not acknowledging.done()
        del calls.away["b"]
        await clock.during(acknowledging)
        assert calls.settled == ["b:1"]
        calls.away = {"a": ConnectionFailed("gone"), "b": error}
        began_ms = clock.monotonic_ms()
        with pytest.raises(type(error), match=str(error)):
            await clock.during(receiving.ack(message("a")))
        assert 3_000 <= clock.monotonic_ms() - began_ms <= 3_500


@pytest.mark.parametrize("error", [ConnectionFailed("restarts"), RequestTimeout("slow")])
async def test_a_settlement_waits_for_a_route_as_for_its_broker(error: Error) -> None:
    async with running(anywhere=False) as (clock, calls, receiving):
        calls.route_error = error
        acknowledging = asyncio.ensure_future(receiving.ack(message("a")))
        await clock.advance(1_000)
        assert not acknowledging.done()
        calls.route_error = None
        await clock.during(acknowledging)
        assert calls.settled == ["a:1"]
        assert clock.monotonic_ms() < 3_000
    async with running(anywhere=False) as (clock, calls, receiving):
        calls.route_error = error
        began_ms = clock.monotonic_ms()
        with pytest.raises(type(error), match=str(error)):
            await clock.during(receiving.ack(message("a")))
        assert 3_000 <= clock.monotonic_ms() - began_ms <= 3_500


async def test_what_no_other_try_would_change_is_raised_at_once() -> None:
    clock, calls, receiving = moving(InvalidReceiptHandle("over"), moves_after=1_000)
    with pytest.raises(InvalidReceiptHandle):
        await clock.during(receiving.ack(message("a")))
    assert calls.tries == ["old:1"]


async def test_a_broker_that_does_not_answer_delays_neither_heartbeats_nor_the_end_at_the_others() -> None:
    async with running(anywhere=False) as (clock, calls, receiving):
        reached: list[tuple[str, str, int]] = []
        began_ms = clock.monotonic_ms()

        async def call(what: str, address: str) -> None:
            if address == "a:1":
                await clock.sleep_ms(3_000)
                raise RequestTimeout("a does not answer")
            reached.append((what, address, clock.monotonic_ms() - began_ms))

        calls.heartbeat = lambda address, _: call("heartbeat", address)  # type: ignore[attr-defined]
        calls.terminate = lambda address, _: call("goodbye", address)  # type: ignore[attr-defined]
        receiving.start()
        await clock.advance(1_000)
        await clock.during(receiving.close())
        assert reached == [("heartbeat", "b:1", 0), ("goodbye", "b:1", 1_000)]
        assert clock.monotonic_ms() - began_ms <= 4_100


class Silent(Calls):
    """A leader that answers no receive any more, and its successor."""

    epoch = 1

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        queue = MessageQueue("t", "a", 0)
        return Route(
            topic=topic, writable=(queue,), readable=(queue,), addresses={"a": f"copy-{self.epoch}:1"},
            epochs={"a": self.epoch},
        )  # fmt: skip

    async def receive(self, address: str, *_: Any, **__: Any) -> list[ReceivedMessage]:
        self.asked.append(address)
        if address == "copy-1:1":
            await asyncio.sleep(30)
        return [message("a")]


async def test_a_receive_at_a_silent_leader_goes_on_at_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq.client.loops.routes.leader_watch.PARKED_MS", 20)
    monkeypatch.setattr("evenq.client.loops.consumers.receiving.PARKED_MS", 20)
    calls = Silent(FakeClock())
    receiving = ReceiveLoop(
        calls,  # type: ignore[arg-type]  # the part of RpcSimpleCalls that it uses
        group="g", subscriptions={"t": FilterExpression()}, clock=SystemClock(), rng=random.Random(1),
        options=SimpleOptions(),
    )  # fmt: skip
    asyncio.get_running_loop().call_later(0.05, lambda: setattr(calls, "epoch", 2))
    assert await asyncio.wait_for(receiving.receive(1, 1_000, 15_000), 5) == [message("a")]
    assert calls.asked == ["copy-1:1", "copy-2:1"]
    await receiving.routes.close()
