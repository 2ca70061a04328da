"""A broker in the test's own process: real clients of both interfaces, and the faults that a test plans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from evenq_proofs.waiting import until
from pydantic import ValidationError

import evenq
import evenq.aio
from evenq.errors import Forbidden, RequestTimeout, TooManyRequests, Unsupported
from evenq.in_memory import MemoryCluster


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as made:
        yield made


@pytest.fixture
def producer(cluster: MemoryCluster) -> Iterator[evenq.Producer]:
    with evenq.Producer(endpoint=cluster.endpoint) as made:
        yield made


def bodies(cluster: MemoryCluster, topic: str = "orders") -> list[bytes]:
    return sorted(message.body for message in cluster.messages(topic))


def test_real_clients_send_push_pull_and_receive(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    seen: list[bytes] = []
    done = threading.Event()

    def listen(messages: list[evenq.ReceivedMessage]) -> None:
        seen.extend(message.body for message in messages)
        if len(seen) == 2:
            done.set()

    producer.send("orders", b"1")
    with evenq.PushConsumer(
        group="push", endpoint=cluster.endpoint, listener=listen, subscriptions={"orders": "*"}, start_from="FIRST"
    ):
        producer.send("orders", b"2")
        assert done.wait(60)
    with evenq.SimpleConsumer(
        group="simple", endpoint=cluster.endpoint, subscriptions={"orders": "*"}, start_from="FIRST"
    ) as one:
        assert sorted(message.body for message in one.messages(idle_ms=1_000)) == [b"1", b"2"]
    assert sorted(seen) == bodies(cluster) == [b"1", b"2"]
    assert cluster.messages("no-such-topic") == []


def test_clients_of_asyncio_reach_it_from_their_own_loop(cluster: MemoryCluster) -> None:
    async def work() -> list[bytes]:
        async with evenq.aio.Producer(endpoint=cluster.endpoint) as sender:
            await sender.send("orders", b"1")
        async with evenq.aio.SimpleConsumer(
            group="g", endpoint=cluster.endpoint, subscriptions={"orders": "*"}, start_from="FIRST"
        ) as one:
            return [message.body async for message in one.messages(idle_ms=1_000)]

    assert asyncio.run(work()) == [b"1"]


def test_two_clusters_know_nothing_of_each_other_and_a_stopped_one_keeps_nothing(cluster: MemoryCluster) -> None:
    with MemoryCluster() as other, evenq.Producer(endpoint=other.endpoint) as one:
        one.send("orders", b"1")
        assert bodies(other) == [b"1"]
        assert bodies(cluster) == []
    other.stop()
    with pytest.raises(Unsupported, match="is not started"):
        _ = other.endpoint
    with pytest.raises(Unsupported, match="was started before"):
        other.start()


def test_settings_of_the_broker_apply_and_wrong_ones_are_refused() -> None:
    with pytest.raises(ValidationError, match="no_such_setting"):
        MemoryCluster({"no_such_setting": 1})
    with (
        MemoryCluster({"body_bytes_max": 1_000}) as small,
        evenq.Producer(endpoint=small.endpoint) as one,
        pytest.raises(evenq.errors.BodyTooLarge),
    ):
        one.send("orders", b"x" * 1_001)


def test_refused_sends_raise_the_planned_error_and_later_ones_succeed(
    cluster: MemoryCluster, producer: evenq.Producer
) -> None:
    producer.send("orders", b"0")
    cluster.faults.fail_sends(2)
    cluster.faults.fail_sends(error=Forbidden("no grant"))
    for kind in (TooManyRequests, TooManyRequests, Forbidden):
        with pytest.raises(kind):
            producer.send("orders", b"refused")
    producer.send("orders", b"1")
    assert cluster.faults.pending == 0
    assert bodies(cluster) == [b"0", b"1"]


def test_a_retry_of_the_producer_outlasts_a_refusal_of_one_attempt(
    cluster: MemoryCluster, producer: evenq.Producer
) -> None:
    cluster.faults.fail_sends(1, attempts=1)
    producer.send("orders", b"1")
    assert cluster.faults.pending == 0
    assert bodies(cluster) == [b"1"]


def test_after_a_lost_answer_the_message_is_stored_once(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    cluster.faults.lose_answers(1, attempts=1)
    assert producer.send("orders", b"1").offset == 0
    cluster.faults.lose_answers(1)
    with pytest.raises(RequestTimeout, match="the test planned it"):
        producer.send("orders", b"2")
    assert bodies(cluster) == [b"1", b"2"]


def test_a_dropped_message_is_accepted_and_never_delivered(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    cluster.faults.drop(1, topic="orders")
    producer.send("others", b"1")
    assert producer.send("orders", b"2").offset == -1
    producer.send("orders", b"3")
    assert (bodies(cluster, "others"), bodies(cluster)) == ([b"1"], [b"3"])


def test_a_duplicate_has_the_same_message_id(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    cluster.faults.duplicate(1)
    sent = producer.send("orders", b"1").message_id
    assert [message.message_id for message in cluster.messages("orders")] == [sent, sent]


def test_a_delayed_message_comes_behind_later_ones(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    cluster.faults.delay(200)
    producer.send("orders", b"1", sharding_key="k")
    producer.send("orders", b"2", sharding_key="k")
    until(lambda: [message.body for message in cluster.messages("orders")] == [b"2", b"1"])


def test_a_redelivered_message_reaches_a_group_that_has_acknowledged_it(
    cluster: MemoryCluster, producer: evenq.Producer
) -> None:
    producer.send("orders", b"1", keys=["k"], tag="new", properties={"p": "q"})
    with evenq.SimpleConsumer(
        group="g", endpoint=cluster.endpoint, subscriptions={"orders": "*"}, start_from="FIRST"
    ) as one:
        (first,) = one.messages(idle_ms=500)
        assert list(one.messages(idle_ms=0)) == []
        cluster.redeliver(first)
        (second,) = one.messages(idle_ms=500)
    assert (second.message_id, second.body, second.keys, second.tag) == (first.message_id, b"1", ("k",), "new")
    assert second.properties == {"p": "q"}


def test_with_the_window_of_production_a_message_id_is_stored_once() -> None:
    with (
        MemoryCluster({"duplicates_window_ms": 60_000}) as cluster,
        evenq.Producer(endpoint=cluster.endpoint) as producer,
    ):
        producer.send("orders", b"1")
        cluster.redeliver(cluster.messages("orders")[0])
        assert bodies(cluster) == [b"1"]


def test_a_batch_meets_its_faults_message_by_message(cluster: MemoryCluster, producer: evenq.Producer) -> None:
    producer.send("orders", b"0")
    cluster.faults.drop(1)
    cluster.faults.duplicate(1)
    sent = producer.send_batch(evenq.Message(topic="orders", body=b"%d" % number) for number in range(1, 5))
    assert len({result.message_id for result in sent}) == 4
    assert sum(result.offset == -1 for result in sent) == 1
    assert cluster.faults.pending == 0
    stored = bodies(cluster)
    assert len(stored) == 5
    assert len(set(stored)) == 4
