"""One run of `evenq bench` over clients in memory: what is created, counted and deleted."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, Self

import pytest

from evenq import aio
from evenq.cli.bench.commands import bench_page
from evenq.cli.bench.running import BenchPlan, bench
from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.runtime.clock import SystemClock


class Cluster:
    """Topics, groups, and a queue from producers to consumers; loses the messages with these numbers."""

    def __init__(self) -> None:
        self.topics, self.groups, self.deleted = {"orders"}, set[str](), list[str]()
        self.listeners: list[Any] = []
        self.begun = asyncio.Event()
        self.lost: set[int] = set()
        self.twice: set[int] = set()
        self.refused: Any = None
        self.taken = 0

    async def take(self, message: Any) -> None:
        number, self.taken = self.taken, self.taken + 1
        if self.refused is not None:
            raise self.refused
        if self.listeners and number not in self.lost:
            received = SimpleNamespace(body=message.body)
            await self.listeners[number % len(self.listeners)]([received] * (2 if number in self.twice else 1))


class Client:
    cluster: Cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to end."""


class Admin(Client):
    def __init__(self, **_: Any) -> None:
        """Takes any options."""

    async def list_topics(self) -> list[Any]:
        return [SimpleNamespace(topic=name) for name in self.cluster.topics]

    async def create_topic(self, topic: str, **_: Any) -> list[Any]:
        self.cluster.topics.add(topic)
        return []

    async def create_group(self, group: str, **_: Any) -> None:
        self.cluster.groups.add(group)

    async def delete_topic(self, topic: str) -> None:
        self.cluster.topics.remove(topic)
        self.cluster.deleted.append(topic)

    async def delete_group(self, group: str) -> None:
        self.cluster.groups.remove(group)


class Producer(Client):
    def __init__(self, **_: Any) -> None:
        """Takes any options."""

    async def send(self, message: Any) -> None:
        await self.cluster.take(message)

    async def send_async(self, message: Any) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self.cluster.take(message)
        except TooManyRequests as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    async def flush(self) -> None:
        """Everything is answered."""


class PushConsumer(Client):
    balanced = True

    def __init__(self, *, listener: Any, **_: Any) -> None:
        self.cluster.listeners.append(listener)
        self.cluster.begun.set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    for kind in (Admin, Producer, PushConsumer):
        monkeypatch.setattr(kind, "cluster", one, raising=False)
        monkeypatch.setattr(aio, kind.__name__, kind)
    return one


def plan(**fields: Any) -> BenchPlan:
    known: dict[str, Any] = {
        "endpoint": "x:1", "topic": "", "use_existing": False, "seconds": 10, "count": 100, "rate": None, "size": 64,
        "senders": 3, "receivers": 2, "wait_each": False, "queues": 8, "drain_ms": 50, "timeout_ms": 1_000,
    }  # fmt: skip
    return BenchPlan(**{**known, **fields})


def result_of(one: BenchPlan) -> Any:
    return asyncio.run(bench(one, clock=SystemClock(), rng=random.Random(1), progress=lambda _: None))


@pytest.mark.parametrize("wait_each", [False, True])
def test_every_message_is_counted_once_and_the_topic_is_deleted(cluster: Cluster, wait_each: bool) -> None:
    result = result_of(plan(wait_each=wait_each))
    assert (result.sent, result.received, result.missing, result.failed) == (100, 100, 0, 0)
    assert result.send.count == result.receive.count == 100
    assert result.topic.startswith("evenq-bench-")
    assert (cluster.deleted, cluster.topics, cluster.groups) == ([result.topic], {"orders"}, set())


def test_lost_and_repeated_messages_are_reported(cluster: Cluster) -> None:
    cluster.lost, cluster.twice = {3, 4}, {5}
    result = result_of(plan())
    assert (result.received, result.missing, result.repeated) == (98, 2, 1)
    sentence = bench_page(plan(), result).sentence
    assert "2 messages did not arrive in time" in sentence
    assert "1 deliveries were repeated" in sentence


