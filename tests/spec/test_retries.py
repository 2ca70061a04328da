"""Promises about messages given back: semantics section 17 (RD), kept by a whole broker over a net without sockets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.sending.validation import DELAYED_MESSAGE
from evenq_broker.loops.dead_letters.retries import retry_delay_ms
from evenq_broker.settings import BrokerSettings
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.loop_net import LoopNet

from evenq.errors import Error
from evenq.model import BrokerAddress
from evenq.model.delay_levels import CLASSIC
from evenq.runtime.clock import FakeClock
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

RETRY = "%RETRY%g"
DATA = "/evenq.v1.Data/"
PAUSES_MS = [
    seconds * 1_000 for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
]


class World:
    """One broker with the topic `t` and the group `g` of three attempts, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self.registry = FakeRegistry()
        self.net.serve("ns:1", self.registry.rpcs())

    async def open(self, *, max_attempts: int = 3, **settings: Any) -> None:
        result = BrokerSettings(broker_name="a", **{"nameservers": "ns:1", **settings})
        self.broker = Broker(result, clock=self.clock, rng=random.Random(5), net=self.net)
        await self.broker.open()
        self.net.serve("a:8081", self.broker.rpcs())
        await self.broker.start([BrokerAddress("default", "a", 8081)])
        await self.call("/evenq.v1.Admin/CreateTopic", admin_pb2.CreateTopicRequest(topic="t", queues=1))
        group = admin_pb2.CreateGroupRequest(group="g", max_attempts=max_attempts)
        await self.call("/evenq.v1.Admin/CreateGroup", group)

    async def call(self, method: str, request: Any) -> Any:
        """One call; raises what the answer's status says. Time passes meanwhile."""
        responses: dict[str, Any] = {
            "/evenq.v1.Admin/CreateTopic": admin_pb2.CreateTopicResponse,
            "/evenq.v1.Admin/CreateGroup": admin_pb2.CreateGroupResponse,
            DATA + "Publish": data_pb2.PublishResponse,
            DATA + "SendBack": data_pb2.SendBackResponse,
        }
        call = self.net.unary("a:8081", method, request.SerializeToString(), timeout_ms=60_000)
        answer = responses[method].FromString(await self.clock.during(call, step_ms=1))
        check(answer.status)
        return answer

    async def publish(self, *bodies: str) -> None:
        queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
        request = data_pb2.PublishRequest(queue=queue)
        for body in bodies:
            request.messages.add(body=body.encode()).system_properties.message_id = f"id-{body}"
        await self.call(DATA + "Publish", request)

    async def send_back(self, topic: str, offset: int, *, attempts: int, level: int = 0) -> bool:
        """True: it went to the dead letters."""
        queue = common_pb2.Queue(topic=topic, broker_name="a", queue_id=0)
        request = data_pb2.SendBackRequest(
            group="g", queue=queue, queue_offset=offset, attempts=attempts, delay_level=level
        )
        return bool((await self.call(DATA + "SendBack", request)).dead_lettered)

    async def messages(self, topic: str) -> list[Any]:
        """What a reader of the topic finds now."""
        queue = common_pb2.Queue(topic=topic, broker_name="a", queue_id=0)
        request = data_pb2.PullRequest(queue=queue, committed=-1)
        raw = await self.net.unary("a:8081", DATA + "Pull", request.SerializeToString(), timeout_ms=60_000)
        return list(data_pb2.PullResponse.FromString(raw).messages)


@asynccontextmanager
async def a_world(**settings: Any) -> AsyncIterator[World]:
    world = World()
    await world.open(**settings)
    try:
        yield world
    finally:
        await world.broker.close()


@pytest.mark.parametrize(
    ("retries", "delay_ms"),
    list(enumerate(PAUSES_MS)),
)
def test_rd_4_rd_6_each_retry_has_its_pause(retries: int, delay_ms: int) -> None:
    """RD-10: level 3 + retries so far."""
    assert retry_delay_ms(CLASSIC, 0, retries + 1) == delay_ms
    assert CLASSIC.delay_ms(3 + retries) == delay_ms


def test_rd_4_all_pauses_are_17140_seconds() -> None:
    assert sum(retry_delay_ms(CLASSIC, 0, attempts) for attempts in range(1, 17)) == 17_140_000


def test_rd_7_a_level_given_by_the_consumer_counts() -> None:
    assert retry_delay_ms(CLASSIC, 1, 9) == 1_000
    assert retry_delay_ms(CLASSIC, 5, 1) == 60_000


