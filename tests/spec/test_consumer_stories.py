"""Random stories about one group: members join, leave and die, lines break, listeners are slow and fail, and whatever
happens each message is handled, in order where that was promised, and progress ends behind the last one.
"""

from __future__ import annotations

import asyncio
import random

import pytest

import evenq

QUEUES = [evenq.MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]


class Story:
    """One seed's world; `ordered` checks order and that no two listeners share a queue."""

    def __init__(self, world, seed: int, *, ordered: bool) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.ordered = ordered
        self.members: list = []
        self.names = 0
        self.sent: dict[evenq.MessageQueue, int] = dict.fromkeys(QUEUES, 0)
        self.done: dict[str, int] = {}
        self.order: dict[evenq.MessageQueue, list[int]] = {queue: [] for queue in QUEUES}
        self.busy: dict[evenq.MessageQueue, object] = {}
        self.calm = False

    async def listen(self, messages) -> object:
        queue, token = messages[0].queue, object()
        if self.ordered:
            assert queue not in self.busy, f"two listeners in {queue}"
            self.busy[queue] = token
        try:
            await self.world.clock.sleep_ms(self.rng.choice([0, 0, 1, 5, 40]))
            bad = []
            for message in messages:
                if not self.calm and self.rng.random() < 0.03:
                    if self.ordered or self.rng.random() < 0.5:
                        raise ValueError("bad luck")
                    bad.append(message)
                    continue
                body = message.body.decode()
                self.done[body] = self.done.get(body, 0) + 1
                if message.queue.topic == "t":
                    self.order[queue].append(message.queue_offset)
            return evenq.Retry(bad, delay_level=1) if bad else None
        finally:
            if self.busy.get(queue) is token:
                del self.busy[queue]

    async def join(self) -> None:
        self.names += 1
        options = evenq.PushOptions(
            consume_batch=self.rng.choice([1, 4, 64]), suspend_ms=20, commit_interval_ms=200, drain_ms=500
        )
        member = await self.world.push(
            f"m{self.names}",
            listener=self.listen,
            ordered=self.ordered,
            consume_threads=self.rng.choice([1, 4]),
            options=options,
        )
        self.members.append(member)

    async def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        await self.world.during(member.close())
        self.world.clients.remove(member)

    async def die(self) -> None:
        await self.world.kill(self.members.pop(self.rng.randrange(len(self.members))))

    async def stop(self) -> None:
        """Every member's own tasks, when a story failed."""

    async def send(self) -> None:
        queue = self.rng.choice(QUEUES)
        first, count = self.sent[queue], self.rng.randint(1, 30)
        bodies = [f"{queue.broker_name}{queue.queue_id}-{number}" for number in range(first, first + count)]
        await self.world.publish(*bodies, queue=queue.queue_id, broker=queue.broker_name)
        self.sent[queue] += count

    async def cut(self) -> None:
        mend = self.world.cut(self.rng.choice("ab"))
        await self.world.clock.advance(self.rng.choice([10, 300, 4_000]))
        mend()

    async def tell(self, steps: int) -> None:
        await self.join()
        for _ in range(steps):
            choices = [self.send, self.send, self.send, self.cut]
            if len(self.members) < 4:
                choices.append(self.join)
            if len(self.members) > 1:
                choices += [self.leave, self.die]
            await self.rng.choice(choices)()
            await self.world.clock.advance(self.rng.choice([1, 20, 200, 1_500]))
        self.calm = True
        expected = sum(self.sent.values())
        await self.world.until(lambda: len(self.done) == expected, step_ms=20, limit_ms=300_000)
        await self.world.until(lambda: self.kept() == self.sent, step_ms=20, limit_ms=120_000)
        while self.members:
            await self.leave()
        assert self.kept() == self.sent

    def kept(self) -> dict[evenq.MessageQueue, int]:
        """Progress as the brokers have it."""
        events = {}
        for queue in QUEUES:
            broker = self.world.brokers[queue.broker_name]
            group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
            events[queue] = broker.ledger.progress.committed(group.group_id, topic.topic_id, queue.queue_id) or 0
        return events

    def check_order(self) -> None:
        """The first time a message is done comes after the first time of all before it."""
        for queue, offsets in self.order.items():
            firsts = list(dict.fromkeys(offsets))
            assert firsts == sorted(firsts), queue


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ordered", [False, True])
async def test_tq_10_oc_8_whatever_happens_each_message_is_handled(world, seed, ordered):
    """TQ-10, CC-10, OC-11, OC-12, OF-11."""
    for name in "ab":
        await world.start(name, delay_levels="1s")
    await world.create("t", 2)
    await world.group("g", max_attempts=1_000)
    result = Story(world, seed, ordered=ordered)
    await result.tell(25)
    if ordered:
        result.check_order()
    await asyncio.sleep(0)


