"""Listeners of decoded messages, and what becomes of bodies that do not decode."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import evenq
import evenq.aio
from evenq.client.codecs.decoding import Decoded, decoded
from evenq.client.core.reading.outcome import Retry
from evenq.client.wiring import ClientContext
from evenq.errors import BadRequest, InvalidBody, TopicNotFound, Unsupported
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import SystemClock


class Order(BaseModel):
    number: int


def received(offset: int, body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t",
        body=body,
        message_id=f"id-{offset}",
        tag=None,
        keys=(),
        properties={},
        message_group=None,
        queue=MessageQueue("t", "a", 0),
        queue_offset=QueueOffset(offset),
        born_ms=0,
        store_ms=0,
    )


GOOD, BAD, ALSO_GOOD = received(1, b"1"), received(2, b"{"), received(3, b"3")
CHUNK = [GOOD, BAD, ALSO_GOOD]


def test_the_function_gets_values_and_their_messages_and_never_one_that_does_not_decode(caplog: Any) -> None:
    seen: list[Decoded[Any]] = []
    listen = decoded(evenq.JsonCodec(), seen.extend)
    assert listen([GOOD, ALSO_GOOD]) is None
    assert [(one.value, one.message) for one in seen] == [(1, GOOD), (3, ALSO_GOOD)]
    assert listen(CHUNK) == Retry([BAD], delay_level=-1)
    assert len(seen) == 4
    assert listen([BAD]) == Retry([BAD], delay_level=-1)
    assert len(seen) == 4, "it was called without a message"
    assert "message id-2 of queue" in caplog.text
    assert "a body of t is not JSON" in caplog.text


@pytest.mark.parametrize(
    ("result", "of_all"),
    [
        (None, Retry([BAD], delay_level=0)),
        (True, Retry([BAD], delay_level=0)),
        ("anything", Retry([BAD], delay_level=0)),
        (False, False),
        (Retry(), Retry()),
        (Retry([GOOD], delay_level=3), Retry([GOOD, BAD], delay_level=3)),
    ],
)
def test_the_result_of_the_function_counts_for_the_others(result: object, of_all: object) -> None:
    listen: Callable[[list[ReceivedMessage]], object] = decoded(evenq.JsonCodec(), lambda _: result, on_invalid="retry")
    assert listen(CHUNK) == of_all


def test_an_exception_of_the_function_or_of_a_registry_fails_the_whole_call() -> None:
    class Registry:
        def encode(self, value: object, topic: str) -> bytes:
            raise NotImplementedError

        def decode(self, body: bytes, topic: str) -> object:
            raise ConnectionError("no registry")

    with pytest.raises(ConnectionError):
        decoded(Registry(), lambda _: None)(CHUNK)
    with pytest.raises(ZeroDivisionError):
        decoded(evenq.JsonCodec(), lambda _: 1 / 0)(CHUNK)


async def test_a_coroutine_function_makes_a_coroutine_listener_whatever_its_form() -> None:
    async def work(messages: list[Decoded[Any]]) -> Retry:
        await asyncio.sleep(0)
        return Retry([one.message for one in messages if one.value == 3])

    listen: Any = decoded(evenq.JsonCodec(), work)
    assert inspect.iscoroutinefunction(listen)
    assert await listen(CHUNK) == Retry([ALSO_GOOD, BAD])
    plain: Any = decoded(evenq.JsonCodec(), lambda messages: work(messages))  # noqa: PLW0108 - not a coroutine function
    assert await plain(CHUNK) == Retry([ALSO_GOOD, BAD])
    with pytest.raises(BadRequest, match=r"evenq.aio.PushConsumer"):
        evenq.PushConsumer(group="g", subscriptions={"t": "*"}, listener=listen)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((evenq.JsonCodec(), print, "drop"), "on_invalid is 'drop'; give 'dead_letter' or 'retry'"),
        ((print, print, "retry"), "give an object with decode"),
        ((evenq.JsonCodec(), lambda: None, "retry"), r"list\[evenq.Decoded\]"),
    ],
)
def test_mistakes_are_refused_at_construction(arguments: Any, text: str) -> None:
    codec, function, on_invalid = arguments
    with pytest.raises(BadRequest, match=text):
        decoded(codec, function, on_invalid=on_invalid)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_body_that_does_not_decode_is_delivered_once_and_is_a_dead_letter(world: Any, ordered: bool) -> None:
    """Ordered or not, the messages around it are processed once."""
    world.create("t")
    producer = world.make(evenq.Producer, encoder=evenq.PydanticCodec(Order))
    numbers = [number for number in range(200) if number % 7 != 3]
    producer.send_batch(
        [
            producer.message("t", value=Order(number=number)) if number in numbers else producer.message("t", b"{")
            for number in range(200)
        ],
        selector=lambda queues: queues[0],
    )
    seen: list[int] = []
    sizes: set[int] = set()
    done = threading.Event()

    def work(orders: list[Decoded[Order]]) -> None:
        seen.extend(one.value.number for one in orders)
        sizes.add(len(orders))
        if len(seen) == len(numbers):
            done.set()

    listener = decoded(evenq.PydanticCodec(Order), work)
    arguments = {"group": "g", "listener": listener, "subscriptions": {"t": "*"}, "start_from": "FIRST"}
    with world.make(evenq.PushConsumer, ordered=ordered, consume_threads=1, **arguments):
        assert done.wait(60)
        world.until(lambda: dead_letters(world) == [b"{"] * (200 - len(numbers)))
    assert sorted(seen) == numbers
    assert max(sizes) > 1, "each call had a single message, so that none had a neighbour"
    assert seen == numbers or not ordered


def dead_letters(world: Any) -> list[bytes]:
    try:
        found: list[bytes] = world.stored("%DLQ%g")
    except TopicNotFound:
        return []
    return found


async def test_an_asyncio_producer_encodes_values_too(world: Any) -> None:
    world.create("t")

    async def work() -> None:
        context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=world.net)
        async with evenq.aio.Producer(endpoint="a:8081", context=context, encoder=evenq.JsonCodec()) as producer:
            await producer.send("t", value={"n": 1}, keys=["k"])
            await (await producer.send_async("t", b"2", tag="x"))
            await producer.send_oneway("t", body=b"3")
            await producer.send_batch([producer.message("t", value=4)])

    world.run(work())
    assert world.stored("t") == [b"2", b"3", b"4", b'{"n":1}']


def test_each_way_to_send_takes_topic_body_and_fields(world: Any) -> None:
    world.create("t")
    producer = world.make(evenq.Producer, encoder=evenq.JsonCodec())
    producer.send("t", b"1", tag="a", keys=["k"], properties={"p": "q"})
    producer.send_async("t", b"2").result(60)
    producer.send_oneway("t", value=3)
    producer.send(message=evenq.Message(topic="t", body=b"4"))
    producer.send(topic="t", body=b"5", sharding_key="x")
    producer.flush()
    assert world.stored("t") == [b"1", b"2", b"3", b"4", b"5"]
    one = world.make(evenq.SimpleConsumer, group="g", subscriptions={"t": "a"})
    (message,) = one.receive(wait_ms=20_000)
    assert (message.tag, message.keys, message.properties) == ("a", ("k",), {"p": "q"})


MESSAGE = evenq.Message(topic="t", body=b"1")


@pytest.mark.parametrize(
    ("positional", "named", "kind", "text"),
    [
        (("t",), {}, BadRequest, "the message for 't' has no body"),
        ((), {"body": b"1"}, BadRequest, "the first argument is None"),
        ((b"t", b"1"), {}, BadRequest, "the first argument is b't'"),
        (("t", b"1"), {"tags": "x"}, BadRequest, "a message has no field 'tags'; its fields are topic, body, tag"),
        (("t", b"1"), {"keys": "x"}, BadRequest, "keys is the text 'x'"),
        ((MESSAGE,), {"tag": "x"}, BadRequest, "has a message and tag, too"),
        ((MESSAGE, b"2"), {}, BadRequest, "has a message and body, too"),
        ((MESSAGE,), {"topic": "t"}, BadRequest, "has a message and topic, too"),
        (("t", b"1"), {"value": 1}, BadRequest, "has a body and a value"),
        (("t",), {"value": 1}, Unsupported, "has no encoder"),
    ],
)
def test_a_call_that_names_no_message_says_what_to_give(
    positional: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with evenq.Producer() as producer:
        for call in (producer.send, producer.send_async, producer.send_oneway, producer.request):
            with pytest.raises(kind, match=text):
                call(*positional, **named)


def test_an_encoder_is_an_object_with_encode() -> None:
    with pytest.raises(BadRequest, match="give an object with encode"):
        evenq.Producer(encoder=print)  # type: ignore[arg-type]  # that is the mistake
    assert issubclass(InvalidBody, BadRequest)
