"""Lite topics through our own SDK (wire contract 3.14, 4.5, 5.6; section 8: 46, 47): order, any broker, quotas, telling
again, where a subscription begins, and how it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

import evenq
import evenq.aio
from evenq.client.options import LiteOptions
from evenq.errors import (
    BadRequest,
    IllegalGroup,
    IllegalLiteTopic,
    IllegalTopic,
    LiteSubscriptionQuotaExceeded,
    LiteTopicQuotaExceeded,
    MessageTypeConflict,
    TopicNotFound,
    Unsupported,
)
from evenq.model import MessageType

NAMES = [f"chat-{number}" for number in range(6)]


async def brokers(world: Any, *names: str, **settings: Any) -> None:
    for name in names:
        await world.start(name, **settings)
    for broker in world.brokers.values():
        await world.during(broker.catalog.create_topic("p", message_type=MessageType.LITE))
    await world.until(lambda: all(len(b.catalog.routes.route("p")) == len(names) for b in world.brokers.values()))


async def producer(world: Any, endpoint: str = "a:8081") -> evenq.aio.Producer:
    made = evenq.aio.Producer(endpoint=endpoint, context=world.context())
    world.clients.append(made)
    return made


async def simple(world: Any, *names: str, endpoint: str = "a:8081", **rest: Any) -> evenq.aio.LiteSimpleConsumer:
    fields = {"group": "g", "topic": "p", "lite_topics": names, "endpoint": endpoint, **rest}
    made = evenq.aio.LiteSimpleConsumer(context=world.context(), **fields)
    world.clients.append(made)
    await world.during(made.start())
    return made


async def push(world: Any, listener: Any, *names: str, **rest: Any) -> evenq.aio.LitePushConsumer:
    fields = {"group": "g", "topic": "p", "lite_topics": names, "endpoint": "a:8081", **rest}
    made = evenq.aio.LitePushConsumer(listener=listener, context=world.context(), **fields)
    world.clients.append(made)
    await world.during(made.start())
    return made


async def send(world: Any, by: evenq.aio.Producer, name: str, *bodies: int) -> None:
    messages = [evenq.Message(topic="p", body=b"%d" % body, lite_topic=name) for body in bodies]
    await world.during(by.send_batch(messages))


async def take(world: Any, consumer: evenq.aio.LiteSimpleConsumer, count: int) -> dict[str, list[int]]:
    taken: dict[str, list[int]] = {}
    while sum(map(len, taken.values())) < count:
        messages = await world.during(consumer.receive(wait_ms=10_000))
        assert messages, f"no more than {taken}"
        for message in messages:
            taken.setdefault(message.lite_topic or "", []).append(int(message.body))
            await world.during(consumer.ack(message))
    return taken


def wanted(world: Any, broker: str = "a") -> list[str]:
    table = world.brokers[broker].lite.subscriptions
    return sorted(name for who, _ in table.sets() for name in table.names(who))


async def test_47_each_lite_topic_comes_in_order_from_two_brokers_through_one(world: Any) -> None:
    await brokers(world, "a", "b")
    by = await producer(world)
    for name in NAMES:
        await send(world, by, name, *range(5))
    owners = {world.brokers["a"].lite.owner("p", name) for name in NAMES}
    assert owners == {"a", "b"}
    assert not any(method.endswith("/Publish") for _, method in world.net.calls), "the wire for lite topics is v2"
    before = len(world.net.calls)
    consumer = await simple(world, *NAMES, endpoint="b:8081")
    assert await take(world, consumer, 30) == {name: list(range(5)) for name in NAMES}
    client = consumer._member
    assert client is not None
    assert sum(method.endswith("/SyncLiteSubscription") for _, method in world.net.calls[before:]) <= 4


async def test_a_message_goes_to_the_owner_without_a_detour(world: Any) -> None:
    await brokers(world, "a", "b")
    by = await producer(world)
    before = len(world.net.calls)
    for name in NAMES:
        await send(world, by, name, 1)
    sends = [address for address, method in world.net.calls[before:] if method.endswith("/SendMessage")]
    assert sends == [f"{world.brokers['a'].lite.owner('p', name)}:8081" for name in NAMES]


async def test_a_message_without_a_lite_topic_is_refused_and_its_producer_goes_on_as_before(world: Any) -> None:
    await brokers(world, "a")
    await world.create("normal")
    by = await producer(world)
    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("p", {}),
        ("p", {"message_group": "x"}),
        ("normal", {"lite_topic": "x"}),
    ]
    for topic, wrong in wrongs:
        with pytest.raises(MessageTypeConflict):
            await world.during(by.send(evenq.Message(topic=topic, body=b"x", **wrong)))
    before = world.calls("/Publish")
    await world.during(by.send(evenq.Message(topic="normal", body=b"x")))
    assert world.calls("/Publish") == before + 1


async def test_only_what_is_wanted_comes_and_it_may_change_at_any_time(world: Any) -> None:
    await brokers(world, "a")
    by = await producer(world)
    await send(world, by, "x", 1)
    await send(world, by, "y", 1)
    consumer = await simple(world)
    assert (consumer.lite_topics, await world.during(consumer.receive(wait_ms=100))) == ([], [])
    assert world.calls("/ReceiveMessage") == 0, "nothing is wanted"
    await world.during(consumer.subscribe_lite("x"))
    assert await take(world, consumer, 1) == {"x": [1]}
    await world.during(consumer.subscribe_lite("a", "b", "c"))  # short names are no letters of one name
    assert consumer.lite_topics == wanted(world) == ["a", "b", "c", "x"]
    await world.during(consumer.unsubscribe_lite("x", "a", "b", "c"))
    assert (consumer.lite_topics, wanted(world)) == ([], [])
    await world.during(consumer.subscribe_lite("y"))
    assert await take(world, consumer, 1) == {"y": [1]}


async def test_a_receive_that_waits_for_nothing_hears_of_a_subscription(world: Any) -> None:
    await brokers(world, "a")
    by = await producer(world)
    await send(world, by, "x", 7)
    consumer = await simple(world)

    async def later() -> None:
        await world.clock.sleep_ms(1_000)
        await consumer.subscribe_lite("x")

    _, messages = await world.during(_both(later(), consumer.receive(wait_ms=10_000)))
    assert [message.body for message in messages] == [b"7"]


async def _both(one: Awaitable[Any], other: Awaitable[Any]) -> Any:
    return await asyncio.gather(one, other)


async def test_the_next_message_of_a_lite_topic_waits_for_the_one_before(world: Any) -> None:
    """Also across members; `suspend` counts as no attempt."""
    await brokers(world, "a")
    by = await producer(world)
    await send(world, by, "x", 1, 2)
    one, other = await simple(world, "x"), await simple(world, "x")
    [first] = await world.during(one.receive())
    assert await world.during(other.receive(wait_ms=500)) == []
    await world.during(one.suspend(first, 1_000))
    assert await world.during(other.receive(wait_ms=500)) == []
    [again] = await world.during(other.receive(wait_ms=5_000))
    assert (again.body, again.delivery_attempt) == (b"1", 1)
    longer = await world.during(other.change_invisible(again, 60_000))
    await world.during(other.ack(longer))
    [second] = await world.during(one.receive(wait_ms=5_000))
    assert (second.body, second.lite_topic) == (b"2", "x")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"start_from": "FIRST"}, [0, 1, 2, 3, 4]),
        ({"start_from": "LAST"}, [5]),
        ({"start_offset": 3}, [3, 4]),
        ({"start_tail": 1}, [4]),
    ],
)
async def test_a_subscription_says_where_it_begins(world: Any, start: dict[str, Any], expected: list[int]) -> None:
    """3.14 offset_option."""
    await brokers(world, "a")
    by = await producer(world)
    await send(world, by, "x", *range(5))
    consumer = await simple(world)
    await world.during(consumer.subscribe_lite("x", **start))
    if start.get("start_from") == "LAST":
        assert await world.during(consumer.receive(wait_ms=100)) == []
        await send(world, by, "x", 5)
    assert await take(world, consumer, len(expected)) == {"x": expected}


async def test_a_subscription_may_begin_at_a_time(world: Any) -> None:
    await brokers(world, "a")
    by = await producer(world)
    await send(world, by, "x", 1)
    await world.clock.advance(10_000)
    then_ms = world.clock.now_ms()
    await world.clock.advance(10_000)
    await send(world, by, "x", 2)
    consumer = await simple(world)
    await world.during(consumer.subscribe_lite("x", start_from="TIMESTAMP", start_timestamp_ms=then_ms))
    assert await take(world, consumer, 1) == {"x": [2]}


async def test_over_a_quota_nothing_changes_and_the_error_says_the_limit(world: Any) -> None:
    """42902, 42901, 40020."""
    await brokers(world, "a", lite_subscriptions_max=3, lite_topics_per_topic_max=2, lite_topic_size_max=8)
    consumer = await simple(world, "x", "y")
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="lite_subscriptions_max, 3"):
        await world.during(consumer.subscribe_lite("z", "w"))
    with pytest.raises(IllegalLiteTopic, match=r"'no blanks'|9 characters"):
        await world.during(consumer.subscribe_lite("no blanks"))
    assert consumer.lite_topics == wanted(world) == ["x", "y"]
    with pytest.raises(BadRequest, match="one start"):
        await consumer.subscribe_lite("z", start_offset=1, start_tail=1)
    by = await producer(world)
    await send(world, by, "x", 1)
    await send(world, by, "y", 1)
    with pytest.raises(LiteTopicQuotaExceeded, match="lite_topics_per_topic_max"):
        await send(world, by, "z", 1)


async def test_a_topic_of_another_kind_is_refused_and_the_first_lite_message_makes_one_of_lite(world: Any) -> None:

    await brokers(world, "a")
    await world.create("normal")
    consumer = evenq.aio.LiteSimpleConsumer(group="g", topic="normal", endpoint="a:8081", context=world.context())
    with pytest.raises(IllegalTopic, match="takes NORMAL messages and has no lite topics"):
        await world.during(consumer.start())
    assert consumer.lite_topics == []
    with pytest.raises(Unsupported):
        await consumer.receive()
    await world.during(consumer.close())
    fresh = evenq.aio.LiteSimpleConsumer(group="g", topic="fresh", endpoint="a:8081", context=world.context())
    with pytest.raises(TopicNotFound, match="its first message makes it"):  # readers make none
        await world.during(fresh.start())
    assert world.brokers["a"].catalog.topics.get("fresh") is None
    message = evenq.Message(topic="fresh", body=b"x", lite_topic="ann")
    await world.during((await producer(world)).send(message))
    await simple(world, topic="fresh")
    assert world.brokers["a"].catalog.topics.get("fresh").message_type is MessageType.LITE


def test_bad_arguments_are_told_at_once() -> None:
    with pytest.raises(IllegalGroup):
        evenq.aio.LiteSimpleConsumer(group="", topic="p")
    with pytest.raises(IllegalTopic):
        evenq.aio.LiteSimpleConsumer(group="g", topic="a b")
    with pytest.raises(BadRequest, match=r"give a list of names, as in \['ann'\]"):
        evenq.aio.LiteSimpleConsumer(group="g", topic="p", lite_topics="ann")
    with pytest.raises(BadRequest, match="consume_threads is 0"):
        evenq.aio.LitePushConsumer(group="g", topic="p", listener=print, consume_threads=0)
    with pytest.raises(BadRequest, match="sync_interval_ms"):
        LiteOptions(sync_interval_ms=90_000)
    with pytest.raises(BadRequest, match="pause_ms"):
        evenq.Suspend(0)


async def test_the_whole_set_is_told_every_30_s_and_so_never_forgotten(world: Any) -> None:
    """3.2, 3.14: brokers forget a set that was not reported for 90 s."""
    await brokers(world, "a")
    consumer = await simple(world, "x", "y")
    await world.clock.advance(1_000)
    before = world.calls("/SyncLiteSubscription")
    for _ in range(30):
        await world.clock.advance(10_000)
    assert 8 <= world.calls("/SyncLiteSubscription") - before <= 12
    assert wanted(world) == ["x", "y"]
    del consumer


async def test_a_broker_that_forgot_hears_the_set_again_at_the_next_telling(world: Any) -> None:
    await brokers(world, "a")
    consumer = await simple(world, "x")
    world.brokers["a"].lite.end_client(consumer.client_id)
    assert wanted(world) == []
    await world.until(lambda: wanted(world) == ["x"], step_ms=100, limit_ms=31_000)


async def test_after_a_reconnect_the_set_is_told_at_once(world: Any) -> None:
    await brokers(world, "a")
    consumer = await simple(world, "x")
    await world.clock.advance(1_000)
    back = world.cut()
    world.brokers["a"].lite.end_client(consumer.client_id)  # as a broker that starts again
    await world.clock.advance(2_000)
    back()
    await world.until(lambda: wanted(world) == ["x"], limit_ms=5_000)


async def test_what_nobody_heard_is_told_later(world: Any) -> None:
    await brokers(world, "a")
    consumer = await simple(world, "x", "y")
    await world.clock.advance(1_000)
    back = world.cut()
    await world.during(consumer.unsubscribe_lite("x", "y"))
    with pytest.raises(evenq.Error):
        await world.during(consumer.subscribe_lite("z"))
    assert consumer.lite_topics == []
    back()
    await world.until(lambda: wanted(world) == [], limit_ms=10_000)


async def test_when_the_asked_broker_is_away_another_one_is_asked(world: Any) -> None:
    await brokers(world, "a", "b")
    by = await producer(world)
    for name in NAMES:
        await send(world, by, name, 1)
    consumer = await simple(world, *NAMES, endpoint="a:8081;b:8081")
    theirs = [name for name in NAMES if world.brokers["a"].lite.owner("p", name) == "b"]
    world.cut("a")
    taken = await take(world, consumer, len(theirs))
    assert taken == {name: [1] for name in theirs}


async def test_46_when_the_parent_is_deleted_the_client_forgets_its_lite_topics(world: Any) -> None:
    """NotifyUnsubscribeLite (4.5): else it would tell its set, and so make the topic again."""
    await brokers(world, "a")
    ended: list[str] = []
    consumer = await simple(world, "x", "y", on_unsubscribed=ended.append)
    await world.clock.advance(1_000)
    await world.during(world.brokers["a"].catalog.delete_topic("p"))
    await world.until(lambda: ended == ["x", "y"])
    assert consumer.lite_topics == wanted(world) == []
    before = world.calls("/SyncLiteSubscription")
    for _ in range(10):
        await world.clock.advance(10_000)
    assert world.calls("/SyncLiteSubscription") == before


@pytest.mark.parametrize("meanwhile", ["no stream", "broker restarted"])
async def test_46_a_client_that_had_no_stream_when_the_parent_was_deleted_learns_of_it_later(
    world: Any, meanwhile: str
) -> None:
    """What it missed is state: its next set is answered with it."""
    await brokers(world, "a", "b")
    ended: list[str] = []
    consumer = await simple(world, "x", "y", on_unsubscribed=ended.append)
    await world.clock.advance(1_000)
    back = [world.cut(name) for name in ("a", "b")]
    await world.clock.advance(1_000)
    for broker in world.brokers.values():
        if meanwhile == "broker restarted":
            broker.lite.end_client(consumer.client_id)
        await world.during(broker.catalog.delete_topic("p"))
    await world.clock.advance(3_000)
    assert consumer.lite_topics == ["x", "y"]
    for one in back:
        one()
    await world.until(lambda: sorted(ended) == ["x", "y"])
    assert consumer.lite_topics == []


async def test_46_a_subscription_outlasts_the_absence_of_the_only_broker_of_its_topic(world: Any) -> None:
    await world.start("a")
    b = await world.start("b")
    await world.during(b.catalog.create_topic("p", message_type=MessageType.LITE))
    await world.until(lambda: world.brokers["a"].catalog.routes.route("p"))
    ended: list[str] = []
    consumer = await simple(world, "x", on_unsubscribed=ended.append)
    back = world.cut("b")
    await world.during(b.cluster.goodbye())
    await world.until(lambda: not world.brokers["a"].catalog.routes.route("p"))
    await world.clock.advance(120_000)
    assert (consumer.lite_topics, ended) == (["x"], [])
    back()


async def test_a_goodbye_ends_the_subscriptions(world: Any) -> None:
    await brokers(world, "a", "b")
    consumer = await simple(world, "x")
    assert wanted(world) == wanted(world, "b") == ["x"]
    await world.during(consumer.close())
    assert wanted(world) == wanted(world, "b") == []
    assert consumer.lite_topics == []


async def test_47_a_listener_gets_each_lite_topic_in_order_one_message_at_a_time(world: Any) -> None:
    """A failed message comes again before the next one of its lite topic; other lite topics go on."""
    await brokers(world, "a", "b")
    seen: dict[str, list[tuple[int, int]]] = {}
    running: set[str] = set()

    async def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
        [message] = messages
        name = message.lite_topic or ""
        assert name not in running
        running.add(name)
        await world.clock.sleep_ms(20)
        running.discard(name)
        result = seen.setdefault(name, [])
        result.append((int(message.body), message.delivery_attempt))
        return not (name == NAMES[0] and message.body == b"2" and message.delivery_attempt < 3)

    by = await producer(world)
    await push(world, listen, *NAMES)
    for name in NAMES:
        await send(world, by, name, *range(5))
    await world.until(lambda: sum(map(len, seen.values())) >= 32)
    plain = [(number, 1) for number in range(5)]
    assert seen.pop(NAMES[0]) == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]
    assert seen == dict.fromkeys(NAMES[1:], plain)


async def test_what_a_listener_may_answer(world: Any) -> None:
    await brokers(world, "a")
    seen: list[tuple[bytes, int, int]] = []

    async def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
        [message] = messages
        seen.append((message.body, message.delivery_attempt, world.clock.now_ms()))
        first = sum(body == message.body for body, _, _ in seen) == 1
        match message.body:
            case b"1" if first:
                return evenq.Suspend(5_000)
            case b"2" if first:
                return evenq.Retry(delay_level=2)
            case b"3":
                return evenq.Retry(delay_level=-1)
            case b"4" if first:
                raise ValueError("no")
        return None

    by = await producer(world)
    consumer = await push(world, listen, options=LiteOptions(retry_first_ms=2_000))
    await world.during(consumer.subscribe_lite("x"))
    await send(world, by, "x", 1, 2, 3, 4, 5)
    await world.until(lambda: seen[-1:] != [] and seen[-1][0] == b"5")
    assert [(body, attempt) for body, attempt, _ in seen] == [
        (b"1", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1), (b"4", 1), (b"4", 2), (b"5", 1),
    ]  # fmt: skip
    at = [when for _, _, when in seen]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert [round(pause / 1_000) for pause in pauses] == [5, 0, 5, 0, 0, 2, 0]
    assert await world.bodies("%DLQ%g") == ["3"]


async def test_a_slow_listener_keeps_its_message_until_the_timeout(world: Any) -> None:
    """CC-12: prolonged while it runs, and given to another one after `consume_timeout_ms`."""
    await brokers(world, "a")
    calls: list[int] = []

    async def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        calls.append(messages[0].delivery_attempt)
        await world.clock.sleep_ms(20_000 if len(calls) == 1 else 300_000)

    by = await producer(world)
    await push(world, listen, "x", options=LiteOptions(invisible_ms=3_000, consume_timeout_ms=60_000, drain_ms=100))
    await send(world, by, "x", 1, 2)
    await world.clock.advance(19_000)
    assert calls == [1], "seven times its invisible time"
    await world.until(lambda: len(calls) == 2)
    for _ in range(50):
        await world.clock.advance(1_000)
    assert calls == [1, 1]
    await world.until(lambda: len(calls) == 3, step_ms=100)
    assert calls == [1, 1, 2]
