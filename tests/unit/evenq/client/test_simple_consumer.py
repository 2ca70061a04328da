"""The sync simple consumer in its users' threads: shared, closed, interrupted, refused."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import nullcontext
from typing import Any

import pytest

import evenq
from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    IllegalGroup,
    IllegalTopic,
    InvalidReceiptHandle,
    NotImplementedYet,
    TopicNotFound,
    Unsupported,
)
from tests.unit.evenq.client.conftest import SyncWorld


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


def transact(one: evenq.SimpleConsumer, acked: list[evenq.ReceivedMessage], *sent: evenq.Message) -> None:
    with one.transaction() as transaction:
        for message in sent:
            transaction.send(message)
        transaction.ack(*acked)


def test_a_transaction_sends_and_acknowledges_at_its_end_and_nothing_before(world: Any) -> None:
    world.create("t")
    world.create("out")
    world.publish("t", b"1", b"2")
    one = consumer(world)
    messages = one.receive(wait_ms=5_000)
    with one.transaction() as transaction:
        ids = [transaction.send(evenq.Message(topic="out", body=b"f(1)", tag="new")), transaction.send("out", b"f(2)")]
        transaction.ack(*messages)
        assert world.stored("out") == []
    assert world.stored("out") == [b"f(1)", b"f(2)"]
    assert [(result.message_id, result.queue.topic) for result in transaction.results] == [
        (one_id, "out") for one_id in ids
    ]
    with pytest.raises(Unsupported, match="begin a new one"):
        transaction.ack(messages[0])
    with pytest.raises(InvalidReceiptHandle, match="this call stores nothing"):
        transact(one, messages, evenq.Message(topic="out", body=b"again"))
    assert world.stored("out") == [b"f(1)", b"f(2)"]


def test_an_error_in_the_block_commits_nothing_and_a_loop_leaves_its_message(world: Any) -> None:
    world.create("t", queues=1)
    world.create("out")
    world.publish("t", b"bad", b"good")
    one = consumer(world)
    taken = []
    for message in one.messages(invisible_ms=1_000, idle_ms=4_000):
        taken.append(message.body)
        try:
            with one.transaction() as transaction:
                transaction.send("out", b"f(" + message.body + b")")
                transaction.ack(message)
                if taken.count(b"bad") == 1 and message.body == b"bad":
                    raise KeyError("no such order")
        except KeyError:
            continue
    assert sorted(taken) == [b"bad", b"bad", b"good"], "the failed one is redelivered"
    assert world.stored("out") == [b"f(bad)", b"f(good)"]


def test_a_transaction_that_makes_no_sense_says_what_to_do(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = consumer(world)
    (message,) = one.receive(wait_ms=5_000)
    with one.transaction():
        pass
    result = evenq.Message(topic="t", body=b"1")
    with pytest.raises(BadRequest, match="call `ack` in its block"):
        transact(one, [], result)
    other = dataclasses.replace(message, queue=dataclasses.replace(message.queue, broker_name="b"), receipt_handle="x")
    with pytest.raises(BadRequest, match="of 2 brokers, a, b; a transaction is for"):
        transact(one, [message, other], result)
    with pytest.raises(TopicNotFound, match="evenq topic create nowhere"):
        transact(one, [message], dataclasses.replace(result, topic="nowhere"))
    with pytest.raises(NotImplementedYet, match="is FIFO"):
        transact(one, [message], dataclasses.replace(result, message_group="g"))
    one.ack(message)


@pytest.mark.parametrize("window_ms", [0, 60_000])
def test_a_lost_answer_is_repeated_and_the_result_is_there_once(window_ms: int) -> None:
    """Without a window of known ids nothing says that the first try succeeded, and nothing is stored again."""
    world = SyncWorld(duplicates_window_ms=window_ms)
    try:
        world.create("t")
        world.create("out")
        world.publish("t", b"1")
        one = consumer(world)
        (message,) = one.receive(wait_ms=5_000)
        unary, lost = world.net.unary, []

        async def lossy(address: str, method: str, request: bytes, **options: Any) -> bytes:
            answer: bytes = await unary(address, method, request, **options)
            if method.endswith("Transact") and not lost:
                lost.append(answer)
                raise ConnectionFailed("the connection broke before the answer")
            return answer

        world.net.unary = lossy  # type: ignore[method-assign]
        with nullcontext() if window_ms else pytest.raises(InvalidReceiptHandle, match="an earlier try"):
            transact(one, [message], evenq.Message(topic="out", body=b"f(1)"))
        assert len(lost) == 1
        assert world.stored("out") == [b"f(1)"]
        assert one.receive(wait_ms=0) == []
    finally:
        world.close()