def test_refused_sends_are_counted_with_the_first_error(cluster: Cluster) -> None:
    cluster.refused = TooManyRequests("the disk is full")
    for wait_each in (True, False):
        result = result_of(plan(wait_each=wait_each))
        assert (result.sent, result.failed, result.first_error) == (0, 100, "the disk is full")
    assert cluster.topics == {"orders"}


def test_an_existing_topic_is_refused_and_on_request_kept(cluster: Cluster) -> None:
    with pytest.raises(PreconditionFailed, match=r"topic orders exists.*add --use-existing"):
        result_of(plan(topic="orders"))
    assert cluster.taken == 0
    result = result_of(plan(topic="orders", use_existing=True))
    assert (result.existed, result.received, cluster.deleted) == (True, 100, [])
    assert "The messages stay in topic orders" in bench_page(plan(), result).sentence
    assert result_of(plan(topic="mine")).existed is False
    assert cluster.deleted == ["mine"]


def test_messages_of_others_on_an_existing_topic_are_not_counted(cluster: Cluster) -> None:
    async def run() -> Any:
        task = asyncio.ensure_future(
            bench(
                plan(topic="orders", use_existing=True, receivers=1),
                clock=SystemClock(),
                rng=random.Random(1),
                progress=lambda _: None,
            )
        )
        await cluster.begun.wait()
        await cluster.listeners[0]([SimpleNamespace(body=body) for body in (b"", b"x" * 23, b"x" * 64)])
        return await task

    assert asyncio.run(run()).received == 100


def test_only_sends_without_receivers(cluster: Cluster) -> None:
    result = result_of(plan(receivers=0))
    page = bench_page(plan(receivers=0), result)
    assert [row["what"] for row in page.listings[0].as_rows()] == ["send"]
    assert (page.facts["missing"], cluster.listeners) == (0, [])


def test_a_rate_spreads_the_messages_over_the_time(cluster: Cluster) -> None:
    result = result_of(plan(count=None, seconds=1, rate=40))
    assert result.sent == 40
    assert result.send_s >= 0.9


def test_ctrl_c_deletes_the_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.refused = KeyboardInterrupt()
    with pytest.raises(BaseException):  # noqa: B017  # a group of it
        result_of(plan(wait_each=True))
    assert cluster.topics == {"orders"}
    assert cluster.groups == set()


@pytest.mark.parametrize("method", ["create_topic", "create_group"])
def test_ctrl_c_during_a_creation_deletes_what_was_created(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The brokers carry out a call whose caller is gone."""
    create = getattr(Admin, method)
    callers: list[asyncio.Task[Any]] = []

    async def carried_out(self: Admin, name: str, options: Any) -> Any:
        await asyncio.sleep(0.02)
        return await create(self, name, **options)

    async def slowly(self: Admin, name: str, **options: Any) -> Any:
        callers[0].cancel()
        return await asyncio.shield(asyncio.ensure_future(carried_out(self, name, options)))

    async def cancelled() -> None:
        callers.append(asyncio.ensure_future(bench(plan(), clock=SystemClock(), rng=random.Random(1), progress=print)))
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Admin, method, slowly)
    asyncio.run(cancelled())
    assert cluster.topics == {"orders"}
    assert cluster.groups == set()


def test_the_exit_code_says_whether_everything_arrived(
    cluster: Cluster, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _, _ = run("bench --count 20 -o json")
    assert (code, json.loads(out)["results"][1]["messages"]) == (0, 20)
    cluster.lost = {cluster.taken + 3}
    assert run("bench --count 20 --drain 1 -o name")[0] == 1
    code, _, err, _ = run("bench --count 20 --topic orders")
    assert (code, "add --use-existing" in err) == (4, True)
    code, _, err, _ = run("bench --use-existing")
    assert (code, "add --topic NAME" in err) == (2, True)
    with pytest.raises(SystemExit):
        run("bench --size 10")
    assert "10 is below 24" in capsys.readouterr().err
