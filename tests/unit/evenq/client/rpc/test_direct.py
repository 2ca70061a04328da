"""The sync `send` straight from its caller's thread: one try there, all else in the producer's loop, as before."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import evenq
from evenq import errors
from evenq.client.options import ProducerOptions
from evenq.client.wiring import ClientContext
from evenq.runtime.clock import SystemClock
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

LOOP = "evenq-client"


class Net:
    """Brokers a and b with a queue each, for the loop and, by `blocking`, for threads. `fail`: raised by the next
    tries.
    """

    def __init__(self) -> None:
        self.tries: list[tuple[str, str, str]] = []
        """Thread, broker and message id of each."""
        self.fail: list[errors.Error] = []
        self.has_publish = True
        self.sign = None
        self.closed = False

    def blocking(self) -> Any:
        return Blocking(self)

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: object = None
    ) -> bytes:
        return self.answer(address, method, request)

    def answer(self, address: str, method: str, request: bytes) -> bytes:
        if method.endswith("QueryRoute"):
            response = service_pb2.QueryRouteResponse(status=v2.Status(code=v2.OK))
            for broker in "ab":
                queue = response.message_queues.add(id=0, permission=v2.READ_WRITE)
                queue.topic.name, queue.broker.name = "t", broker
                queue.broker.endpoints.addresses.add(host=broker, port=1)
            return response.SerializeToString()
        if method.endswith("SendMessage"):
            sent = service_pb2.SendMessageRequest.FromString(request)
            stored = service_pb2.SendMessageResponse(status=v2.Status(code=v2.OK))
            for message in sent.messages:
                stored.entries.add(status=v2.Status(code=v2.OK), message_id=message.system_properties.message_id)
            return stored.SerializeToString()
        if not self.has_publish:
            raise errors.Unsupported("no evenq.v1 here")
        asked = data_pb2.PublishRequest.FromString(request)
        for message in asked.messages:
            one = (threading.current_thread().name, address[0], message.system_properties.message_id)
            self.tries.append(one)
        if self.fail:
            raise self.fail.pop(0)
        return data_pb2.PublishResponse(
            status=v2.Status(code=v2.OK), queue=asked.queue, first_offset=len(self.tries) - 1
        ).SerializeToString()

    async def close(self) -> None:
        pass


class Blocking:
    def __init__(self, net: Net) -> None:
        self.net = net

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        assert dict(metadata)["x-mq-client-id"]
        return self.net.answer(address, method, request)

    def close(self) -> None:
        self.net.closed = True


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def producer(net: Net) -> Iterator[evenq.Producer]:
    context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=net)  # type: ignore[arg-type]  # the part in use
    options = ProducerOptions(retry_first_ms=1, retry_max_ms=5)
    with evenq.Producer(endpoint="a:1", context=context, options=options) as made:
        made.send(message())  # learns the route
        net.tries.clear()
        yield made


def message(**rest: Any) -> evenq.Message:
    return evenq.Message(topic="t", body=b"x", **rest)


def test_a_send_is_made_in_the_callers_thread_and_goes_round_the_queues(net: Net, producer: evenq.Producer) -> None:
    results = [producer.send(message()) for _ in range(4)]
    assert {thread for thread, _, _ in net.tries} == {threading.current_thread().name}
    assert [broker for _, broker, _ in net.tries] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])
    assert [result.message_id for result in results] == [message_id for _, _, message_id in net.tries]
    assert [result.queue.broker_name for result in results] == [broker for _, broker, _ in net.tries]
    producer.flush(1_000)  # nothing is left in the gate


def test_a_send_does_not_wait_for_the_loop(producer: evenq.Producer) -> None:
    busy, sent = threading.Event(), threading.Event()
    over: list[bool] = []
    producer._background.call_soon(lambda: (busy.set(), over.append(sent.wait(60)))[0])
    assert busy.wait(60)
    producer.send(message())
    assert not over, "the loop is stuck all the while"
    sent.set()


def test_a_failed_try_goes_on_in_the_loop_with_the_same_id_at_another_broker(
    net: Net, producer: evenq.Producer
) -> None:
    net.fail = [errors.ConnectionFailed("gone")]
    result = producer.send(message())
    (first, one, first_id), (second, other, second_id) = net.tries
    assert (first, second) == (threading.current_thread().name, LOOP)
    assert one != other
    assert first_id == second_id == result.message_id
    assert result.queue.broker_name == other
    producer.flush(1_000)


def test_it_is_tried_as_often_as_the_options_say_and_then_the_last_error_is_raised(
    net: Net, producer: evenq.Producer
) -> None:
    net.fail = [errors.ConnectionFailed(str(number)) for number in range(10)]
    with pytest.raises(errors.ConnectionFailed, match="2"):
        producer.send(message())
    assert len(net.tries) == 3
    producer.flush(1_000)


def test_an_error_that_no_retry_helps_is_raised_after_one_try(net: Net, producer: evenq.Producer) -> None:
    net.fail = [errors.BodyTooLarge("too large")]
    with pytest.raises(errors.BodyTooLarge):
        producer.send(message())
    assert len(net.tries) == 1
    producer.flush(1_000)


def test_messages_with_an_order_or_a_time_go_over_the_loop(net: Net, producer: evenq.Producer) -> None:
    producer.send(message(message_group="g"))
    producer.send(message(), sharding_key="k")
    producer.send(message(), selector=lambda queues: queues[0])
    assert {thread for thread, _, _ in net.tries} == {LOOP}


def test_a_server_without_evenq_v1_is_sent_to_in_the_v2_way(net: Net, producer: evenq.Producer) -> None:
    net.has_publish = False
    for _ in range(3):
        assert producer.send(message()).queue.queue_id == -1
    producer.flush(1_000)


def test_closing_ends_its_connections_and_later_sends_are_refused(net: Net, producer: evenq.Producer) -> None:
    producer.close()
    assert net.closed
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        producer.send(message())


def test_many_threads_share_one_producer(net: Net, producer: evenq.Producer) -> None:
    def work() -> None:
        for _ in range(200):
            producer.send(message())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({message_id for _, _, message_id in net.tries}) == 1_600
    producer.flush(1_000)


async def test_the_asyncio_face_has_no_part_in_it(net: Net) -> None:
    context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=net)  # type: ignore[arg-type]  # see above
    async with evenq.aio.Producer(endpoint="a:1", context=context) as made:
        await made.send(message())
    assert not net.closed
