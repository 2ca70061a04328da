"""What a user writes after the guides passes `mypy --strict`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
from collections.abc import Sequence
from datetime import timedelta

from pydantic import BaseModel

import evenq
import evenq.aio
from evenq.in_memory import MemoryCluster
from evenq.testing import LocalCluster


def listen(messages: list[evenq.ReceivedMessage]) -> None:
    messages.sort(key=lambda message: message.queue_offset)


def listen_to_any(messages: Sequence[evenq.ReceivedMessage]) -> bool:
    return bool(messages)


async def listen_later(messages: list[evenq.ReceivedMessage]) -> None:
    await asyncio.sleep(0)


def moved(gained: list[evenq.MessageQueue], lost: list[evenq.MessageQueue]) -> None:
    print(gained, lost)


message = evenq.Message(topic="orders", body=b"3 apples", keys=["42"])
other = evenq.Message(topic="orders", body=b"3 apples", keys=("42",), properties={"region": "eu"})
subscriptions = {"orders": "*"}
first = evenq.PushConsumer(group="a", listener=listen, subscriptions=subscriptions, on_rebalance=moved)
second = evenq.PushConsumer(group="a", listener=listen_to_any, subscriptions=subscriptions)
third = evenq.aio.PushConsumer(group="a", listener=listen_later, subscriptions=subscriptions)
lite = evenq.LitePushConsumer(group="a", topic="chats", lite_topics=["ann"], listener=listen)


class Order(BaseModel):
    number: int


def book(orders: list[evenq.Decoded[Order]]) -> evenq.Retry | None:
    late = [order.message for order in orders if order.value.number > 9]
    return evenq.Retry(late) if late else None


async def book_later(orders: list[evenq.Decoded[Order]]) -> None:
    await asyncio.sleep(orders[0].value.number)


class Reversed:
    def encode(self, value: bytes, topic: str, /) -> bytes:
        return value[::-1]

    def decode(self, body: bytes, topic: str, /) -> bytes:
        return body[::-1]


codec = evenq.PydanticCodec(Order)
fourth = evenq.PushConsumer(group="a", listener=evenq.decoded(codec, book), subscriptions=subscriptions)
fifth = evenq.aio.PushConsumer(
    group="a", listener=evenq.decoded(codec, book_later, on_invalid="retry"), subscriptions=subscriptions
)
with evenq.Producer(encoder=codec) as producer:
    result: evenq.SendResult = producer.send("orders", b"3 apples", keys=["42"], tag="new", delay=timedelta(minutes=1))
    result = producer.send("orders", body=b"3 apples", sharding_key="42")
    result = producer.send_async("orders", value=Order(number=1)).result()
    producer.send_oneway("orders", b"1", properties={"region": "eu"})
    producer.send_batch([producer.message("orders", value=Order(number=1), message_group="g"), message])
    reply: evenq.ReceivedMessage = producer.request("questions", b"1", timeout_ms=5_000)
    sixth = evenq.PushConsumer(
        group="a", listener=producer.answer_with(lambda request: request.body), subscriptions=subscriptions
    )
evenq.Producer(encoder=evenq.JsonCodec()).send("orders", value=[1, 2])
evenq.Producer(encoder=Reversed()).send("orders", value=b"1")
evenq.Producer(encoder=evenq.AvroCodec(lookup=lambda schema_id: {"type": "int"} if schema_id else None)).close()
with evenq.SimpleConsumer(group="a", subscriptions=subscriptions) as simple:
    for received in simple:
        print(received.body)
    messages = simple.messages(16, invisible_ms=60_000, idle_ms=1_000)
    for received in messages:
        messages.stop()
with evenq.PullConsumer(group="a", subscriptions=subscriptions) as pull:
    for received in pull:
        print(received.body)


async def work() -> None:
    async with evenq.aio.Producer() as sender:
        stored: evenq.SendResult = await sender.send("orders", b"1", tag="new")
        stored = await (await sender.send_async(message))
        print(stored)
    async with evenq.aio.SimpleConsumer(group="a", subscriptions=subscriptions) as consumer:
        async for received in consumer.messages(idle_ms=0):
            print(received.body)
    async with evenq.aio.PullConsumer(group="a", subscriptions=subscriptions) as puller:
        async for received in puller:
            print(received.body)


def test_in_memory(evenq_memory: MemoryCluster, evenq_cluster: LocalCluster, evenq_topic: str) -> None:
    evenq_memory.faults.fail_sends(1, error=evenq.errors.Forbidden("no grant"))
    assert [one.body for one in evenq_memory.messages("orders")] == []
    assert evenq.Producer(endpoint=evenq_cluster.endpoint).send(evenq_topic, b"1").offset == 0
"""
MISTAKES = """
import evenq

with evenq.Producer() as producer:
    producer.send("orders")  # wrong
    producer.send("orders", "text")  # wrong
    producer.send("orders", b"1", tags="new")  # wrong
    producer.send(evenq.Message(topic="orders", body=b"1"), tag="new")  # wrong
    producer.send_oneway("orders", b"1", keys=5)  # wrong
evenq.Producer(encoder=print)  # wrong
evenq.PushConsumer(group="a", subscriptions={"orders": "*"}, listener=lambda: None)  # wrong
for message in evenq.PushConsumer(group="a", subscriptions={"orders": "*"}, listener=print):  # wrong
    pass
"""


def checked(tmp_path: Path, text: str) -> tuple[int, str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow  # mypy reads the whole SDK
def test_a_small_program_passes_mypy_strict_and_its_mistakes_do_not(tmp_path: Path) -> None:
    code, output = checked(tmp_path, PROGRAM)
    assert code == 0, output
    code, output = checked(tmp_path, MISTAKES)
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}
    assert found == {number for number, line in enumerate(MISTAKES.splitlines(), 1) if "# wrong" in line}, output
