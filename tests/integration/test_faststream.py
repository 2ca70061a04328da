"""`evenq.faststream` on a real cluster: outcomes, order, requests, and what a killed subscriber or broker changes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from evenq_proofs.waiting import until, until_async
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, StopConsume

import evenq
import evenq.aio
from evenq.errors import RequestTimeout
from evenq.faststream import EvenqBroker, EvenqResponse
from evenq.faststream.annotations import Attempt, EvenqBatchMessage, EvenqMessage, Tag
from evenq.testing import LocalCluster

WAIT_S = 60

WORKER = """
import asyncio, sys
from faststream import FastStream
from evenq.faststream import EvenqBroker

broker = EvenqBroker(sys.argv[1], logger=None)

@broker.subscriber("work", group="workers", start_from="FIRST", max_workers=2)
async def work(number: int):
    print("got", number, flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    print("done", number, flush=True)

asyncio.run(FastStream(broker, logger=None).run())
print("closed", flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"SESSION_TIMEOUT_MS": "3000", "DEFAULT_START_FROM": "FIRST"}
    with LocalCluster(folder=tmp_path_factory.mktemp("cluster"), broker_settings=settings) as made:
        yield made


@pytest.fixture
async def broker(cluster: LocalCluster) -> AsyncGenerator[EvenqBroker, None]:
    async with EvenqBroker(cluster.endpoint, logger=None) as made:
        yield made


async def test_outcomes_lead_to_redelivery_and_to_the_dead_letter_topic(
    cluster: LocalCluster, broker: EvenqBroker
) -> None:
    seen: list[tuple[str, int]] = []

    @broker.subscriber("outcomes", group="outcomes", max_workers=4, options=evenq.PushOptions(max_attempts=5))
    async def handle(body: str, attempt: Attempt, message: EvenqMessage) -> None:
        seen.append((body, attempt))
        if body == "reject":
            raise RejectMessage
        if body == "nack" and attempt == 1:
            raise NackMessage(delay_level=1)
        if body == "own nack" and attempt == 1:
            await message.nack(1)

    await broker.start()
    _, rejected, *_ = await broker.publish_batch("ack", "reject", "nack", "own nack", topic="outcomes")
    await until_async(lambda: len(seen) >= 6, lambda: seen)
    assert sorted(seen) == [("ack", 1), ("nack", 1), ("nack", 2), ("own nack", 1), ("own nack", 2), ("reject", 1)]
    async with evenq.aio.Admin(endpoint=cluster.endpoint) as admin:

        async def dead() -> list[str]:
            return [letter.message_id for letter in (await admin.list_dead_letters("outcomes")).letters]

        assert await until_async(dead) == [rejected.message_id]


async def test_an_exception_is_retried_and_with_ack_policy_ack_it_is_not(broker: EvenqBroker) -> None:
    seen: list[tuple[str, int]] = []

    @broker.subscriber("errors", group="acks", ack_policy=AckPolicy.ACK)
    async def acks(body: str, attempt: Attempt) -> None:
        seen.append((f"ack {body}", attempt))
        raise ValueError(body)

    local = evenq.PushOptions(retry="local", retry_first_ms=10)

    @broker.subscriber("errors", group="nacks", options=local)
    async def nacks(body: str, attempt: Attempt) -> None:
        seen.append((f"nack {body}", 0))
        if sum(name == f"nack {body}" for name, _ in seen) == 1:
            raise ValueError(body)

    await broker.start()
    await broker.publish("a", "errors")
    await until_async(lambda: [name for name, _ in seen].count("nack a") == 2, lambda: seen)
    await broker.publish("b", "errors")
    await until_async(lambda: [name for name, _ in seen].count("nack b") == 2, lambda: seen)
    await until_async(lambda: ("ack b", 1) in seen, lambda: seen)
    assert [one for one in seen if one[0].startswith("ack")] == [("ack a", 1), ("ack b", 1)]


async def test_an_ordered_subscriber_retries_in_place(cluster: LocalCluster, broker: EvenqBroker) -> None:
    async with evenq.aio.Admin(endpoint=cluster.endpoint) as admin:
        await admin.create_topic("ordered", message_type="FIFO")
    seen: dict[str, list[int]] = {"a": [], "b": []}

    @broker.subscriber("ordered", group="ordered", max_workers=8, options=evenq.PushOptions(suspend_ms=10))
    async def handle(number: int, message: EvenqMessage) -> None:
        seen[message.message_group or ""].append(number)
        if number == 3 and seen[message.message_group or ""].count(3) == 1:
            raise ValueError(number)

    await broker.start()
    for number in range(6):
        for group in ("a", "b"):
            await broker.publish(number, "ordered", message_group=group)
    await until_async(lambda: all(len(numbers) == 7 for numbers in seen.values()), lambda: seen)
    assert seen == {"a": [0, 1, 2, 3, 3, 4, 5], "b": [0, 1, 2, 3, 3, 4, 5]}


async def test_filters_batches_publishers_and_delays(broker: EvenqBroker) -> None:
    batches: list[list[int]] = []
    results: list[tuple[int, str | None, int]] = []

    @broker.subscriber("numbers", group="numbers", tag="even", batch=True, max_records=10)
    @broker.publisher("sums")
    async def handle(numbers: list[int], message: EvenqBatchMessage) -> EvenqResponse:
        assert {raw.tag for raw in message.raw_message} == {"even"}
        batches.append(numbers)
        return EvenqResponse(sum(numbers), tag="sum", delay=timedelta(milliseconds=300))

    @broker.subscriber("sums", group="sums", sql="TAGS = 'sum'")
    async def sums(number: int, tag: Tag, message: EvenqMessage) -> None:
        results.append((number, tag, message.raw_message.store_ms - message.born_ms))

    await broker.start()
    tagged = [EvenqResponse(number, tag="odd" if number % 2 else "even") for number in range(20)]
    await broker.publish_batch(*tagged, topic="numbers")
    await until_async(lambda: sum(number for number, _, _ in results) == sum(range(0, 20, 2)), lambda: results)
    assert sorted(number for batch in batches for number in batch) == list(range(0, 20, 2))
    assert max(map(len, batches)) <= 10


async def test_requests_are_answered_over_the_cluster_and_time_out(broker: EvenqBroker) -> None:
    @broker.subscriber("add", group="adders")
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.subscriber("silence", group="silence", no_reply=True)
    async def silence(body: str) -> str:
        return body

    await broker.start()
    reply = await broker.request({"a": 1, "b": 2}, "add", timeout=WAIT_S)
    assert await reply.decode() == 3
    reply = await broker.publisher("add").request({"a": 3, "b": 4}, timeout=WAIT_S)
    assert await reply.decode() == 7
    with pytest.raises(RequestTimeout):
        await broker.request("x", "silence", timeout=0.3)


async def test_ack_first_handles_a_message_once_also_if_the_handler_fails(
    cluster: LocalCluster, broker: EvenqBroker
) -> None:
    seen: list[int] = []

    @broker.subscriber("first", group="first", ack_policy=AckPolicy.ACK_FIRST, max_workers=3)
    async def handle(number: int) -> None:
        seen.append(number)
        raise ValueError(number)

    await broker.publish_batch(*range(9), topic="first")
    await broker.start()
    await until_async(lambda: len(seen) == 9, lambda: seen)
    assert sorted(seen) == list(range(9))
    async with evenq.aio.SimpleConsumer(group="first", subscriptions={"first": "*"}, endpoint=cluster.endpoint) as rest:
        assert await rest.receive(wait_ms=100) == []


async def test_a_subscriber_without_handlers_is_read_by_hand(broker: EvenqBroker) -> None:
    subscriber = broker.subscriber("by-hand", group="by-hand")
    await broker.publish_batch("a", "b", "c", topic="by-hand")
    await broker.start()
    first = await subscriber.get_one(timeout=WAIT_S)
    assert first is not None
    await first.nack(1)
    seen = [await first.decode()]
    async for message in subscriber:
        seen.append(await message.decode())
        await message.ack()
        if len(seen) == 4:
            break
    assert sorted(set(seen)) == ["a", "b", "c"]
    assert seen.count(seen[0]) == 2, "the message that was not acknowledged came again"
    assert await subscriber.get_one(timeout=0.05) is None


async def test_a_reader_by_hand_waits_for_a_topic_that_does_not_exist(broker: EvenqBroker) -> None:
    subscriber = broker.subscriber("not-yet", group="by-hand")
    await broker.start()
    assert await subscriber.get_one(timeout=0.01) is None
    reading = asyncio.ensure_future(subscriber.get_one(timeout=WAIT_S))
    await broker.publish("first", "not-yet")
    message = await reading
    assert message is not None
    assert await message.decode() == "first"
    await message.ack()


async def test_stop_consume_ends_the_subscriber_and_no_other(broker: EvenqBroker) -> None:
    seen: list[str] = []

    @broker.subscriber("stops", group="stops")
    async def stops(body: str) -> None:
        seen.append("stops")
        raise StopConsume

    @broker.subscriber("stops", group="continues")
    async def continues(body: str) -> None:
        seen.append(f"continues {body}")

    await broker.start()
    await broker.publish("a", "stops")
    stopping = next(one for one in broker.subscribers if getattr(one, "group", "") == "stops")
    await until_async(lambda: "stops" in seen and not stopping.running, lambda: seen)
    await broker.publish("b", "stops")
    await until_async(lambda: {"continues a", "continues b"} <= set(seen), lambda: seen)
    assert seen.count("stops") == 1


async def test_a_restarted_broker_loses_nothing(cluster: LocalCluster, broker: EvenqBroker) -> None:
    seen: set[int] = set()

    @broker.subscriber("restarts", group="restarts", max_workers=4)
    async def handle(number: int) -> None:
        seen.add(number)

    await broker.start()
    await broker.publish_batch(*range(50), topic="restarts")
    await until_async(lambda: seen, lambda: seen)
    node = cluster.brokers[0]
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.restart)
    for number in range(50, 60):
        await broker.publish(number, "restarts")
    await until_async(lambda: seen == set(range(60)), lambda: sorted(set(range(60)) - seen), seconds=120)
    assert await broker.ping(WAIT_S)


