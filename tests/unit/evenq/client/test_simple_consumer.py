"""The sync simple consumer in its users' threads: shared, closed, interrupted, refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import evenq
from evenq.errors import BadRequest, ConnectionFailed, IllegalGroup, IllegalTopic, InvalidReceiptHandle, Unsupported


def consumer(world: Any, **options: Any) -> evenq.SimpleConsumer:
    made: evenq.SimpleConsumer = world.make(
        evenq.SimpleConsumer, **{"group": "g", "subscriptions": {"t": "*"}, **options}
    )
    return made


def test_what_is_acknowledged_is_over_and_what_is_given_back_comes_again(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    with consumer(world) as one:
        first, second = sorted(one.receive(wait_ms=5_000), key=lambda message: message.body)
        one.ack(first)
        hidden = one.change_invisible(second, 600_000)
        again = one.change_invisible(hidden, 0)
        assert again.receipt_handle != hidden.receipt_handle
        (back,) = one.receive(wait_ms=5_000)
        assert (back.body, back.delivery_attempt) == (b"2", 2)
        one.ack(back)
        with pytest.raises(InvalidReceiptHandle):
            one.change_invisible(second, 1_000)
        assert one.receive(wait_ms=0) == []


def test_threads_share_a_consumer_and_each_message_goes_to_one(world: Any, in_threads: Any) -> None:
    world.create("t", queues=4)
    world.publish("t", *(b"%02d" % number for number in range(40)))
    one = consumer(world)
    seen: list[bytes] = []

    def work(_: int) -> None:
        while messages := one.receive(4, wait_ms=200):
            for message in messages:
                seen.append(message.body)
                one.ack(message)

    assert in_threads(4, work) == []
    assert sorted(seen) == [b"%02d" % number for number in range(40)]


def test_arguments_that_make_no_sense_are_refused_with_their_range(world: Any) -> None:
    world.create("t")
    with pytest.raises(IllegalGroup):
        consumer(world, group="no such/name")
    with pytest.raises(IllegalTopic):
        consumer(world, subscriptions={"no such/name": "*"})
    one = consumer(world)
    for wrong in (0, 1_001):
        with pytest.raises(BadRequest, match="the range is 1 to 1000"):
            one.receive(wrong)
    for wrong in (-1, 60_001):
        with pytest.raises(BadRequest, match="the range is 0 to 60000"):
            one.receive(wait_ms=wrong)


def test_after_its_end_a_consumer_refuses_each_call_and_takes_nothing(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    one = consumer(world)
    (message,) = one.receive(1, wait_ms=5_000)
    one.close()
    one.close()
    calls = [lambda: one.receive(wait_ms=0), lambda: one.ack(message), lambda: one.change_invisible(message, 10_000)]
    before = len(world.net.calls)
    for call in calls:
        with pytest.raises(Unsupported, match="consumer of g is closed; make a new one"):
            call()
    assert len(world.net.calls) == before
    other = consumer(world)
    assert [left.body for left in other.receive(wait_ms=5_000)] == [b"2"]


def test_control_c_ends_a_receive_and_it_takes_no_message_afterwards(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    assert one.receive(wait_ms=0) == []
    world.net.hold("ReceiveMessage")
    with world.interrupted():
        one.receive(wait_ms=20_000)
    world.run(world.net.let_go())
    world.publish("t", b"1")
    assert [message.body for message in one.receive(wait_ms=5_000)] == [b"1"], "the interrupted call took it"


def test_a_broker_that_is_gone_is_an_error_and_closing_works_without_it(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    assert one.receive(wait_ms=0) == []
    world.net.stop("a:8081")
    with pytest.raises(ConnectionFailed):
        one.receive(wait_ms=0)
    one.close()


def test_the_users_error_leaves_the_block_and_the_message_is_another_members(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    with pytest.raises(KeyError), consumer(world) as one:  # noqa: PT012 - the block is what is tested
        (message,) = one.receive(wait_ms=5_000)
        one.change_invisible(message, 0)
        raise KeyError("the user's mistake")
    (again,) = consumer(world).receive(wait_ms=5_000)
    assert (again.body, again.delivery_attempt) == (b"1", 2)


def test_a_receive_that_waits_gets_what_is_sent_meanwhile_by_another_thread(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(message.body for message in one.receive(wait_ms=20_000)))
    thread.start()
    world.until(lambda: any(method.endswith("ReceiveMessage") for _, method in world.net.calls))
    world.publish("t", b"1")
    thread.join(60)
    assert got == [b"1"]