class PullStory(Story):
    """The same with members that poll, each in a task of its own."""

    def __init__(self, world, seed: int) -> None:
        super().__init__(world, seed, ordered=False)
        self.tasks: dict[object, asyncio.Task] = {}

    async def work(self, member) -> None:
        while True:
            for message in await member.poll(self.rng.choice([1, 5, 100]), wait_ms=200):
                self.done[message.body.decode()] = 1
                self.order[message.queue].append(message.queue_offset)
            await self.world.clock.sleep_ms(self.rng.choice([0, 1, 10, 100]))

    async def join(self) -> None:
        self.names += 1
        options = evenq.PullOptions(commit_interval_ms=200, drain_ms=500, pull_batch=self.rng.choice([3, 512]))
        member = await self.world.pull(f"m{self.names}", options=options)
        self.members.append(member)
        self.tasks[member] = asyncio.ensure_future(self.work(member))

    async def rest(self, member) -> None:
        task = self.tasks.pop(member)
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        await self.rest(member)
        await self.world.during(member.close())
        self.world.clients.remove(member)

    async def die(self) -> None:
        """Its user stops in the middle of a batch, which then comes again."""
        member = self.members.pop(self.rng.randrange(len(self.members)))
        await self.rest(member)
        await self.world.during(member.close(consumed=False))
        self.world.clients.remove(member)

    async def stop(self) -> None:
        for member in list(self.tasks):
            self.tasks.pop(member).cancel()


@pytest.mark.parametrize("seed", range(12))
async def test_tq_10_whatever_happens_each_message_is_polled_in_order(world, seed):
    """TQ-10, CS-11, RB-26: the first sight of a message comes after that of all before it in its queue."""
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    await world.group("g")
    result = PullStory(world, seed)
    try:
        await result.tell(25)
    finally:
        await result.stop()
    result.check_order()


async def test_rb_37_a_broker_that_is_rolled_repeats_nothing_although_listeners_were_busy(world, tmp_path) -> None:
    """Finished but uncommitted messages are committed before the broker goes, and it comes back to that."""
    store = {"path": tmp_path, "disk_free_min_bytes": 0, "disk_used_max_ratio": 1}
    broker = await world.start("a", store=store)
    await world.create("t", queues=2)

    async def slow(_messages) -> None:
        await world.clock.sleep_ms(700)

    options = evenq.PushOptions(commit_interval_ms=60_000, consume_batch=2)
    names = ("one", "two")
    members = [await world.push(name, listener=slow, options=options, consume_threads=1) for name in names]
    await world.until(lambda: [len(member.queues) for member in members] == [1, 1])
    for queue in (0, 1):
        await world.publish(*(f"{queue}-{number}" for number in range(12)), queue=queue)
    await world.until(lambda: len(world.seen) >= 8)

    began_ms = world.clock.monotonic_ms()
    await world.during(broker.leave(10_000))
    assert world.clock.monotonic_ms() - began_ms <= 1_500, "it waits for what is in hand, not for its limit"
    seen = len(world.seen)
    committed = [await world.committed("g", queue=queue) for queue in (0, 1)]
    assert sum(committed) == seen
    await world.clock.advance(1_000)
    assert len(world.seen) == seen, "nothing more is read of it"
    world.net.stop("a:8081")
    await world.during(broker.close())

    await world.start("a", store=store)
    await world.until(lambda: len(world.saw()) >= 24)
    await world.clock.advance(5_000)
    assert sorted(world.saw()) == sorted(f"{queue}-{number}" for queue in (0, 1) for number in range(12))