async def test_rd_1_rd_2_rd_8_a_message_given_back_comes_again_through_the_groups_retry_topic_at_its_time() -> None:
    """RD-13, RD-14, RD-17: no member sees it before, and it tells where it comes from and how often it was delivered."""
    async with a_world() as world:
        await world.publish("x")
        store = world.broker.ledger.store
        stored, kept = store.stats.messages, []
        append = store.append

        def noted(messages: Any, *, timers: Any = (), **rest: Any) -> Any:
            kept.extend(timers)
            return append(messages, timers=timers, **rest)

        store.append = noted  # type: ignore[method-assign]  # only looked at
        assert not await world.send_back("t", 0, attempts=1)
        assert await world.messages(RETRY) == []
        # RD-8: it waits in the log, as a message that was sent with a delay does
        assert (store.stats.messages, store.timers.stats.pending) == (stored, 1)
        (timer,) = kept
        assert timer.kind == DELAYED_MESSAGE
        assert world.clock.now_ms() - 100 <= timer.due_ms - 10_000 <= world.clock.now_ms()
        await world.clock.advance(9_900)
        assert await world.messages(RETRY) == []
        await world.clock.advance(300)
        (again,) = await world.messages(RETRY)
        assert (store.stats.messages, store.timers.stats.pending) == (stored + 1, 0)
        assert again.body == b"x"
        assert again.system_properties.message_id == "id-x"
        assert again.system_properties.delivery_attempt == 2
        assert again.system_properties.dead_letter_queue.topic == "t"
        assert [message.body for message in await world.messages("t")] == [b"x"]
        broker = world.broker
        place = broker.catalog.groups.get("g").group_id, broker.catalog.topics.get("t").topic_id  # type: ignore[union-attr]  # made above
        assert broker.runtime.stats.group_topic(*place).redeliveries == 1


async def test_rd_3_rd_5_after_its_last_attempt_a_message_goes_to_the_dead_letters_with_its_first_origin() -> None:
    """RD-19: it stays there."""
    async with a_world() as world:
        await world.publish("x")
        await world.send_back("t", 0, attempts=1, level=1)
        await world.clock.advance(1_200)
        assert not await world.send_back(RETRY, 0, attempts=2, level=1)
        await world.clock.advance(1_200)
        assert [m.system_properties.delivery_attempt for m in await world.messages(RETRY)] == [2, 3]
        assert await world.send_back(RETRY, 1, attempts=3)
        (dead,) = await world.messages("%DLQ%g")
        assert dead.system_properties.dead_letter_queue.topic == "t"
        await world.clock.advance(20_000)
        assert len(await world.messages(RETRY)) == 2
        assert len(await world.messages("%DLQ%g")) == 1


@pytest.mark.parametrize("attempts", [1, 16])
@pytest.mark.parametrize("level", [-1, -2])
async def test_rd_5_rd_6_a_level_below_0_goes_to_the_dead_letters_whatever_the_count(attempts: int, level: int) -> None:
    async with a_world(max_attempts=17) as world:
        await world.publish("x")
        assert await world.send_back("t", 0, attempts=attempts, level=level)
        assert [message.body for message in await world.messages("%DLQ%g")] == [b"x"]
        assert world.broker.ledger.store.timers.stats.pending == 0, "no retry waits beside it"


async def test_rd_3_sixteen_retries_are_seventeen_deliveries() -> None:
    async with a_world(max_attempts=17) as world:
        await world.publish("x")
        assert world.broker.runtime.settings.default_group_max_attempts == 17
        assert not await world.send_back("t", 0, attempts=16)
        assert await world.send_back("t", 0, attempts=17)


async def test_rd_9_the_levels_are_a_setting_of_the_broker() -> None:
    async with a_world(delay_levels="1s 2s") as world:
        await world.publish("x")
        await world.send_back("t", 0, attempts=1, level=2)
        await world.clock.advance(2_200)
        assert len(await world.messages(RETRY)) == 1
    with pytest.raises(ValueError, match="'soon'"):
        BrokerSettings(broker_name="a", delay_levels="soon")


async def test_rd_15_within_a_level_messages_come_back_in_the_order_they_were_given_back() -> None:
    async with a_world() as world:
        await world.publish(*"abc")
        for offset in (2, 0, 1):
            await world.send_back("t", offset, attempts=1, level=1)
            await world.clock.advance(10)
        await world.clock.advance(1_200)
        assert [message.body for message in await world.messages(RETRY)] == [b"c", b"a", b"b"]


async def test_rd_1_what_is_not_there_cannot_be_given_back() -> None:
    async with a_world() as world:
        with pytest.raises(Error, match="offset 7") as caught:
            await world.send_back("t", 7, attempts=1)
        assert caught.value.code == 40019
