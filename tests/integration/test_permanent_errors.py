"""Topics that are missing and calls that are forbidden, as a user of each client sees them: raised or reported to
`on_error` once, and the client goes on when they are over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_json, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error, Forbidden, TopicNotFound
from evenq.testing import LocalCluster

ROOT = evenq.Credentials(access_key="root", secret_key="canary-root-4712")
READER = evenq.Credentials(access_key="reader", secret_key="canary-reader-4712")
FILE = """
[users.evenq-internal]
secret = "canary-internal-4712"
internal = true
[users.root]
secret = "canary-root-4712"
admin = true
[users.reader]
secret = "canary-reader-4712"
allow = [
  { resource = "topic:mine*", actions = ["publish", "consume"] },
  { resource = "group:*", actions = ["consume"] },
]
"""
FAST = evenq.PushOptions(rebalance_interval_ms=500)


pytestmark = pytest.mark.cluster(
    brokers=2,
    users=FILE,
    broker_settings={"AUTO_CREATE_TOPICS": "false"},
    admin=ROOT,
    prepare=lambda admin: admin.create_topic("others"),
)


def make(cluster: LocalCluster, topic: str) -> None:
    with evenq.Admin(endpoint=cluster.endpoint, credentials=ROOT) as admin:
        admin.create_topic(topic)


def send(cluster: LocalCluster, topic: str, body: bytes) -> None:
    with evenq.Producer(endpoint=cluster.endpoint, credentials=ROOT) as producer:
        producer.send(evenq.Message(topic=topic, body=body))


def polled(poll: Callable[[], list[evenq.ReceivedMessage]], seconds: float = 60) -> list[bytes]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if messages := poll():
            return [message.body for message in messages]
    raise AssertionError("nothing was polled")


@pytest.mark.parametrize("subscribing", [True, False])
@pytest.mark.slow
def test_a_poll_of_a_missing_topic_raises_once_and_goes_on_when_it_is_there(
    cluster: LocalCluster, subscribing: bool
) -> None:
    topic = f"mine-late-{subscribing}"
    with evenq.PullConsumer(
        group=f"late-{subscribing}",
        endpoint=cluster.endpoint,
        credentials=READER,
        subscriptions={topic: "*"} if subscribing else None,
    ) as consumer:
        if not subscribing:
            with pytest.raises(TopicNotFound, match=topic):
                consumer.assign([evenq.MessageQueue(topic, "broker-a", 0)], timeout_ms=60_000)
            return
        began = time.monotonic()
        with pytest.raises(TopicNotFound, match=topic):
            consumer.poll(wait_ms=60_000)
        assert time.monotonic() - began < 40, "it raises as soon as it knows"
        assert consumer.poll(wait_ms=1_500) == []
        make(cluster, topic)
        send(cluster, topic, b"first")  # LAST: but the consumer was there before the topic
        assert polled(lambda: consumer.poll(wait_ms=1_000)) == [b"first"]


def test_a_poll_that_is_forbidden_raises_once(cluster: LocalCluster) -> None:
    with evenq.PullConsumer(
        group="forbidden-pull", endpoint=cluster.endpoint, credentials=READER, subscriptions={"others": "*"}
    ) as consumer:
        with pytest.raises(Forbidden, match="others"):
            consumer.poll(wait_ms=60_000)
        assert consumer.poll(wait_ms=1_500) == []


def test_wrong_keys_are_raised_by_a_poll(cluster: LocalCluster) -> None:
    wrong = evenq.Credentials(access_key="reader", secret_key="canary-wrong-4712")
    with (
        evenq.PullConsumer(
            group="wrong-keys", endpoint=cluster.endpoint, credentials=wrong, subscriptions={"mine": "*"}
        ) as consumer,
        pytest.raises(evenq.errors.Unauthorized),
    ):
        consumer.poll(wait_ms=60_000)


@pytest.mark.parametrize(("topic", "kind"), [("mine-missing", TopicNotFound), ("others", Forbidden)])
def test_on_error_of_a_push_consumer_hears_once(cluster: LocalCluster, topic: str, kind: type[Error]) -> None:
    heard: list[Error] = []
    threads: set[str] = set()

    def on_error(error: Error) -> None:
        heard.append(error)
        threads.add(threading.current_thread().name)

    with evenq.PushConsumer(
        group=f"on-error-{topic}", endpoint=cluster.endpoint, credentials=READER, subscriptions={topic: "*"},
        listener=lambda _messages: None, on_error=on_error, options=FAST,
    ):  # fmt: skip
        until(lambda: heard, "on_error hears")
        time.sleep(2)
    assert [type(error) for error in heard] == [kind]
    assert topic in str(heard[0])
    assert "evenq-client" not in threads, "user code runs in a thread of its own"


def test_a_push_consumer_without_on_error_logs_once_and_says_when_the_topic_is_there(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="evenq.client")
    got: list[bytes] = []
    with evenq.PushConsumer(
        group="logs", endpoint=cluster.endpoint, credentials=READER, subscriptions={"mine-logged": "*"},
        listener=lambda messages: got.extend(one.body for one in messages), options=FAST,
    ):  # fmt: skip
        until(lambda: [one for one in caplog.records if "waits for topic" in one.getMessage()], "a line")
        time.sleep(2)
        make(cluster, "mine-logged")
        send(cluster, "mine-logged", b"one")
        until(lambda: got == [b"one"], "it goes on")
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    lines = [one.getMessage() for one in caplog.records if "topic mine-logged" in one.getMessage()]
    assert lines[0].startswith("group logs: waits for topic mine-logged: no topic")
    assert "group logs: topic mine-logged works after" in lines[1]


async def test_the_asyncio_faces_do_the_same(cluster: LocalCluster) -> None:
    heard: list[Error] = []

    async def on_error(error: Error) -> None:
        await asyncio.sleep(0)
        heard.append(error)

    async def listen(_messages: object) -> None:
        return None

    push = evenq.aio.PushConsumer(
        group="aio-push", endpoint=cluster.endpoint, credentials=READER, subscriptions={"others": "*"},
        listener=listen, on_error=on_error, options=FAST,
    )  # fmt: skip
    pull = evenq.aio.PullConsumer(
        group="aio-pull", endpoint=cluster.endpoint, credentials=READER, subscriptions={"mine-gone": "*"}
    )
    async with push, pull:
        with pytest.raises(TopicNotFound, match="mine-gone"):
            await pull.poll(wait_ms=10_000)
        assert await pull.poll(wait_ms=1_000) == []
        for _ in range(100):
            if heard:
                break
            await asyncio.sleep(0.1)
    assert [type(error) for error in heard] == [Forbidden]


def test_producers_and_simple_consumers_raise_at_each_call(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with evenq.Producer(endpoint=cluster.endpoint, credentials=READER) as producer:
        for topic, kind in (("mine-nowhere", TopicNotFound), ("others", Forbidden)):
            with pytest.raises(kind, match=topic):
                producer.send(evenq.Message(topic=topic, body=b"x"))
        for _ in range(10):
            producer.send_oneway(evenq.Message(topic="others", body=b"x"))
        producer.flush(10_000)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "sending one-way to topic others is refused" in line
    for topic, kind in (("mine-nowhere", TopicNotFound), ("others", Forbidden)):
        with (
            evenq.SimpleConsumer(
                group="simple", endpoint=cluster.endpoint, credentials=READER, subscriptions={topic: "*"}
            ) as consumer,
            pytest.raises(kind, match=topic),
        ):
            consumer.receive(wait_ms=1_000)


def test_the_command_line_consumes_and_produces_with_the_grants_of_the_sdk(cluster: LocalCluster) -> None:
    make(cluster, "mine-cli")
    keys: dict[str, Any] = {
        "EVENQ_ACCESS_KEY": "reader",
        "EVENQ_SECRET_KEY": "canary-reader-4712",
        "endpoint": cluster.endpoint,
    }
    run_evenq("produce", "mine-cli", "--body", "hello", **keys)
    result = evenq_json("consume", "mine-cli", "--group", "cli", "--from", "first", "--max", "1", **keys)
    assert result["body"] == "hello"


def test_a_lite_consumer_raises_at_its_start(cluster: LocalCluster) -> None:
    with pytest.raises(Error, match="others"):
        evenq.LitePushConsumer(
            group="lite", topic="others", endpoint=cluster.endpoint, credentials=READER, lite_topics=("a",),
            listener=lambda _messages: None,
        ).start()  # fmt: skip
