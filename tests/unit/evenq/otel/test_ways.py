"""Every way through the broker keeps both places of the context: the property and the protocol's field."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import evenq
from evenq.model import TransactionResolution

CONTEXT = f"00-{0xABC:032x}-{0xDEF:016x}-01"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("NORMAL", {}),
    ("FIFO", {"message_group": "lane"}),
    ("DELAY", {"delay": timedelta(milliseconds=50)}),
    ("PRIORITY", {"priority": 1}),
]


def message(**fields: Any) -> evenq.Message:
    return evenq.Message(topic="t", body=b"b", properties={"traceparent": CONTEXT, "k": "v"}, **fields)


def contexts(got: evenq.ReceivedMessage) -> tuple[str | None, dict[str, str]]:
    return got.trace_context, dict(got.properties)


KEPT = (CONTEXT, {"traceparent": CONTEXT, "k": "v"})


@pytest.fixture
def world(traced: Any) -> Any:
    """Without the recording: the context of these messages is not ours."""
    evenq.otel.uninstrument()
    return traced


def received(world: Any, group: str = "g") -> evenq.ReceivedMessage:
    with world.make(evenq.SimpleConsumer, group=group, subscriptions={"t": "*"}) as consumer:
        (got,) = consumer.receive(wait_ms=15_000)
        consumer.ack(got)
    return got


@pytest.mark.parametrize(("message_type", "fields"), KINDS, ids=[name for name, _ in KINDS])
@pytest.mark.parametrize("way", ["send", "send_async", "send_batch"])
def test_kinds_of_messages(world: Any, message_type: str, fields: Any, way: str) -> None:
    world.create("t", message_type=message_type)
    producer = world.make(evenq.Producer)
    match way:
        case "send":
            producer.send(message(**fields))
        case "send_async":
            producer.send_async(message(**fields)).result(20)
        case _:
            producer.send_batch([message(**fields)])
    assert contexts(received(world)) == KEPT


def test_a_transaction(world: Any) -> None:
    world.create("t", message_type="TRANSACTION")
    producer = world.make(evenq.Producer, checker=lambda _: TransactionResolution.UNKNOWN)
    producer.begin_transaction(message()).commit()
    assert contexts(received(world)) == KEPT


def test_a_lite_topic(world: Any) -> None:
    world.create("t", message_type="LITE")
    with world.make(evenq.LiteSimpleConsumer, group="g", topic="t", lite_topics=("ann",)) as consumer:
        world.make(evenq.Producer).send(message(lite_topic="ann"))
        (got,) = consumer.receive(wait_ms=10_000)
        consumer.ack(got)
    assert contexts(got) == KEPT


def test_a_large_batch_in_blocks(world: Any) -> None:
    world.create("t")
    world.make(evenq.Producer).send_batch(message() for _ in range(300))
    with world.make(evenq.PullConsumer, group="g") as reader:
        reader.assign(reader.queues_of("t"))
        reader.seek_to_begin(reader.queues[0])
        got: list[evenq.ReceivedMessage] = []
        while len(got) < 300:
            got += reader.poll(1_000)
    assert all(contexts(one) == KEPT for one in got)


def test_retries_and_the_dead_letter(world: Any) -> None:
    world.create("t")
    world.make(evenq.Producer).send(message())
    got: list[evenq.ReceivedMessage] = []

    def listen(messages: list[evenq.ReceivedMessage]) -> object:
        got.extend(messages)
        return evenq.Retry(messages, delay_level=1 if len(got) == 1 else -1)

    with world.make(
        evenq.PushConsumer, group="g", listener=listen, subscriptions={"t": "*"}, start_from="FIRST",
        options=evenq.PushOptions(drain_ms=200),
    ):  # fmt: skip
        world.until(lambda: len(got) == 2)
    assert [one.delivery_attempt for one in got] == [1, 2]
    assert [contexts(one) for one in got] == [KEPT, KEPT]
    with world.make(evenq.PullConsumer, group="reader") as reader:
        reader.assign(reader.queues_of("%DLQ%g"))
        reader.seek_to_begin(reader.queues[0])
        (dead,) = reader.poll()
    assert (dead.trace_context, dead.properties["traceparent"]) == (CONTEXT, CONTEXT)