def start_worker(folder: Path, cluster: LocalCluster, seconds: float) -> subprocess.Popen[str]:
    script = folder / "worker.py"
    script.write_text(WORKER)
    return subprocess.Popen(
        [sys.executable, str(script), cluster.endpoint, str(seconds)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_the_messages_of_a_killed_process_go_to_another_and_a_signal_lets_the_handler_end(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in range(20):
            producer.send(evenq.Message(topic="work", body=str(number).encode()))
    killed = start_worker(tmp_path, cluster, 600)
    try:
        assert killed.stdout is not None
        held = {killed.stdout.readline(), killed.stdout.readline()}
        assert all(line.startswith("got ") for line in held)
    finally:
        killed.kill()
        killed.communicate()
    worker = start_worker(tmp_path, cluster, 0.01)
    try:
        assert worker.stdout is not None
        done: set[int] = set()
        while len(done) < 20:
            word, number = worker.stdout.readline().split()
            if word == "done":
                done.add(int(number))
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            worker.send_signal(signal.SIGTERM)
            output, _ = worker.communicate(timeout=WAIT_S)
            assert (output.splitlines()[-1], worker.returncode) == ("closed", 0)
            until(lambda: sum(queue.lag for queue in admin.describe_group("workers").queues) == 0)
    finally:
        worker.kill()
        worker.communicate()
