"""Two members never work on one queue: the fence in brokers and in clients (OC-8, OC-18, RB-37), and one id per member
(RG-3).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import evenq
from evenq.client.wiring import ClientContext
from evenq.errors import Error, PreconditionFailed
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

FAST = {"commit_interval_ms": 200, "drain_ms": 500}
DATA = "/evenq.v1.Data/"


def queue(queue_id: int = 0) -> common_pb2.Queue:
    return common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id)


async def pulled(
    world: Any, client_id: str, *, wait_ms: int = 0, committed: int = -1, offset: int = 0, owner: bool = False
) -> list[str]:
    request = data_pb2.PullRequest(
        group="g", client_id=client_id, queue=queue(), offset=offset, wait_ms=wait_ms, committed=committed, owner=owner
    )
    raw = await world.net.unary("a:8081", DATA + "Pull", request.SerializeToString(), timeout_ms=60_000)
    answer = data_pb2.PullResponse.FromString(raw)
    check(answer.status)
    return [message.body.decode() for message in answer.messages]


async def commit(world: Any, client_id: str, offset: int) -> None:
    request = data_pb2.CommitOffsetsRequest(group="g", client_id=client_id)
    request.offsets.add(queue=queue(), offset=offset)
    raw = await world.net.unary("a:8081", DATA + "CommitOffsets", request.SerializeToString(), timeout_ms=60_000)
    check(data_pb2.CommitOffsetsResponse.FromString(raw).status)


async def test_oc_18_an_old_owner_neither_reads_nor_commits_and_its_long_poll_ends_at_once(world):
    broker = await world.start()
    await world.create("t")
    one = await world.push("one", options=evenq.PushOptions(**FAST))
    await world.ready(one)
    waiting = asyncio.ensure_future(pulled(world, "one", wait_ms=30_000))
    await world.clock.advance(50)
    two = await world.push("two", options=evenq.PushOptions(**FAST))
    await world.until(lambda: two.balanced and one.balanced)
    await world.kill(one if one.queues else two)
    await world.until(waiting.done, limit_ms=10_000)
    with pytest.raises(PreconditionFailed, match="'one' does not hold queue"):
        await waiting
    place = broker.catalog.routes.readable("t")[0]
    await world.until(lambda: broker.membership.locks.holder("g", place) in {"one", "two"}, limit_ms=20_000)
    owner = broker.membership.locks.holder("g", place)
    other = "one" if owner == "two" else "two"
    await world.publish("m")
    await world.until(lambda: world.saw() == ["m"])
    with pytest.raises(PreconditionFailed, match=f"'{other}' does not hold queue"):
        await world.during(pulled(world, other))
    with pytest.raises(PreconditionFailed, match=f"'{owner}' holds it"):
        await world.during(commit(world, other, 0))


async def test_oc_18_an_owner_that_its_broker_never_heard_of_is_no_plain_reader(world):
    await world.start()
    await world.create("t")
    one = await world.push("one", options=evenq.PushOptions(**FAST))
    await world.ready(one)
    await world.publish("m")
    assert await world.during(pulled(world, "slept")) == ["m"]
    with pytest.raises(PreconditionFailed, match="'one' holds it"):
        await world.during(pulled(world, "slept", owner=True))


async def test_oc_18_a_late_commit_of_the_old_owner_never_moves_the_offset(world):
    broker = await world.start()
    await world.create("t")
    await world.publish(*range(10))
    one = await world.push("one", options=evenq.PushOptions(**FAST))
    await world.ready(one)
    await world.until(lambda: len(world.seen) == 10)
    await world.kill(one)
    await world.until(lambda: not broker.membership.members.members("g"))
    with pytest.raises(PreconditionFailed, match="no member holds it"):
        await world.during(commit(world, "one", 10))
    before = await world.committed("g")
    two = await world.push("two", options=evenq.PushOptions(**FAST))
    await world.ready(two)
    await world.until(lambda: broker.ledger.progress.committed(1, 1, 0) == 10)
    for offset in (0, 3, 10):
        with pytest.raises(PreconditionFailed):
            await world.during(commit(world, "one", offset))
    assert await world.committed("g") == 10 >= before


async def test_of_2_a_commit_of_several_queues_keeps_those_that_are_its_own(world):
    broker = await world.start()
    await world.create("t", 2)
    await world.publish("a", queue=0)
    await world.publish("b", queue=1)
    one = await world.push("one", options=evenq.PushOptions(**FAST))
    two = await world.push("two", options=evenq.PushOptions(**FAST))
    await world.until(lambda: one.balanced and two.balanced and len(one.queues) == len(two.queues) == 1)
    request = data_pb2.CommitOffsetsRequest(group="g", client_id="one")
    for number in (0, 1):
        request.offsets.add(queue=queue(number), offset=1)
    call = world.net.unary("a:8081", DATA + "CommitOffsets", request.SerializeToString(), timeout_ms=5_000)
    answer = data_pb2.CommitOffsetsResponse.FromString(await world.during(call))
    with pytest.raises(Error, match="does not hold"):
        check(answer.status)
    (own,) = one.queues
    assert broker.ledger.progress.committed(1, 1, own.queue_id) == 1


async def test_rg_3_two_consumers_with_one_client_id_become_two_members_that_share_the_queues(world):
    """Better: the second learns it, takes an id of its own everywhere, and each queue has one owner."""
    brokers = [await world.start(name) for name in "ab"]
    await world.create("t", 2)
    counts: Counter[str] = Counter()

    async def note(messages):
        counts.update(f"{message.queue}:{message.queue_offset}" for message in messages)

    grounds = [ClientContext(clock=world.clock, rng=random.Random(seed), net=world.net) for seed in (1, 2)]
    twins = []
    for context in grounds:
        fields = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "endpoint": "a:8081"}
        twin = evenq.aio.PushConsumer(listener=note, client_id="same", context=context, **fields)
        world.clients.append(twin)
        twins.append(await twin.start())
    await world.until(lambda: sorted(len(twin.queues) for twin in twins) == [2, 2])
    assert not set(twins[0].queues) & set(twins[1].queues)
    await world.until(lambda: all(len(broker.membership.members.members("g")) == 2 for broker in brokers))
    for broker in brokers:
        first, second = (member.client_id for member in broker.membership.members.members("g"))
        assert (first, second.startswith("same~")) == ("same", True)
    for number in range(20):
        await world.publish(number, queue=number % 2, broker="ab"[number // 2 % 2])
    await world.until(lambda: len(counts) == 20)
    assert set(counts.values()) == {1}
