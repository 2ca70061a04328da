"""`for message in consumer`: what is acknowledged, what comes again, and when the loop ends."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from typing import Any

import pytest

import evenq
import evenq.aio
from evenq.client.wiring import ClientContext
from evenq.errors import BadRequest, Forbidden, TopicNotFound, Unsupported
from evenq.runtime.clock import FakeClock, SystemClock

LONG_MS = 60_000


def consumer(world: Any, **options: Any) -> evenq.SimpleConsumer:
    made: evenq.SimpleConsumer = world.make(
        evenq.SimpleConsumer, **{"group": "g", "subscriptions": {"t": "*"}, **options}
    )
    return made


def rest(world: Any, wait_ms: int = 0) -> list[tuple[bytes, int]]:
    """Bodies and attempts of what the group can receive now; they are acknowledged."""
    other = consumer(world)
    found = []
    while messages := other.receive(wait_ms=wait_ms):
        wait_ms = 0
        found += [(message.body, message.delivery_attempt) for message in messages]
        other.ack(*messages)
    return sorted(found)


def acks(world: Any) -> int:
    return sum(method.endswith("/AckMessage") for _, method in world.net.calls)


def test_a_message_is_acknowledged_when_the_next_one_is_taken(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2", b"3")
    seen, before = [], []
    for message in consumer(world).messages(idle_ms=0):
        before.append(acks(world))
        seen.append(message.body)
    assert sorted(seen) == [b"1", b"2", b"3"]
    assert before == [0, 1, 2]
    assert acks(world) == 3
    assert rest(world) == []


def test_after_an_exception_the_message_waits_out_its_time_and_the_others_come_at_once(world: Any) -> None:
    world.create("t")
    world.publish("t", *(b"%d" % number for number in range(40)))
    one, seen = consumer(world), []
    with pytest.raises(KeyError):  # noqa: PT012 - the loop is what is tested
        for message in one.messages(invisible_ms=LONG_MS):
            seen.append(message.body)
            if len(seen) == 25:  # by then several are received together
                raise KeyError("the user's mistake")
    world.until(lambda: not one._loops.open)
    left = rest(world)
    assert [body for body, _ in left] == sorted({b"%d" % number for number in range(40)} - set(seen))
    assert {attempt for _, attempt in left} == {1}, "a message that no body saw was counted as delivered"
    assert consumer(world).receive(wait_ms=0) == [], "the failed message came before its time"


def test_a_failed_message_comes_again_as_the_next_attempt(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world)
    with pytest.raises(KeyError):  # noqa: PT012 - the loop is what is tested
        for _ in one.messages(invisible_ms=1_000):
            raise KeyError("the user's mistake")
    assert rest(world, wait_ms=20_000) == [(b"1", 2)]


def test_break_leaves_the_message_unless_the_body_acknowledged_it(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world)
    for _ in one.messages(invisible_ms=1_000):
        break
    assert acks(world) == 0
    for message in one.messages(idle_ms=20_000):
        assert (message.body, message.delivery_attempt) == (b"1", 2)
        one.ack(message)
        break
    assert acks(world) == 1
    one.close()
    assert rest(world, wait_ms=1_500) == []


def test_a_new_for_statement_does_not_acknowledge_the_message_of_the_one_that_failed(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    one = consumer(world)
    messages, seen = one.messages(invisible_ms=LONG_MS, idle_ms=0), []
    for _ in range(2):
        try:
            for message in messages:
                seen.append(message.body)
                raise KeyError("the user's mistake")
        except KeyError:
            pass
    assert sorted(seen) == [b"1", b"2"]
    assert acks(world) == 0


def test_a_message_that_the_body_settled_is_left_alone(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    one = consumer(world)
    for message in one.messages(idle_ms=0):
        if message.body == b"1":
            one.ack(message)
        else:
            one.change_invisible(message, 0)
            break
    assert acks(world) <= 1
    world.until(lambda: not one._loops.open)
    assert (b"2", 2) in rest(world, wait_ms=20_000)


@pytest.mark.slow
def test_a_slow_body_keeps_its_message_and_its_ack_counts(world: Any) -> None:
    """Its invisible duration is extended; without that, another member would get it after three seconds."""
    world.create("t")
    world.publish("t", b"1")
    one, other = consumer(world), consumer(world)
    for message in one.messages(invisible_ms=3_000, idle_ms=0):
        assert other.receive(wait_ms=4_500) == [], f"{message.body!r} was delivered twice"
    assert rest(world, wait_ms=1_500) == []


def test_a_body_that_takes_too_long_loses_its_message(world: Any, caplog: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world, options=evenq.SimpleOptions(consume_timeout_ms=1_000))
    for _ in one.messages(invisible_ms=4_000, idle_ms=0):
        (again,) = consumer(world).receive(wait_ms=20_000)
        assert again.delivery_attempt == 2
    assert acks(world) == 0
    assert "is processed for longer than consume_timeout_ms (1000)" in caplog.text


def test_a_fast_body_gets_many_messages_per_receive_and_a_slow_one_single_messages(world: Any) -> None:
    world.create("t")
    world.publish("t", *(b"%d" % number for number in range(100)))
    one = consumer(world)
    fast = one.messages(idle_ms=0)
    fast._loop._clock = FakeClock()  # bodies take no time, also on a busy machine
    assert len(list(fast)) == 100
    receives = sum(method.endswith("/ReceiveMessage") for _, method in world.net.calls)
    assert receives < 60
    world.publish("t", *(b"%d" % number for number in range(3)))
    slow = one.messages(idle_ms=0, invisible_ms=LONG_MS)
    for message in slow:
        assert message.body
        assert not slow._loop._next, "messages wait behind a body of unknown length"


def test_close_in_another_thread_ends_a_loop_that_waits(world: Any) -> None:
    world.create("t")
    one, seen = consumer(world), list[evenq.ReceivedMessage]()
    thread = threading.Thread(target=lambda: seen.extend(one))
    thread.start()
    world.until(lambda: any(method.endswith("/ReceiveMessage") for _, method in world.net.calls))
    one.close()
    thread.join(60)
    assert not thread.is_alive()
    assert seen == []
    with pytest.raises(Unsupported, match="is closed"):
        next(iter(one))


def test_close_in_the_body_ends_the_loop_and_leaves_the_message(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world)
    seen = []
    for message in one.messages(invisible_ms=1_000):
        seen.append(message.body)
        one.close()
    assert seen == [b"1"]
    assert rest(world, wait_ms=20_000) == [(b"1", 2)]


def test_stop_ends_the_loop_after_the_body_and_its_message_is_acknowledged(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    one = consumer(world)
    messages, seen = one.messages(), []
    for message in messages:
        seen.append(message.body)
        messages.stop()
    assert len(seen) == 1
    world.until(lambda: not one._loops.open)
    assert rest(world) == [(body, 1) for body in (b"1", b"2") if body not in seen]


def test_control_c_ends_a_loop_that_waits(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    assert one.receive(wait_ms=0) == []
    world.net.hold("ReceiveMessage")
    with world.interrupted():
        for _ in one:
            pass
    world.run(world.net.let_go())
    world.publish("t", b"1")
    assert rest(world, wait_ms=5_000) == [(b"1", 1)]


def test_a_loop_waits_for_an_outage_and_ends_with_a_permanent_error(world: Any, caplog: Any) -> None:
    world.create("t")
    one = consumer(world)
    assert one.receive(wait_ms=0) == []
    world.net.stop("a:8081")
    seen: list[bytes] = []
    thread = threading.Thread(target=lambda: seen.extend(message.body for message in one.messages(idle_ms=20_000)))
    thread.start()
    world.until(lambda: "receiving fails, trying again until it works" in caplog.text)

    async def back() -> None:
        world.net.serve("a:8081", world.broker.rpcs())

    world.run(back())
    world.publish("t", b"1")
    world.until(lambda: seen)
    one.close()
    thread.join(60)
    with pytest.raises(TopicNotFound):
        list(consumer(world, subscriptions={"no-such-topic": "*"}).messages(idle_ms=0))


def test_an_acknowledgement_waits_for_a_grant_that_returns(world: Any, caplog: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world)
    receiving = one._loops.receiving
    refusals, ack = [Forbidden("user u may not consume topic t")] * 3, receiving.ack

    async def refused(*messages: Any) -> None:
        if refusals:
            raise refusals.pop()
        await ack(*messages)

    receiving.ack = refused
    assert [message.body for message in one.messages(idle_ms=0)] == [b"1"]
    assert (refusals, rest(world)) == ([], [])
    assert "an acknowledgement is refused, trying again until it is allowed" in caplog.text
    assert "an acknowledgement works after" in caplog.text


def test_an_outage_until_the_end_of_the_idle_time_is_an_error_not_an_end(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    assert one.receive(wait_ms=0) == []
    world.net.stop("a:8081")
    with pytest.raises(evenq.errors.ConnectionFailed):
        list(one.messages(idle_ms=0))


@pytest.mark.parametrize("wrong", [{"max_messages": 0}, {"invisible_ms": 999}, {"idle_ms": -1}, {"idle_ms": "1"}])
def test_numbers_out_of_their_range_are_refused_before_the_loop(world: Any, wrong: Any) -> None:
    with pytest.raises(BadRequest, match=f"{next(iter(wrong))} is .*, the range is"):
        consumer(world).messages(**wrong)


def test_async_for_has_the_same_rules(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2", b"3")

    async def work() -> list[bytes]:
        context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=world.net)
        seen = []
        async with evenq.aio.SimpleConsumer(
            group="g", subscriptions={"t": "*"}, endpoint="a:8081", context=context
        ) as one:
            async for message in one:
                seen.append(message.body)
                if len(seen) == 2:
                    await one.ack(message)
                    break
            seen += [message.body async for message in one.messages(idle_ms=0)]
            waiting = asyncio.get_running_loop().create_task(anext(one.messages()))
            await asyncio.sleep(0)
            await one.close()
            with pytest.raises(StopAsyncIteration):
                await waiting
        return seen

    assert sorted(world.run(work())) == [b"1", b"2", b"3"]
    assert rest(world) == []


def test_messages_of_a_pull_consumer_count_as_consumed_when_the_next_one_is_taken(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2", b"3")
    arguments = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST"}
    with pytest.raises(KeyError), world.make(evenq.PullConsumer, **arguments) as one:  # noqa: PT012 - the loop is tested
        for message in one:
            if message.body == b"2":
                raise KeyError("the user's mistake")
    with world.make(evenq.PullConsumer, **arguments) as one:
        for message in one:
            if message.body == b"3":
                break
            assert message.body == b"2"
    with world.make(evenq.PullConsumer, **arguments) as one:
        assert one.poll(wait_ms=300) == [], "after a break and a clean end of the block the message is consumed"


def test_close_in_another_thread_ends_the_loop_of_a_pull_consumer(world: Any) -> None:
    world.create("t")
    one = world.make(evenq.PullConsumer, group="g", subscriptions={"t": "*"}).start()
    thread = threading.Thread(target=lambda: list(one))
    thread.start()
    world.until(lambda: any(method.endswith("/Pull") for _, method in world.net.calls))
    one.close()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(Unsupported, match="not running"):
        next(iter(one))


def test_a_transaction_of_asyncio_is_one_call_at_the_end_of_its_block(world: Any) -> None:
    world.create("t")
    world.create("out")
    world.publish("t", b"1")

    async def work() -> tuple[int, str]:
        async with evenq.aio.SimpleConsumer(
            group="g", subscriptions={"t": "*"}, endpoint="a:8081", context=world.context()
        ) as made:
            (message,) = await made.receive(wait_ms=5_000)
            with suppress(KeyError):
                async with made.transaction() as failed:
                    failed.send("out", b"never")
                    failed.ack(message)
                    raise KeyError("no such order")
            async with made.transaction() as transaction:
                sent = transaction.send("out", b"f(1)")
                transaction.ack(message)
            assert [result.message_id for result in transaction.results] == [sent]
            return len(await made.receive(wait_ms=0)), sent

    assert world.run(work())[0] == 0
    assert world.stored("out") == [b"f(1)"]
