"""The sync producer in its users' threads: shared, closed, interrupted, refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

import evenq
import evenq.aio
from evenq.client.options import ProducerOptions
from evenq.client.wiring import ClientContext
from evenq.errors import (
    BadRequest,
    BodyEmpty,
    ConnectionFailed,
    IllegalTopic,
    RequestTimeout,
    TooManyRequests,
    TopicNotFound,
    Unsupported,
)
from evenq.model import TransactionResolution
from evenq.runtime.clock import SystemClock
from evenq.wire import net


def message(body: bytes = b"b", topic: str = "t") -> evenq.Message:
    return evenq.Message(topic=topic, body=body)


def test_what_was_sent_without_waiting_is_stored_when_the_block_ends(world: Any) -> None:
    world.create("t")
    with world.make(evenq.Producer, options=ProducerOptions(linger_ms=1_000)) as producer:
        futures = [producer.send_async(message(b"%d" % number)) for number in range(5)]
        producer.send_oneway(message(b"oneway"))
    assert all(future.done() for future in futures)
    assert len({future.result().message_id for future in futures}) == 5
    assert world.stored("t") == [b"0", b"1", b"2", b"3", b"4", b"oneway"]


def test_threads_share_a_producer_and_each_message_is_stored_once(world: Any, in_threads: Any) -> None:
    world.create("t", queues=4)
    producer = world.make(evenq.Producer)

    def send(number: int) -> None:
        for index in range(20):
            producer.send(message(b"%d.%d" % (number, index)))
        producer.send_batch(message(b"%d.batch.%d" % (number, index)) for index in range(20))

    assert in_threads(6, send) == []
    expected = [b"%d.%d" % (number, index) for number in range(6) for index in range(20)]
    expected += [b"%d.batch.%d" % (number, index) for number in range(6) for index in range(20)]
    assert world.stored("t") == sorted(expected)


def test_grpcs_thread_is_held_once_and_released_by_a_close_that_fails(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("t")
    calls = []
    monkeypatch.setattr(net, "hold_grpc", lambda: calls.append("hold"))
    monkeypatch.setattr(net, "let_grpc_go", lambda: calls.append("release"))
    let_go = ClientContext.let_go

    async def fail(self: ClientContext, closed: Any) -> None:
        await let_go(self, closed)
        raise OSError("the channel was cut")

    producer = world.make(evenq.Producer)
    for _ in range(2):
        producer.send_async(message()).result()
    monkeypatch.setattr(ClientContext, "let_go", fail)
    with pytest.raises(OSError, match="cut"):
        producer.close()
    assert calls == ["hold", "release"]


def test_after_its_end_a_producer_refuses_each_call_by_name_and_closing_again_is_no_error(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer, checker=lambda _: TransactionResolution.COMMIT)
    producer.close()
    producer.close()
    calls = [
        lambda: producer.send(message()),
        lambda: producer.send_async(message()),
        lambda: producer.send_oneway(message()),
        lambda: producer.send_batch([message()]),
        lambda: producer.request(message()),
        lambda: producer.begin_transaction(message()),
    ]
    for call in calls:
        with pytest.raises(ConnectionFailed, match="this producer is closed; make a new one"):
            call()
    producer.flush(1_000)
    assert world.stored("t") == []


def test_threads_may_close_a_producer_at_once_and_while_others_send(world: Any, in_threads: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    kept: list[bytes] = []

    def work(number: int) -> None:
        if number < 2:
            producer.send(message(b"first %d" % number))
            producer.close()
            return
        for index in range(200):
            body = b"%d.%d" % (number, index)
            producer.send(message(body))
            kept.append(body)

    failures = in_threads(4, work)
    assert all(isinstance(error, ConnectionFailed) and "closed" in str(error) for error in failures), failures
    stored = world.stored("t")
    assert set(kept) <= set(stored), "what was acknowledged is there"
    assert len(stored) == len(set(stored))


def test_a_close_that_takes_too_long_says_so_and_what_is_pending_fails(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    producer.send(message(b"first"))
    world.net.hold("Publish", "SendMessage")
    pending = producer.send_async(message(b"late"))
    assert world.net.arrived.wait(60)
    with pytest.raises(RequestTimeout, match="1 messages are not acknowledged after 30 ms"):
        producer.close(timeout_ms=30)
    with pytest.raises(ConnectionFailed, match="closed before the message was acknowledged"):
        pending.result(60)
    producer.close()


def test_a_flush_waits_for_what_is_pending_and_no_longer_than_it_may(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    producer.flush(0)
    world.net.hold("Publish", "SendMessage")
    pending = producer.send_async(message())
    with pytest.raises(RequestTimeout, match="not acknowledged after 30 ms"):
        producer.flush(30)
    assert not pending.done()
    world.run(world.net.let_go())
    producer.flush()
    assert pending.done()


def test_a_message_that_was_refused_leaves_nothing_pending(world: Any) -> None:
    producer = world.make(evenq.Producer, options=ProducerOptions(max_attempts=1))
    with pytest.raises(IllegalTopic):
        producer.send(message(topic="no such/name"))
    with pytest.raises(BodyEmpty, match="send at least one byte"):
        producer.send(message(b""))
    world.net.stop("a:8081")
    with pytest.raises(ConnectionFailed):
        producer.send(message())
    producer.flush(0)


def test_a_batch_raises_its_first_error_after_all_were_answered(world: Any) -> None:
    world.create("t")
    world.create("transactions", message_type="TRANSACTION")
    producer = world.make(evenq.Producer, options=ProducerOptions(max_attempts=1))
    with pytest.raises(evenq.errors.MessageTypeConflict):
        producer.send_batch([message(b"1"), message(b"2", topic="transactions"), message(b"3")])
    assert world.stored("t") == [b"1", b"3"]
    producer.flush(0)


def test_the_first_messages_of_a_batch_are_on_their_way_while_the_last_ones_are_drawn(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenq.client.loops.sending.blocks.DRAWN_MS", 60_000)  # however slow this machine is
    world.create("t")
    producer = world.make(evenq.Producer, options=ProducerOptions(linger_ms=1_000))
    producer.send(message(b"-1"))
    world.net.hold("Publish")

    def draw() -> Iterator[evenq.Message]:
        for number in range(300):
            if number == 200:
                assert world.net.arrived.is_set(), "nothing was sent yet"
                world.run(world.net.let_go())
            yield message(b"%d" % number)

    results = producer.send_batch(draw())
    assert [result.offset for result in results] == list(range(1, 301))
    assert world.stored("t") == sorted(b"%d" % number for number in range(-1, 300))


def test_a_batch_makes_one_future_for_each_call(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("t", queues=4)
    producer = world.make(evenq.Producer)
    producer.send(message())
    made: list[Future[Any]] = []

    class Counted(Future[Any]):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr("evenq.client.producer.Future", Counted)
    monkeypatch.setattr("evenq.client.loops.sending.blocks.DRAWN_MS", 60_000)  # however slow this machine is
    producer.send_batch(message(b"%d" % number) for number in range(400))
    assert len(made) == 4


def test_control_c_ends_a_batch_that_waits_and_the_producer_works_on(world: Any) -> None:
    world.create("t", queues=2)
    producer = world.make(evenq.Producer)
    producer.send(message(b"first"))
    world.net.hold("Publish", "SendMessage")
    with world.interrupted():
        producer.send_batch(message(b"%d" % number) for number in range(100))
    world.run(world.net.let_go())
    producer.send(message(b"last"))
    producer.flush(20_000)
    producer.close()
    stored = world.stored("t")
    assert {b"first", b"last"} <= set(stored)
    assert len(stored) == len(set(stored)), "what was interrupted is stored once or not at all"


def test_a_batch_in_a_futures_callback_is_refused_and_nothing_of_it_is_sent(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    producer.send(message(b"first"))
    seen: Future[BaseException | None] = Future()

    def callback(_: object) -> None:
        try:
            producer.send_batch(message(b"%d" % number) for number in range(100))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            seen.set_result(error)

    world.net.hold("Publish", "SendMessage")
    producer.send_async(message(b"second")).add_done_callback(callback)
    world.run(world.net.let_go())
    error = seen.result(60)
    assert isinstance(error, Unsupported)
    assert "loop thread" in str(error)
    assert world.stored("t") == [b"first", b"second"]


def test_a_full_producer_refuses_at_once_or_waits_for_room(world: Any) -> None:
    world.create("t")
    options = ProducerOptions(pending_messages=2, block_ms=20)
    producer = world.make(evenq.Producer, options=options)
    world.net.hold("Publish", "SendMessage")
    pending = [producer.send_async(message(b"%d" % number)) for number in range(2)]
    with pytest.raises(TooManyRequests, match="raise pending_messages"):
        producer.send_async(message(b"too many"))
    world.run(world.net.let_go())
    for future in pending:
        future.result(60)
    producer.send(message(b"again"))
    assert world.stored("t") == [b"0", b"1", b"again"]


def test_a_sync_call_in_a_futures_callback_is_refused_instead_of_hanging(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    seen: Future[BaseException] = Future()

    def callback(_: object) -> None:
        try:
            producer.begin_transaction(message())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            seen.set_result(error)

    world.net.hold("Publish", "SendMessage")
    producer._checker = lambda _: TransactionResolution.COMMIT
    producer.send_async(message()).add_done_callback(callback)
    world.run(world.net.let_go())
    error = seen.result(60)
    assert isinstance(error, Unsupported)
    assert "loop thread" in str(error)


def test_control_c_ends_a_send_that_waits_and_the_producer_works_on(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer)
    producer.send(message(b"first"))
    world.net.hold("Publish", "SendMessage")
    with world.interrupted():
        producer.send(message(b"interrupted"))
    world.run(world.net.let_go())
    producer.send(message(b"last"))
    producer.close()
    stored = world.stored("t")
    assert {b"first", b"last"} <= set(stored)
    assert len(stored) == len(set(stored)), "what was interrupted is stored once or not at all"


def test_the_users_error_leaves_the_block_and_the_producer_is_closed(world: Any) -> None:
    world.create("t")
    with pytest.raises(KeyError), world.make(evenq.Producer) as producer:  # noqa: PT012 - the block is what is tested
        producer.send_async(message(b"before"))
        raise KeyError("the user's mistake")
    with pytest.raises(ConnectionFailed, match="closed"):
        producer.send(message())
    assert world.stored("t") == [b"before"]


def test_a_request_that_nobody_answers_ends_in_its_time_and_nothing_waits_for_it(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer, options=ProducerOptions(pending_requests=1))
    for _ in range(2):  # a request that is over leaves its room to the next one
        with pytest.raises(RequestTimeout):
            producer.request(message(), timeout_ms=100)


def test_a_transaction_needs_a_checker_and_says_so(world: Any) -> None:
    world.create("x", message_type="TRANSACTION")
    with pytest.raises(Unsupported, match="has no checker; give one"):
        world.make(evenq.Producer).begin_transaction(message(topic="x"))


def test_a_transaction_is_seen_once_it_is_committed_and_never_after_a_rollback(world: Any) -> None:
    world.create("x", message_type="TRANSACTION")
    producer = world.make(evenq.Producer, checker=lambda _: TransactionResolution.UNKNOWN)
    with producer.begin_transaction(message(b"kept", "x")):
        assert world.stored("x") == []
    with pytest.raises(KeyError), producer.begin_transaction(message(b"lost", "x")):
        raise KeyError("no such order")
    assert world.stored("x") == [b"kept"]


def test_a_half_message_is_refused_for_an_illegal_topic_before_anything_is_sent(world: Any) -> None:
    producer = world.make(evenq.Producer, checker=lambda _: TransactionResolution.COMMIT)
    with pytest.raises(IllegalTopic):
        producer.begin_transaction(message(topic="no such/name"))
    assert not any(method.endswith("SendMessage") for _, method in world.net.calls)


def test_a_topic_that_does_not_exist_is_named(world: Any) -> None:
    world.broker.runtime.settings = world.broker.runtime.settings.model_copy(update={"auto_create_topics": False})
    producer = world.make(evenq.Producer, options=ProducerOptions(max_attempts=1))
    with pytest.raises(TopicNotFound, match="missing"):
        producer.send(message(topic="missing"))


def test_a_delayed_message_is_recalled_by_its_handle_twice_and_not_under_another_topic(world: Any) -> None:
    world.create("later", message_type="DELAY")
    world.create("t")
    with world.make(evenq.Producer) as producer:
        sent = producer.send(evenq.Message(topic="later", body=b"x", delay=timedelta(hours=1)))
        with pytest.raises(BadRequest, match="not of topic 't'"):
            producer.recall("t", sent.recall_handle)
        assert [producer.recall("later", sent.recall_handle) for _ in range(2)] == [sent.message_id] * 2
    with pytest.raises(ConnectionFailed, match="closed"):
        producer.recall("later", sent.recall_handle)
    assert world.stored("later") == []


def test_the_asyncio_producer_recalls_too(world: Any) -> None:
    world.create("later", message_type="DELAY")

    async def story() -> None:
        context = ClientContext(clock=SystemClock(), rng=random.Random(7), net=world.net)
        async with evenq.aio.Producer(endpoint="a:8081", context=context) as producer:
            sent = await producer.send(evenq.Message(topic="later", body=b"x", delay=60_000))
            assert await producer.recall("later", sent.recall_handle) == sent.message_id

    world.run(story())
