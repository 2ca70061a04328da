"""Promises about sending: semantics section 7 (PR)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenq
import evenq.aio
from evenq.client.core.sending.faults import AVOID_MS, KEPT_SHARE, FaultTable
from evenq.client.core.sending.queue_choice import QueueCounter, queue_of_group
from evenq.model import MessageQueue

World = Any

LIST = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in (0, 1)]


def test_pr_2_a_counter_goes_up_by_one_per_choice_modulo_the_list() -> None:
    counter = QueueCounter(6)
    assert [counter.choose(LIST) for _ in range(5)] == [LIST[2], LIST[3], LIST[0], LIST[1], LIST[2]]


def test_pr_3_after_b1_failed_the_next_choice_is_a0() -> None:
    counter = QueueCounter(7)
    failed = counter.choose(LIST)
    assert failed == MessageQueue("t", "b", 1)
    assert counter.choose(LIST, failed_broker=failed.broker_name) == MessageQueue("t", "a", 0)


def test_pr_2_queues_of_the_failed_broker_are_skipped_until_another_broker_comes() -> None:
    counter = QueueCounter(0)
    assert counter.choose(LIST, failed_broker="a") == MessageQueue("t", "b", 0)


def test_pr_2_the_only_broker_is_used_although_it_failed() -> None:
    only = LIST[:2]
    assert QueueCounter(0).choose(only, failed_broker="a") in only


@given(start=st.integers(0, 1 << 16), messages=st.integers(0, 400), queues=st.integers(1, 40))
def test_pr_6_messages_spread_evenly(start: int, messages: int, queues: int) -> None:
    counter = QueueCounter(start)
    choices = [MessageQueue("t", "a", number) for number in range(queues)]
    shares = Counter(counter.choose(choices) for _ in range(messages))
    assert {shares[queue] for queue in choices} <= {messages // queues, messages // queues + 1}


def test_pr_6_one_hundred_messages_over_sixteen_queues_are_six_or_seven_each() -> None:
    counter = QueueCounter(11)
    choices = [MessageQueue("t", "a", number) for number in range(16)]
    assert set(Counter(counter.choose(choices) for _ in range(100)).values()) == {6, 7}


@given(st.text(min_size=1, max_size=30), st.integers(1, 64))
def test_pr_7_equal_keys_go_to_one_queue(group: str, queues: int) -> None:
    choices = [MessageQueue("t", "a", number) for number in range(queues)]
    assert queue_of_group(group, choices) == queue_of_group(str(group), list(choices))


def test_pr_7_the_hash_is_the_same_in_every_release() -> None:
    choices = [MessageQueue("t", "a", number) for number in range(16)]
    assert [queue_of_group(group, choices).queue_id for group in ("order-1", "order-2", "order-3")] == [15, 5, 3]


def test_pr_4_the_first_retry_prefers_another_queue_of_the_same_broker() -> None:
    counter, faults = QueueCounter(0), FaultTable()
    assert counter.choose_by_faults(LIST, faults, now_ms=0, failed=LIST[2], near=True) == LIST[3]


def test_pr_4_without_one_a_broker_that_is_not_avoided_then_the_one_whose_pause_ends_first_then_the_plain_choice() -> (
    None
):
    """Each broker has one queue, so that the failed one has no other."""
    a, b, c = (MessageQueue("t", broker, 0) for broker in "abc")
    faults = FaultTable()
    faults.answered("b", 600, 0)
    for start in range(6):
        choice = QueueCounter(start).choose_by_faults([a, b, c], faults, now_ms=1, failed=a, near=True)
        assert choice == c, "b is in its pause"
    paused = [a, b, c, MessageQueue("t", "d", 0)]
    for start in range(6):
        faults = FaultTable()
        for broker, latency_ms in (("b", 20_000), ("c", 600), ("d", 2_500)):
            faults.answered(broker, latency_ms, 0)
        choice = QueueCounter(start).choose_by_faults(paused, faults, now_ms=1, failed=a, near=True)
        assert choice == c, "all others are in their pauses, and the one of c ends first"
    for start in range(8):
        assert QueueCounter(start).choose_by_faults(LIST, FaultTable(), now_ms=1) == QueueCounter(start).choose(LIST)


def test_pr_5_failures_in_a_row_are_avoided_longer_and_longer_and_an_answer_ends_it() -> None:
    faults = FaultTable()
    pauses = []
    for _ in range(7):
        faults.failed("a", 0)
        pauses.append(next(ms for ms in sorted({0, *AVOID_MS}) if not faults.avoided("a", ms)))
    assert pauses == [0, 30_000, 60_000, 120_000, 180_000, 600_000, 600_000], "the first one: another queue of it"
    faults.answered("a", 10, 0)
    assert not faults.avoided("a", 0)
    faults.failed("a", 0)
    assert not faults.avoided("a", 0), "the row of failures has ended"


def test_pr_5_an_avoided_broker_keeps_one_of_five_of_the_messages_that_would_go_there() -> None:
    faults = FaultTable()
    faults.answered("a", 20_000, 0)
    assert sum(faults.admits("a", 1) for _ in range(100)) == 100 // KEPT_SHARE == 20
    assert all(faults.admits("b", 1) for _ in range(100))


def test_pr_5_avoidance_grows_with_latency_and_failures_and_the_share_moved_has_a_cap() -> None:
    faults = FaultTable()
    pauses = []
    for latency_ms in (10, 600, 1_500, 2_500, 5_000, 20_000):
        faults.answered("a", latency_ms, 0)
        pauses.append(next(ms for ms in sorted({0, *AVOID_MS}) if not faults.avoided("a", ms)))
    assert pauses == [0, 30_000, 60_000, 120_000, 180_000, 600_000]
    counter = QueueCounter(0)
    shares = Counter(counter.choose_by_faults(LIST, faults, now_ms=1).broker_name for _ in range(1_000))
    assert shares["a"] >= 1_000 // 2 // KEPT_SHARE // 2, "the broker keeps a share, so the others get no sudden peak"
    assert shares["a"] < shares["b"]


def test_pr_4_xo_14_fault_tolerance_is_off_unless_asked_for() -> None:
    assert not evenq.ProducerOptions().latency_faults


@pytest.fixture
def producer() -> Callable[..., evenq.aio.Producer]:
    def make(world: World, **options: Any) -> evenq.aio.Producer:
        made = evenq.aio.Producer(
            endpoint="a:8081", context=world.context(), options=evenq.ProducerOptions(linger_ms=0, **options)
        )
        world.clients.append(made)
        return made

    return make


Make = Callable[..., evenq.aio.Producer]


def note(body: str, **fields: Any) -> evenq.Message:
    return evenq.Message(topic="t", body=body.encode(), **fields)


async def test_pr_1_each_send_calls_one_broker_of_the_route_directly(world: World, producer: Make) -> None:
    for name in "ab":
        await world.start(name)
    await world.create("t", queues=2)
    sender = producer(world)
    for number in range(12):
        before = len(world.net.calls)
        result = await world.during(sender.send(note(str(number))))
        published = [address for address, method in world.net.calls[before:] if method.endswith("Publish")]
        assert published == [f"{result.queue.broker_name}:8081"]
    assert world.calls("QueryRoute") == 1


async def test_pr_1_pr_2_a_send_fails_fast_over_to_another_broker(world: World, producer: Make) -> None:
    for name in "ab":
        await world.start(name)
    await world.create("t", queues=2)
    sender = producer(world)
    await world.during(sender.send(note("x")))
    world.cut("b")
    began_ms = world.clock.monotonic_ms()
    results = [await world.during(sender.send(note(str(number)))) for number in range(8)]
    assert {result.queue.broker_name for result in results} == {"a"}
    assert world.clock.monotonic_ms() - began_ms <= 8 * 20, "no pause before a try at another broker"


async def test_pr_1_an_error_that_no_retry_can_help_is_told_at_once(world: World, producer: Make) -> None:
    await world.start()
    await world.create("t")
    with pytest.raises(evenq.errors.IllegalMessageTag):
        await world.during(producer(world).send(note("x", tag="a|b")))
    assert world.calls("Publish") == 1


async def test_pr_7_pr_8_by_key_the_orders_of_the_example_stay_in_order_and_by_turns_they_are_spread(
    world: World, producer: Make
) -> None:
    await world.start()
    await world.create("t", queues=4)
    sender = producer(world)
    example = ["A1", "B1", "A2", "A3", "B2", "B3"]
    by_turns = [await world.during(sender.send(note(name))) for name in example]
    assert len({result.queue for result, name in zip(by_turns, example, strict=True) if name[0] == "A"}) > 1
    places: dict[str, list[tuple[int, int]]] = {"A": [], "B": []}
    for name in example:
        result = await world.during(sender.send(note(name), sharding_key=name[0]))
        places[name[0]].append((result.queue.queue_id, result.offset))
    for order in places.values():
        assert len({queue for queue, _ in order}) == 1
        assert order == sorted(order)


async def test_pr_2_each_producer_starts_at_a_random_queue(world: World, producer: Make) -> None:
    """So that the first messages of many producers are spread, too."""
    await world.start()
    await world.create("t", queues=4)
    firsts = Counter()
    for _ in range(24):
        result = await world.during(producer(world).send(note("x")))
        firsts[result.queue.queue_id] += 1
    assert set(firsts) == {0, 1, 2, 3}


async def test_pr_4_pr_5_one_more_try_at_the_same_broker_then_another_one_and_what_was_seen_counts(
    world: World, producer: Make
) -> None:
    """What a send has met is kept for the next ones: the broker that failed twice is avoided from then on."""
    for name in "ab":
        await world.start(name)
    await world.create("t", queues=2)
    sender = producer(world, latency_faults=True, max_attempts=4)
    await world.during(sender.send(note("warm")))
    publish, tries = world.net.unary, []

    async def failing(address: str, method: str, request: bytes, **rest: Any) -> bytes:
        if method.endswith("/Publish"):
            tries.append(address[0])
            if address == "b:8081":
                raise evenq.errors.ConnectionFailed("b is away")
        return await publish(address, method, request, **rest)

    world.net.unary = failing
    stories = []
    for number in range(12):
        tries.clear()
        assert (await world.during(sender.send(note(str(number))))).queue.broker_name == "a"
        stories.append("".join(tries))
    assert "bba" in stories, "one more try in the group of the failed queue, not more"
    assert set(stories) == {"a", "bba"}
    assert stories.count("bba") <= 3, "from then on it is avoided but for its share"


@pytest.mark.parametrize("linger_ms", [0, 5])
async def test_pr_7_messages_of_a_key_are_stored_in_the_order_of_their_sends_also_if_a_try_fails(
    world: Any, linger_ms: int
) -> None:
    """No sender waits for a result before the next send, batches are on their way, and the third request is lost."""
    await world.start()
    await world.create("t", queues=2)
    options = evenq.ProducerOptions(linger_ms=linger_ms, batch_messages=4)
    sender = evenq.aio.Producer(endpoint="a:8081", context=world.context(), options=options)
    world.clients.append(sender)
    publish, requests = world.net.unary, 0

    async def losing(address: str, method: str, request: bytes, **rest: Any) -> bytes:
        nonlocal requests
        if method.endswith("/Publish"):
            requests += 1
            if requests == 3:
                raise evenq.errors.ConnectionFailed("lost")
        return await publish(address, method, request, **rest)

    world.net.unary = losing
    sends = [asyncio.ensure_future(sender.send(note(str(n)), sharding_key="one order")) for n in range(30)]
    results = await world.during(asyncio.gather(*sends))
    assert requests > 5
    assert len({result.queue for result in results}) == 1
    offsets = [result.offset for result in results]
    assert offsets == sorted(offsets)


async def test_pr_7_a_selector_chooses_the_queue(world: World, producer: Make) -> None:
    await world.start()
    await world.create("t", queues=4)
    result = await world.during(producer(world).send(note("x"), selector=lambda queues: queues[2]))
    assert result.queue.queue_id == 2


async def test_pr_9_a_topic_with_one_queue_keeps_the_order_of_all_messages(world: World, producer: Make) -> None:
    await world.start()
    await world.create("t", queues=1)
    one, two = producer(world), producer(world)
    for number in range(0, 10, 2):
        await world.during(one.send(note(str(number))))
        await world.during(two.send(note(str(number + 1))))
    assert await world.bodies("t") == [str(number) for number in range(10)]


@pytest.mark.parametrize("moves", [False, True])
async def test_pr_10_oc_20_a_key_does_not_move_because_its_broker_is_away_unless_that_is_asked_for(
    world: World, producer: Make, moves: bool
) -> None:
    for name in "ab":
        await world.start(name)
    await world.create("t", queues=1)
    sender = producer(world, route_refresh_ms=100, ordered_moves=moves)
    keys = [f"k{number}" for number in range(8)]
    homes = {key: (await world.during(sender.send(note(key), sharding_key=key))).queue for key in keys}
    key = next(key for key, queue in homes.items() if queue.broker_name == "b")
    other = next(key for key, queue in homes.items() if queue.broker_name == "a")
    world.cut("b")
    await world.during(world.brokers.pop("b").close())
    await world.until(lambda: len(world.brokers["a"].catalog.routes.brokers()) == 1)
    await world.clock.advance(200)
    assert (await world.during(sender.send(note("x")))).queue.broker_name == "a"
    await world.clock.advance(200)
    assert (await world.during(sender.send(note("x"), sharding_key=other))).queue == homes[other]
    if moves:
        assert (await world.during(sender.send(note("x"), sharding_key=key))).queue.broker_name == "a"
        return
    with pytest.raises(evenq.errors.ConnectionFailed):
        await world.during(sender.send(note("x"), sharding_key=key))
    await world.start("b")
    await world.create("t", queues=1)
    await world.until(lambda: len(world.brokers["a"].catalog.routes.brokers()) == 2)
    sending = asyncio.ensure_future(sender.send(note("y"), sharding_key=key))
    assert (await world.during(sending)).queue == homes[key]


async def test_pr_11_a_delay_level_delays_delivery_and_level_5_is_a_minute(world: World, producer: Make) -> None:
    broker = await world.start()
    world.net.serve("a:8081", broker.rpcs())
    await world.until(lambda: len(broker.catalog.routes.brokers()) == 1)
    await broker.catalog.create_topic("t", queues=1, message_type=evenq.MessageType.DELAY)
    consumer = await world.push()
    await world.ready(consumer)
    await world.during(producer(world).send(note("later", delay_level=5)))
    await world.clock.advance(59_900)
    assert world.saw() == []
    await world.until(lambda: world.saw() == ["later"], limit_ms=1_000)
