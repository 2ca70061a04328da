"""Promises about how often a message is delivered at most (RD-3, RD-5, OC-16), whatever happens to who has it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import evenq

FAST = {"suspend_ms": 100, "commit_interval_ms": 100, "retry_first_ms": 100, "retry_max_ms": 100}


class Poison:
    """A listener whose process dies of every message that begins with `poison`."""

    def __init__(self, world):
        self.world = world
        self.until = world.until
        self.hit = False
        self.attempts = []
        self.runs = Counter()

    async def __call__(self, messages):
        for message in messages:
            if message.body.startswith(b"poison"):
                self.attempts.append(message.delivery_attempt)
                self.hit = True
                await asyncio.Event().wait()
        await self.world.clock.sleep_ms(20)
        for message in messages:
            self.runs[message.body.decode()] += 1

    async def lives(self, count, *, name="", between=None, **rest):
        """So many processes one after another, each until it dies of the poison."""
        for life in range(count):
            self.hit = False
            options = evenq.PushOptions(**{**FAST, **rest.get("options", {})})
            consumer = await self.world.push(name or f"life-{life}", listener=self, **{**rest, "options": options})
            await self.until(lambda: self.hit)
            await self.world.kill(consumer)
            if between is not None:
                await between()
        options = evenq.PushOptions(**{**FAST, **rest.get("options", {})})
        return await self.world.push(name or "last", listener=self, **{**rest, "options": options})


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["", "always-the-same"])
async def test_rd_3_oc_16_a_message_that_kills_its_process_is_dead_after_its_attempts_and_takes_nobody_along(
    world, most, ordered, name
):
    """Each member dies by it; the listener learns which attempt it is; its neighbours are handled and not dead."""
    await world.start()
    await world.create("t")
    await world.group("g", max_attempts=most, ordered=ordered)
    bodies = [f"m-{number}" for number in range(12)]
    await world.publish(*bodies[:5], "poison", *bodies[5:])
    poison = Poison(world)
    last = await poison.lives(most, ordered=ordered, name=name, options={"consume_batch": 4}, consume_threads=1)
    await world.until(lambda: world.has("%DLQ%g") and set(poison.runs) == set(bodies), limit_ms=60_000)
    await world.clock.advance(20_000)
    assert poison.attempts == list(range(1, most + 1))
    assert await world.bodies("%DLQ%g") == ["poison"]
    assert await world.committed("g") == 13
    await world.during(last.close())


async def test_rd_3_neighbours_that_run_while_a_process_dies_again_and_again_are_not_dead(world):
    """Eight listeners run at a time: what ran beside the poison twice runs apart from then on."""
    await world.start()
    await world.create("t", 2)
    await world.group("g", max_attempts=3)
    bodies = [f"m-{number}" for number in range(40)]
    await world.publish(*bodies[:4], "poison", *bodies[4:20])
    await world.publish(*bodies[20:], queue=1)
    poison = Poison(world)
    await poison.lives(3, options={"consume_batch": 1}, consume_threads=8)
    await world.until(lambda: world.has("%DLQ%g") and set(poison.runs) == set(bodies), limit_ms=60_000)
    assert poison.attempts == [1, 2, 3]
    assert await world.bodies("%DLQ%g") == ["poison"]
    assert max(message.delivery_attempt for message in world.seen) == 3


async def test_rd_5_a_retry_that_kills_its_process_counts_on_from_the_attempts_before(world):
    """It failed once, came again through the retry topic, and kills there."""
    await world.start(delay_levels="1s")
    await world.create("t")
    await world.group("g", max_attempts=3)
    poison = Poison(world)

    async def listener(messages):
        if messages[0].delivery_attempt == 1:
            return False
        return await poison(messages)

    await world.publish("poison")
    for life in range(2):
        poison.hit = False
        one = await world.push(f"life-{life}", listener=listener, options=evenq.PushOptions(**FAST))
        await world.until(lambda: poison.hit, limit_ms=60_000)
        await world.kill(one)
    await world.push("last", listener=listener, options=evenq.PushOptions(**FAST))
    await world.until(lambda: world.has("%DLQ%g"), limit_ms=60_000)
    assert poison.attempts == [2, 3]
    assert await world.bodies("%DLQ%g") == ["poison"]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("most", "each"), [(3, 1), (4, 1), (5, 2)])
async def test_rd_3_oc_16_attempts_go_on_over_graceful_hand_overs(world, ordered, most, each):
    """Each member fails it `each` times and leaves; with `retry="local"` and in order nothing else keeps the count."""
    await world.start()
    await world.create("t")
    await world.group("g", max_attempts=most)
    attempts = []

    async def listener(messages):
        attempts.extend(message.delivery_attempt for message in messages)
        return False

    await world.publish("poison")
    while len(attempts) < most and len(attempts) < 20:
        one = await world.push(
            f"m{len(attempts)}", listener=listener, ordered=ordered,
            options=evenq.PushOptions(**FAST, retry="local"),
        )  # fmt: skip
        wanted = min(len(attempts) + each, most)
        await world.until(lambda wanted=wanted: len(attempts) >= wanted, limit_ms=60_000)
        await world.during(one.close())
    await world.push("last", listener=listener, ordered=ordered, options=evenq.PushOptions(**FAST, retry="local"))
    await world.until(lambda: world.has("%DLQ%g"), limit_ms=60_000)
    await world.clock.advance(5_000)
    assert attempts == list(range(1, most + 1))


async def test_oc_15_the_listener_is_told_the_attempt_of_an_ordered_message(world):
    await world.start()
    await world.create("t")
    attempts = []

    async def listener(messages):
        attempts.append(messages[0].delivery_attempt)
        return len(attempts) > 3

    await world.publish("a")
    await world.push(listener=listener, ordered=True, options=evenq.PushOptions(**FAST))
    await world.until(lambda: len(attempts) == 4)
    assert attempts == [1, 2, 3, 4]


async def test_rd_3_what_a_leaving_member_does_not_finish_in_time_was_a_delivery(world):
    """Its listener is stuck when the queue has to go."""
    await world.start()
    await world.create("t")
    attempts = []

    async def stuck(messages):
        attempts.extend(message.delivery_attempt for message in messages)
        await asyncio.Event().wait()

    await world.publish("a")
    one = await world.push("one", listener=stuck, options=evenq.PushOptions(**FAST, drain_ms=500))
    await world.until(lambda: attempts == [1])
    await world.during(one.close())
    await world.push("two", listener=stuck, options=evenq.PushOptions(**FAST, drain_ms=0))
    await world.until(lambda: attempts == [1, 2])


async def test_rd_3_nothing_is_counted_where_nothing_died(world):
    """A thousand messages, two hand-overs: no call for counts, and each is a first delivery."""
    await world.start()
    await world.create("t", 2)
    one = await world.push("one")
    await world.publish(*range(500), queue=0)
    await world.publish(*range(500, 1_000), queue=1)
    two = await world.push("two")
    await world.until(lambda: len(one.queues) == len(two.queues) == 1)
    await world.during(one.close())
    await world.until(lambda: len(two.queues) == 2 and len(world.seen) == 1_000)
    assert {message.delivery_attempt for message in world.seen} == {1}
    assert world.calls("/CountDeliveries") == 0


@pytest.mark.parametrize("ordered", [False, True])
async def test_rd_3_the_count_outlives_brokers_that_restart_between_the_deaths(world, tmp_path, ordered):
    """Log and snapshot both have it. While it is not known what the dead had in hand, it is taken to have had what came
    next.
    """

    async def restart():
        world.net.stop("a:8081")
        await world.during(world.brokers.pop("a").close(), step_ms=50)
        await world.start(store={"path": tmp_path / "a"}, session_timeout_ms=1_000)

    await world.start(store={"path": tmp_path / "a"}, session_timeout_ms=1_000)
    await world.create("t")
    await world.group("g", max_attempts=4)
    await world.publish("a", "poison", "b")
    poison = Poison(world)
    poison.until = world.slow_until  # it waits for the disk
    last = await poison.lives(4, between=restart, ordered=ordered)
    await world.slow_until(lambda: world.has("%DLQ%g") and set(poison.runs) == {"a", "b"})
    assert poison.attempts == [1, 2, 3, 4]
    assert await world.bodies("%DLQ%g") == ["poison"]
    await world.during(last.close(), step_ms=20)
    world.clients.clear()
